"""Normalizers: from logits to weights, one file each. To add one, add a file.

Its file has a docstring (formula, paper, what an empty row gives) and ``NORMALIZER``: a subclass of
``Normalizer``, a frozen dataclass whose fields are its options, all with defaults.
"""

import dataclasses
from types import ModuleType
from typing import Any

from attn_research.folders import load_folder, unknown
from attn_research.normalizers._base import Normalizer

_MODULES: dict[str, ModuleType] = load_folder(__name__, __path__)

NORMALIZERS: tuple[str, ...] = tuple(_MODULES)
"""The names of the normalizers, in alphabetical order."""


def normalizer(name: str, **options: Any) -> Normalizer:
    """The normalizer called ``name``, with options; ``attend(..., normalizer=...)`` takes it.

    >>> normalizer("softmax")
    Softmax()
    """
    if name not in NORMALIZERS:
        raise ValueError(unknown("normalizer", name, NORMALIZERS))
    made = _MODULES[name].NORMALIZER
    allowed = [field.name for field in dataclasses.fields(made)]
    for option in options:
        if option not in allowed:
            raise TypeError(unknown(f"option of normalizer {name!r}", option, allowed))
    return made(**options)


def get(normalizer_or_name: Any) -> Normalizer:
    """``normalizer_or_name`` itself, or the normalizer of that name with its defaults."""
    if isinstance(normalizer_or_name, Normalizer):
        return normalizer_or_name
    if not isinstance(normalizer_or_name, str):
        raise TypeError(
            "normalizer must be a name or made by ar.normalizer: got "
            f"{type(normalizer_or_name).__name__}"
        )
    return normalizer(normalizer_or_name)
