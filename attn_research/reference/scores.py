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


@formula("normed_additive", "none")
def _normed_additive(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    v = np.asarray(params["v"], np.float64)
    length = math.sqrt(sum(x**2 for x in v))
    total = 0.0
    for e in range(len(v)):
        inner = float(params["bias"][e])
        inner += sum(q[a] * float(params["query"][a][e]) for a in range(len(q)))
        inner += sum(k[b] * float(params["key"][b][e]) for b in range(len(k)))
        total += float(params["g"]) * v[e] / length * math.tanh(inner)
    return total, len(v)


@formula("concat", "none")
def _concat(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    both, v = [*q, *k], np.asarray(params["v"], np.float64)
    total = 0.0
    for e in range(len(v)):
        inner = sum(x * float(params["kernel"][d][e]) for d, x in enumerate(both))
        total += v[e] * math.tanh(inner)
    return total, len(v)


def _cos(q: np.ndarray, k: np.ndarray) -> float:
    lengths = math.hypot(*q) * math.hypot(*k)
    return sum(a * b for a, b in zip(q, k, strict=True)) / lengths if lengths else 0.0


@formula("cosine", "none")
def _cosine(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    log_scale = float(params["log_scale"]) if params else 0.0
    return min(math.exp(log_scale), 100.0) * _cos(q, k), len(q)


@formula("qk_norm", "none")
def _qk_norm(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    return float(params["g"]) * _cos(q, k), len(q)


@formula("qk_rms_norm", "rsqrt_dim")
def _qk_rms_norm(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    q_rms = math.sqrt(sum(x**2 for x in q) / len(q) + 1e-6)
    k_rms = math.sqrt(sum(x**2 for x in k) / len(k) + 1e-6)
    total = 0.0
    for d in range(len(q)):
        gains = float(params["query_gain"][d]) * float(params["key_gain"][d])
        total += gains * (q[d] / q_rms) * (k[d] / k_rms)
    return total, len(q)


@formula("squared_distance", "none")
def _squared_distance(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    return -sum((a - b) ** 2 for a, b in zip(q, k, strict=True)), len(q)


@formula("gaussian", "none")
def _gaussian(params: Any, q: np.ndarray, k: np.ndarray, at: At) -> tuple[float, int]:
    width = math.exp(float(params["log_width"]))
    return -(math.dist(q, k) ** 2) / (2 * width**2), len(q)
