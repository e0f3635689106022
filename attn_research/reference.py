"""A slow oracle in float64 NumPy: explicit loops over queries and keys, no code in common.

It needs NumPy alone, says each formula once in the plainest way, and is what tests compare with.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

LOGITS: dict[str, Callable[..., tuple[float, int]]] = {}
DEFAULT_SCALES = {
    "dot": "rsqrt_dim",
    "general": "none",
    "projected_dot": "none",
    "additive": "none",
}


def _logit(name: str) -> Callable[..., Any]:
    def add(f: Callable[..., Any]) -> Callable[..., Any]:
        LOGITS[name] = f
        return f

    return add


@_logit("dot")
def _dot(params: Any, q: np.ndarray, k: np.ndarray) -> tuple[float, int]:
    return sum(float(a) * float(b) for a, b in zip(q, k, strict=True)), len(q)


@_logit("general")
def _general(params: Any, q: np.ndarray, k: np.ndarray) -> tuple[float, int]:
    kernel = np.asarray(params["kernel"], np.float64)
    total = 0.0
    for a in range(len(q)):
        for b in range(len(k)):
            total += q[a] * kernel[a, b] * k[b]
    return total, len(q)


@_logit("projected_dot")
def _projected_dot(params: Any, q: np.ndarray, k: np.ndarray) -> tuple[float, int]:
    left = np.asarray(params["query"], np.float64).T @ q
    right = np.asarray(params["key"], np.float64).T @ k
    return float(left @ right), len(left)


@_logit("additive")
def _additive(params: Any, q: np.ndarray, k: np.ndarray) -> tuple[float, int]:
    v = np.asarray(params["v"], np.float64)
    total = 0.0
    for e in range(len(v)):
        inner = sum(q[a] * float(params["query"][a][e]) for a in range(len(q)))
        inner += sum(k[b] * float(params["key"][b][e]) for b in range(len(k)))
        if "bias" in params:
            inner += float(params["bias"][e])
        total += v[e] * math.tanh(inner)
    return total, len(v)


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
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Context ``[..., T, N, Dv]``, softmax weights ``[..., N, T, S]`` and lse ``[..., N, T]``.

    As ``attn_research.attend``, but: batch axes are equal, ``mask`` is a boolean array, a score
    function is ``f(score_params, q [Dq], k [Dk]) -> logit``, and ``per_head`` says that leaves of
    ``score_params`` have a leading axis of heads.

    >>> q, k, v = np.eye(2), np.array([[np.log(3.0), 0.0], [0.0, 0.0]]), np.array([[4.0], [0.0]])
    >>> attention(q, k, v, scale=1.0)[0].round(6)[:, 0].tolist()
    [3.0, 2.0]
    """
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    if query.ndim == 2:
        options: Any = dict(score=score, score_params=score_params, per_head=per_head, scale=scale)
        context, weights, lse = attention(
            query[:, None],
            key[:, None],
            value[:, None],
            bias=bias,
            mask=mask,
            softcap=softcap,
            **options,
        )
        return context[:, 0], weights[0], lse[0]
    batch, (T, N) = query.shape[:-3], query.shape[-3:-1]
    S, K = key.shape[-3:-1]
    full = (*batch, N, T, S)
    bias = np.broadcast_to(np.asarray(0.0 if bias is None else bias, np.float64), full)
    mask = np.broadcast_to(np.asarray(True if mask is None else mask), full)
    context = np.zeros((*batch, T, N, value.shape[-1]))
    weights, lse = np.zeros(full), np.full(full[:-1], -np.inf)
    for b in np.ndindex(*batch):
        for n in range(N):
            group = n // (N // K)
            params = score_params
            if per_head:
                params = {name: np.asarray(leaf)[n] for name, leaf in score_params.items()}
            for t in range(T):
                logits = {}
                for s in range(S):
                    if mask[b + (n, t, s)] and bias[b + (n, t, s)] > -np.inf:
                        raw = _scaled(
                            score, params, query[b + (t, n)], key[b + (s, group)], scale, softcap
                        )
                        logits[s] = raw + bias[b + (n, t, s)]
                if not logits:
                    continue
                top = max(logits.values())
                total = math.fsum(math.exp(x - top) for x in logits.values())
                lse[b + (n, t)] = top + math.log(total)
                for s, x in logits.items():
                    weights[b + (n, t, s)] = math.exp(x - top) / total
                    context[b + (t, n)] += weights[b + (n, t, s)] * value[b + (s, group)]
    return context, weights, lse


def _scaled(score: Any, params: Any, q: Any, k: Any, scale: Any, softcap: float | None) -> float:
    if callable(score):
        logit, dim, default = float(score(params, q, k)), len(q), "none"
    else:
        (logit, dim), default = LOGITS[score](params, q, k), DEFAULT_SCALES[score]
    scale = default if scale is None else scale
    if isinstance(scale, str):
        scale = {"none": 1.0, "rsqrt_dim": dim**-0.5, "inverse_dim": 1.0 / dim}[scale]
    logit *= float(scale)
    return logit if softcap is None else softcap * math.tanh(logit / softcap)
