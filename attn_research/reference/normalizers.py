"""The formula of each normalizer for the visible logits of one row."""

from collections.abc import Callable
from typing import Any

import numpy as np

# (logits [n] of the visible keys, **options of this head) -> weights [n]
NORMALIZERS: dict[str, Callable[..., np.ndarray]] = {}


def _normalizer(name: str) -> Callable[..., Any]:
    def add(f: Callable[..., Any]) -> Callable[..., Any]:
        NORMALIZERS[name] = f
        return f

    return add


@_normalizer("softmax")
def _softmax(logits: np.ndarray) -> np.ndarray:
    exps = np.exp(logits - logits.max())
    return exps / exps.sum()
