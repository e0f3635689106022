"""Normalizers: from logits to weights, one file each. To add one, add a file.

Its file has a docstring (formula, paper) and ``normalize(logits [..., S]) -> (weights [..., S],
lse [...])``, where a key that is not visible has the logit -inf and must get weight exactly 0, and
a row of nothing but -inf weights 0, lse -inf and derivative 0.
"""

from types import ModuleType
from typing import Any

from attn_research.folders import load_folder, unknown

_MODULES = load_folder(__name__, __path__)

NORMALIZERS: tuple[str, ...] = tuple(_MODULES)
"""The names of the normalizers, in alphabetical order."""


def get(name: Any) -> ModuleType:
    """The module of the normalizer called ``name``."""
    if name not in NORMALIZERS:
        raise ValueError(unknown("normalizer", name, NORMALIZERS))
    return _MODULES[name]
