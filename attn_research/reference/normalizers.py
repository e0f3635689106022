"""The formula of each normalizer for the visible logits of one row."""

from collections.abc import Callable
from typing import Any

import numpy as np

# (logits [n] of the visible keys, **options of this head) -> weights [n]
NORMALIZERS: dict[str, Callable[..., np.ndarray]] = {}


def _normalizer(name: str) -> Callable[..., Any]:
    def add(f: Callable[..., Any]) -> Callable[..., Any]:
        NORMALIZERS[name] = f
        return f

    return add


@_normalizer("softmax")
def _softmax(logits: np.ndarray) -> np.ndarray:
    exps = np.exp(logits - logits.max())
    return exps / exps.sum()


@_normalizer("softmax_one")
def _softmax_one(logits: np.ndarray) -> np.ndarray:
    return _sinks(logits)


@_normalizer("sinks")
def _sinks(logits: np.ndarray, logit: float = 0.0) -> np.ndarray:
    return _softmax(np.append(logits, logit))[:-1]


@_normalizer("sigmoid")
def _sigmoid(logits: np.ndarray, bias: float | None = None) -> np.ndarray:
    x = logits + (-np.log(len(logits)) if bias is None else bias)
    return np.exp(-np.logaddexp(0, -x))


@_normalizer("relu")
def _relu(logits: np.ndarray) -> np.ndarray:
    return np.where(logits > 0, logits, 0) / len(logits)


@_normalizer("relu_squared")
def _relu_squared(logits: np.ndarray) -> np.ndarray:
    return np.where(logits > 0, logits, 0) ** 2 / len(logits)


@_normalizer("sparsemax")
def _sparsemax(logits: np.ndarray) -> np.ndarray:
    """Of the projections on the hyperplane of the k largest, the nearest that is in the simplex."""
    order = np.argsort(-logits)
    shifted = logits - logits.max()
    best, nearest = shifted, np.inf
    for k in range(1, len(logits) + 1):
        weights = np.zeros(len(logits))
        weights[order[:k]] = shifted[order[:k]] - (shifted[order[:k]].sum() - 1) / k
        distance = ((weights - shifted) ** 2).sum()
        if (weights >= 0).all() and distance < nearest:
            best, nearest = weights, distance
    return best


@_normalizer("entmax15")
def _entmax15(logits: np.ndarray) -> np.ndarray:
    """The quadratic equation of each support size; its solution that fits its support."""
    ordered = np.sort(logits / 2)[::-1]
    for k in range(1, len(logits) + 1):
        mean = ordered[:k].mean()
        inside = (1 - ((ordered[:k] - mean) ** 2).sum()) / k
        threshold = mean - np.sqrt(max(inside, 0))
        above = ordered > threshold
        if above[:k].all() and not above[k:].any():
            return np.maximum(logits / 2 - threshold, 0) ** 2
    raise AssertionError("no support fits")


@_normalizer("entmax")
def _entmax(logits: np.ndarray, alpha: float = 1.5) -> np.ndarray:
    """Bisection on the threshold, in the widest floating numbers that NumPy has."""
    if alpha == 1:
        return _softmax(logits)
    e = np.longdouble(alpha) - 1
    z = e * (logits.astype(np.longdouble) - logits.max())

    def weights(threshold: np.longdouble) -> np.ndarray:
        return np.maximum(z - threshold, 0) ** (1 / e)

    low, high = np.longdouble(-1), np.longdouble(0)
    for _ in range(100):
        middle = (low + high) / 2
        if weights(middle).sum() > 1:
            low = middle
        else:
            high = middle
    return weights(low).astype(np.float64)


@_normalizer("top_k")
def _top_k(logits: np.ndarray, k: int = 8) -> np.ndarray:
    kept = sorted(range(len(logits)), key=lambda j: (-logits[j], j))[:k]
    weights = np.zeros(len(logits))
    weights[kept] = _softmax(logits[kept])
    return weights


@_normalizer("hard")
def _hard(
    logits: np.ndarray,
    key: None = None,
    temperature: float = 1.0,
    straight_through: bool = True,
) -> np.ndarray:
    """Without a random key."""
    if not straight_through:
        return _softmax(logits / temperature)
    return np.eye(len(logits))[list(logits).index(logits.max())]
