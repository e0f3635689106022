"""Scores that depend on positions or on a state."""

import math
from typing import Any

import numpy as np

from .scores import LOGITS, At, formula


@formula("location", "none")
def _location(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    total = 0.0
    for a in range(len(q)):
        total += q[a] * float(params["kernel"][a][at.j])
    return total, len(q)


@formula("local", "none")
def _local(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    content, terms = LOGITS["general"](params, q, k, at)
    window = 1 + abs(9 + float(params["width"]))
    if "v" not in params:
        p = float(at.i + (at.state or 0))
        return (content if p - window <= at.j <= p + window else -math.inf), terms
    z = 0.0
    for e in range(len(params["v"])):
        inner = sum(q[a] * float(params["predict"][a][e]) for a in range(len(q)))
        z += float(params["v"][e]) * math.tanh(inner)
    p = at.visible / (1 + math.exp(-z))
    if not p - window <= at.j <= p + window:
        return -math.inf, terms
    sigma = window / 2
    return content + math.log(math.exp(-((at.j - p) ** 2) / (2 * sigma**2))), terms


@formula("location_aware", "none")
def _location_aware(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    width, count = np.shape(params["filters"])
    features = np.zeros(count)
    for m in range(width):
        place = at.j + m - width // 2
        if at.state is not None and 0 <= place < at.keys:
            for r in range(count):
                features[r] += float(params["filters"][m][r]) * at.state[place]
    more = features @ np.asarray(params["location"], np.float64)
    return _additive_and(params, q, k, more)


@formula("coverage", "none")
def _coverage(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    read = 0.0 if at.state is None else at.state[at.j]
    return _additive_and(params, q, k, read * np.asarray(params["coverage"], np.float64))


def _additive_and(params: Any, q: Any, k: Any, more: np.ndarray) -> tuple[float, int]:
    """Additive attention with one more vector inside the tanh."""
    total = 0.0
    for e in range(len(params["v"])):
        inner = more[e] + sum(q[a] * float(params["query"][a][e]) for a in range(len(q)))
        inner += sum(k[b] * float(params["key"][b][e]) for b in range(len(k)))
        inner += float(params["bias"][e]) if "bias" in params else 0.0
        total += float(params["v"][e]) * math.tanh(inner)
    return total, len(params["v"])


@formula("synthesizer_dense", "none")
def _synthesizer_dense(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    hidden_size = len(params["in_bias"])
    total = float(params["out_bias"][at.j])
    for h in range(hidden_size):
        inner = sum(q[a] * float(params["in_kernel"][a][h]) for a in range(len(q)))
        inner += float(params["in_bias"][h])
        total += max(inner, 0.0) * float(params["out_kernel"][h][at.j])
    return total, hidden_size


@formula("synthesizer_random", "none")
def _synthesizer_random(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    return float(params["logits"][at.i + (at.state or 0)][at.j]), len(q)
