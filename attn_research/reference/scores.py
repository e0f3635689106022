"""The formula of each score for one query and one key, and its scale by default."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class At(NamedTuple):
    """Where the pair is: positions, the number of keys that the query sees and of all keys,
    and the state of this head."""

    i: int
    j: int
    visible: int
    keys: int
    state: Any


# (params, q [Dq], k [Dk], at) -> (logit, number of terms in the pairwise sum)
LOGITS: dict[str, Callable[..., tuple[float, int]]] = {}
DEFAULT_SCALES: dict[str, str] = {}


def formula(name: str, default_scale: str) -> Callable[..., Any]:
    """Registers the formula of a score."""

    def add(f: Callable[..., Any]) -> Callable[..., Any]:
        LOGITS[name] = f
        DEFAULT_SCALES[name] = default_scale
        return f

    return add


@formula("dot", "rsqrt_dim")
def _dot(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    return sum(float(a) * float(b) for a, b in zip(q, k, strict=True)), len(q)


@formula("general", "none")
def _general(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    kernel = np.asarray(params["kernel"], np.float64)
    total = 0.0
    for a in range(len(q)):
        for b in range(len(k)):
            total += q[a] * kernel[a, b] * k[b]
    return total, len(q)


@formula("projected_dot", "none")
def _projected_dot(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    left = np.asarray(params["query"], np.float64).T @ q
    right = np.asarray(params["key"], np.float64).T @ k
    return float(left @ right), len(left)


@formula("additive", "none")
def _additive(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    v = np.asarray(params["v"], np.float64)
    total = 0.0
    for e in range(len(v)):
        inner = sum(q[a] * float(params["query"][a][e]) for a in range(len(q)))
        inner += sum(k[b] * float(params["key"][b][e]) for b in range(len(k)))
        if "bias" in params:
            inner += float(params["bias"][e])
        total += v[e] * math.tanh(inner)
    return total, len(v)
