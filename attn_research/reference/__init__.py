"""A slow oracle in float64 NumPy: explicit loops over queries and keys, no code in common.

It needs NumPy alone, says each formula once in the plainest way (in ``scores.py`` and
``normalizers.py``), and is what tests compare with.
"""

import math
from typing import Any

import numpy as np

from . import positional as positional
from .normalizers import NORMALIZERS
from .scores import DEFAULT_SCALES, LOGITS, At

__all__ = ["DEFAULT_SCALES", "LOGITS", "NORMALIZERS", "attention"]


def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    score: Any = "dot",
    score_params: Any = None,
    per_head: bool = False,
    scale: Any = None,
    bias: Any = None,
    mask: Any = None,
    softcap: float | None = None,
    score_state: Any = None,
    normalizer: str = "softmax",
    normalizer_options: Any = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Context ``[..., T, N, Dv]``, weights ``[..., N, T, S]`` and lse ``[..., N, T]``.

    As ``attn_research.attend``, but: batch axes are equal, ``mask`` is a boolean array, a score
    function is ``f(score_params, q [Dq], k [Dk]) -> logit`` (or that, the number of terms and the
    name of its scale), ``per_head`` says that leaves of ``score_params`` have a leading axis of
    heads, ``score_state`` has all batch axes and the head axis, or is a number, ``scale`` may be
    ``("log_n", s)``, and options of the normalizer are apart (arrays among them have an axis of
    heads).

    >>> q, k, v = np.eye(2), np.array([[np.log(3.0), 0.0], [0.0, 0.0]]), np.array([[4.0], [0.0]])
    >>> attention(q, k, v, scale=1.0)[0].round(6)[:, 0].tolist()
    [3.0, 2.0]
    """
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    if query.ndim == 2:
        same: Any = dict(score=score, score_params=score_params, per_head=per_head, scale=scale)
        context, weights, lse = attention(
            query[:, None],
            key[:, None],
            value[:, None],
            bias=bias,
            mask=mask,
            softcap=softcap,
            score_state=score_state,
            normalizer=normalizer,
            normalizer_options=normalizer_options,
            **same,
        )
        return context[:, 0], weights[0], lse[0]
    batch, (T, N) = query.shape[:-3], query.shape[-3:-1]
    S, K = key.shape[-3:-1]
    full = (*batch, N, T, S)
    bias = np.broadcast_to(np.asarray(0.0 if bias is None else bias, np.float64), full)
    mask = np.broadcast_to(np.asarray(True if mask is None else mask), full)
    options = normalizer_options or {}
    context = np.zeros((*batch, T, N, value.shape[-1]))
    weights, lse = np.zeros(full), np.full(full[:-1], -np.inf)
    for b in np.ndindex(*batch):
        for n in range(N):
            group = n // (N // K)
            params = score_params
            if per_head:
                params = {name: np.asarray(leaf)[n] for name, leaf in score_params.items()}
            state = score_state
            if np.ndim(state) > len(batch):
                state = np.asarray(state, np.float64)[b + (n,)]
            extra = {k: np.asarray(x)[n] if np.ndim(x) else x for k, x in options.items()}
            for t in range(T):
                seen = [
                    s for s in range(S) if mask[b + (n, t, s)] and bias[b + (n, t, s)] > -np.inf
                ]
                logits = {}
                for s in seen:
                    at = At(t, s, len(seen), S, state)
                    raw, dim, default = _raw(
                        score, params, query[b + (t, n)], key[b + (s, group)], at
                    )
                    if raw == -math.inf:
                        continue
                    logits[s] = raw, dim, default
                for s, (raw, dim, default) in logits.items():
                    factor = _factor(scale, default, dim, len(logits), n)
                    raw *= factor
                    if softcap is not None:
                        raw = softcap * math.tanh(raw / softcap)
                    logits[s] = raw + bias[b + (n, t, s)]
                if not logits:
                    continue
                row = np.array(list(logits.values()))
                top = row.max()
                lse[b + (n, t)] = top + math.log(math.fsum(np.exp(row - top)))
                normalized = NORMALIZERS[normalizer](row, **extra)
                for s, weight in zip(logits, normalized, strict=True):
                    weights[b + (n, t, s)] = weight
                    context[b + (t, n)] += weight * value[b + (s, group)]
    return context, weights, lse


def _raw(score: Any, params: Any, q: Any, k: Any, at: At) -> tuple[float, int, str]:
    """The unscaled logit, the number of terms in it, and the name of its own scale."""
    if callable(score):
        out = score(params, q, k)
        return out if isinstance(out, tuple) else (float(out), len(q), "none")
    return *LOGITS[score](params, q, k, at), DEFAULT_SCALES[score]


def _factor(scale: Any, default: str, dim: int, count: int, head: int) -> float:
    if isinstance(scale, tuple):
        s = np.asarray(scale[1], np.float64)
        own = _factor(None, default, dim, count, head)
        return own * float(s[head] if s.ndim else s) * math.log(count)
    scale = default if scale is None else scale
    if isinstance(scale, str):
        names = {"none": 1.0, "rsqrt_dim": dim**-0.5, "inverse_dim": 1.0 / dim}
        return names[scale]
    return float(np.asarray(scale)[head] if np.ndim(scale) else scale)
