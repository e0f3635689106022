"""Masks as data: small pytrees that combine with ``&``, ``|`` and ``~``.

True means visible. A mask becomes a boolean array, broadcastable to ``[..., N, T, S]`` or to a
block of that, only where it is used, so it costs nothing to carry and passes through ``jit``,
``vmap`` and ``scan`` with traced contents. Its insides are in ``mask_algebra.py`` and
``mask_types.py``.

Arguments are integers or integer arrays (traced or not) with any number of batch axes ``[...]``,
broadcastable to those of the queries. Sums of them never wrap around.

>>> print((causal() & lengths(2)).as_array(3, 3)[0].astype(int))
[[1 0 0]
 [1 1 0]
 [1 1 0]]
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn_research.mask_algebra import Mask, as_mask
from attn_research.mask_types import INT32, Band, Dilated, FirstKeys, Segments


def causal(offset: Any = 0) -> Mask:
    """Query i sees the keys j <= i + offset.

    ``offset [...]`` may differ per batch element. For queries that continue a sequence of P keys,
    say ``causal(P)``.

    >>> print(causal(1).as_array(2, 4).astype(int))
    [[1 1 0 0]
     [1 1 1 0]]
    """
    return Band(None, as_int32("causal(offset)", offset))


def window(left: Any, right: Any, offset: Any = 0) -> Mask:
    """Query i sees the keys i + offset - left <= j <= i + offset + right.

    ``left [...]`` and ``right [...]`` count the keys beside the query's own position i + offset;
    None is no limit on that side. They may be negative, which takes out that position and more:
    ``window(None, -1)`` is the keys strictly before it. ``offset [...]`` as in ``causal``, which is
    ``window(None, 0, offset)``.

    Source: Longformer, Beltagy et al. 2020 (sliding window).

    >>> print(window(1, 0).as_array(4, 4).astype(int))
    [[1 0 0 0]
     [1 1 0 0]
     [0 1 1 0]
     [0 0 1 1]]
    """
    offset = as_int32("window(offset)", offset)
    # offset - left == ~(~offset + left)
    low = None if left is None else ~_saturating_sum(~offset, as_int32("window(left)", left))
    high = None if right is None else _saturating_sum(offset, as_int32("window(right)", right))
    return Band(low, high)


def lengths(key_lengths: Any) -> Mask:
    """Each batch element sees its first ``key_lengths [...]`` keys, 0 allowed.

    >>> lengths(jnp.array([3, 0])).as_array(5, 4).shape
    (2, 1, 1, 4)
    """
    return FirstKeys(as_int32("lengths(key_lengths)", key_lengths))


def prefix(n: Any) -> Mask:
    """All queries see the first ``n [...]`` keys.

    ``causal() | prefix(n)`` is the mask of a prefix language model: both ways inside the prefix,
    causal after it.

    Sources: Liu et al. 2018 (Generating Wikipedia by Summarizing Long Sequences); T5, Raffel et al.
    2020.

    >>> print((causal() | prefix(2)).as_array(3, 3)[0].astype(int))
    [[1 1 0]
     [1 1 0]
     [1 1 1]]
    """
    return FirstKeys(as_int32("prefix(n)", n))


def segments(q_ids: Any, k_ids: Any = None) -> Mask:
    """Query i sees the keys of its own segment, ``q_ids[..., i] == k_ids[..., j]``.

    For several sequences packed into one, with ids ``q_ids [..., T]`` and ``k_ids [..., S]``; None:
    the same as ``q_ids``. Any integers will do; blocks that no segment joins are found, and can be
    skipped, if ids ascend.

    Source: Krell et al. 2021 (Efficient Sequence Packing without Cross-contamination).

    >>> print((causal() & segments([0, 0, 1])).as_array(3, 3)[0].astype(int))
    [[1 0 0]
     [1 1 0]
     [0 0 1]]
    """
    q_ids = _ids("segments(q_ids)", q_ids)
    return Segments(q_ids, None if k_ids is None else _ids("segments(k_ids)", k_ids))


def dilated(step: Any, offset: Any = 0) -> Mask:
    """Query i sees every ``step``-th key: those with i + offset - j a multiple of ``step``.

    ``step [...]`` is at least 1, ``offset [...]`` as in ``causal``. A dilated sliding window of w
    keys before the query is ``dilated(step) & window(w * step, 0)``.

    Sources: Sparse Transformer, Child et al. 2019 (strided); Longformer, Beltagy et al. 2020.

    >>> print((dilated(2) & causal()).as_array(4, 4).astype(int))
    [[1 0 0 0]
     [0 1 0 0]
     [1 0 1 0]
     [0 1 0 1]]
    """
    step = as_int32("dilated(step)", step)
    if not isinstance(step, jax.Array):
        _refuse(np.less(step, 1), "dilated(step) must be at least 1", step)
    return Dilated(step, as_int32("dilated(offset)", offset) % step)


def dense(array: Any) -> Mask:
    """A boolean array, broadcastable to ``[..., N, T, S]``, as a mask.

    >>> dense(np.eye(2, dtype=bool)).as_array(2, 2).tolist()
    [[True, False], [False, True]]
    """
    return as_mask(array)


def _integers(what: str, x: Any) -> Any:
    """``x`` as an int, a NumPy array of int32 or a JAX array, if those are integers that fit."""
    if isinstance(x, int) and not isinstance(x, bool):
        _refuse((x < INT32.min) | (x > INT32.max), f"{what} must fit into int32", x)
        return x
    if not isinstance(x, jax.Array):
        x = np.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"{what} must be integers: got {x.dtype}")
    if isinstance(x, jax.Array):
        return x
    _refuse((x < INT32.min) | (x > INT32.max), f"{what} must fit into int32", x)
    return x.astype(np.int32)


def as_int32(what: str, x: Any) -> Any:
    """``_integers``, with wider JAX integers cut to int32: no position is out there."""
    x = _integers(what, x)
    if not isinstance(x, jax.Array) or x.dtype == jnp.int32:
        return x
    limits = jnp.iinfo(x.dtype)
    return jnp.clip(x, max(limits.min, INT32.min), min(limits.max, INT32.max)).astype(jnp.int32)


def _ids(what: str, x: Any) -> Any:
    x = _integers(what, x)
    if not np.ndim(x):
        raise ValueError(f"{what} must have an axis of positions: got {x}")
    return x


def _refuse(wrong: Any, must: str, x: Any) -> None:
    if np.any(wrong):
        raise ValueError(f"{must}: got {np.ravel(x)[np.ravel(wrong)][0]}")


def _saturating_sum(a: Any, b: Any) -> Any:
    """a + b, cut to int32."""
    if isinstance(a, jax.Array) or isinstance(b, jax.Array):
        room = INT32.min - jnp.minimum(b, 0), INT32.max - jnp.maximum(b, 0)
        return jnp.clip(a, *room) + b
    return np.clip(np.add(a, b, dtype=np.int64), INT32.min, INT32.max).astype(np.int32)
