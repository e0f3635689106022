"""Score functions: one file each. To add one, add a file; nothing else changes.

A score is a per-position transform followed by a pairwise kernel:
``logits[i, j] = pairwise(params', transform_query(q_i), transform_key(k_j))``. Its file has

- a docstring: the formula, the paper, the default scale and why;
- ``DEFAULT_SCALE``: what ``scale=None`` means ("none", "rsqrt_dim" or "inverse_dim");
- ``PAIRWISE``: "dot", "additive" (``sum_e v_e tanh(q_e + k_e)``, reads ``params["v"]``),
  "squared_distance" (``-|q - k|^2``, times ``params["factor"]`` if there is one), or a function
  ``f(params, query [T, E], key [S, E]) -> logits [T, S]`` of one head, which may return -inf for
  "not visible";
- ``PARAMS`` and ``OPTIONAL_PARAMS``: parameter names with their axes, ``()`` for a scalar; "Dq",
  "Dk" and "Dq+Dk" are feature sizes, any other name is free but must agree everywhere; ``SAME_DIM =
  True`` if Dq must equal Dk;
- ``init(key, query_dim, key_dim, *, options...)`` -> params (one head);
- ``transform_query(params, x [..., L, H, Dq])`` and ``transform_key(params, x [..., L, H, Dk])``:
  each position by itself. The features of the transformed query are counted for the scale;
- if needed, ``pairwise_params(params)``: what the pairwise kernel reads, if not ``params``;
- if it depends on positions or on a state, ``place(params, query [..., T, E], key [..., S, E],
  state, count) -> (query, key)`` of one head, after the transforms: it may append features.
  ``count`` is the number of keys that a query sees, ``[..., T | 1]`` or a number. ``STATE`` names
  the axes of ``score_state``, after those of the batch: ``("N", "S")``, or ``()`` for a number;
  ``place`` gets it without the head axis, or None.
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


def state_axes(score: Any) -> tuple[str, ...] | None:
    """``STATE`` of a score (a name or a function), None if it takes no ``score_state``."""
    return getattr(get(score), "STATE", None) if isinstance(score, str) else None


def pairwise(score: Any) -> Any:
    """``PAIRWISE`` of a score's name; a function itself."""
    return get(score).PAIRWISE if isinstance(score, str) else score
