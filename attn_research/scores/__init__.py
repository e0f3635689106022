"""Score functions: one file each. To add one, add a file; nothing else changes.

A score is a per-position transform followed by a pairwise kernel:
``logits[i, j] = pairwise(params, transform_query(q_i), transform_key(k_j))``. Its file has

- a docstring: the formula, the paper, the default scale and why;
- ``DEFAULT_SCALE``: what ``scale=None`` means ("none", "rsqrt_dim" or "inverse_dim");
- ``PAIRWISE``: "dot", "additive" (reads ``params["v"]``), or a function
  ``f(params, query [T, E], key [S, E]) -> logits [T, S]``;
- ``PARAMS`` and ``OPTIONAL_PARAMS``: parameter names with their axes; "Dq" and "Dk" are the feature
  sizes of query and key, any other letter is free but must agree everywhere; ``SAME_DIM = True``
  if Dq must equal Dk;
- ``init(key, query_dim, key_dim, *, options...)`` -> params (one head);
- ``transform_query(params, x [..., Dq])`` and ``transform_key(params, x [..., Dk])``.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from attn_research.folders import load_folder, unknown

_MODULES = load_folder(__name__, __path__)

SCORES: tuple[str, ...] = tuple(_MODULES)
"""The names of the scores, in alphabetical order."""

ScoreLike = str | Callable[..., Any]


def get(name: Any) -> ModuleType:
    """The module of the score called ``name``."""
    if not isinstance(name, str):
        raise TypeError(f"score must be a name or a function: got {type(name).__name__}")
    if name not in _MODULES:
        raise ValueError(unknown("score", name, SCORES))
    return _MODULES[name]
