"""Feature maps of linear attention: a kernel ``phi(q) . phi(k)`` in the place of ``exp(q . k)``.

A feature map takes ``[..., D]`` to ``[..., F]``. Those here have positive features of which the
logarithms are at hand, and ``linear_attention`` computes with these: no feature overflows, and none
that matters vanishes.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attn_research.folders import unknown
from attn_research.numerics import project, wide


def elu_plus_one(x: jax.Array) -> jax.Array:
    """``elu(x) + 1``: ``x + 1`` above 0, ``exp(x)`` below; D features.

    Katharopoulos, Vyas, Pappas, Fleuret 2020, "Transformers are RNNs: Fast Autoregressive
    Transformers with Linear Attention", equation 7.

    >>> print(elu_plus_one(jnp.array([-1.0, 0.0, 2.0])))
    [0.36787945 1.         3.        ]
    """
    x = jnp.asarray(x)
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x)))


def random_features(
    key: jax.Array, dim: int, num_features: int, orthogonal: bool = True, dtype: Any = jnp.float32
) -> jax.Array:
    """Directions ``[num_features, dim]`` for ``Performer``, each of them N(0, I).

    ``orthogonal`` makes each ``dim`` of them orthogonal to one another, with lengths as those of
    independent ones: the estimate stays unbiased, and its variance is smaller. Choromanski et al.
    2021, "Rethinking Attention with Performers", section 2.4.

    >>> w = random_features(jax.random.key(0), 4, 6)
    >>> w.shape, bool(abs(w[0] @ w[1]) < 1e-5), bool(abs(w[0] @ w[4]) < 1e-5)
    ((6, 4), True, False)
    """
    for name, size in (("dim", dim), ("num_features", num_features)):
        if isinstance(size, bool) or size != int(size) or size < 1:
            raise ValueError(f"{name} must be a positive integer: got {size}")
    for_lengths, for_directions = jax.random.split(key)
    normal = jax.random.normal(for_lengths, (num_features, dim), dtype)
    if not orthogonal:
        return normal
    blocks = jax.random.orthogonal(for_directions, dim, (math.ceil(num_features / dim),), dtype)
    directions = blocks.reshape(-1, dim)[:num_features]
    return directions * jnp.linalg.norm(normal, axis=-1, keepdims=True)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Performer:
    """Positive random features, with which linear attention estimates softmax attention (FAVOR+).

    ``phi(x) = exp(w . y - |y|^2 / 2) / sqrt(m)`` for each of m directions w, ``y = sqrt(scale) x``:
    then ``E phi(q) . phi(k) = exp(scale q . k)``. Choromanski et al. 2021, "Rethinking Attention
    with Performers", lemma 1.

    Attributes:
      projection: ``[m, D]``, from ``random_features``.
      scale: None is 1/sqrt(D), as that of ``attend``; or a number above 0, or a traced scalar.

    >>> phi = Performer(random_features(jax.random.key(0), 2, 4096), scale=1.0)
    >>> q, k = jnp.array([0.5, 0.5]), jnp.array([0.5, -0.5])
    >>> print((phi(q) @ phi(k)).round(2))  # exp(0) = 1
    1.04
    """

    projection: Any
    scale: Any = None

    def __call__(self, x: jax.Array) -> jax.Array:
        """``phi(x) [..., m]`` of ``x [..., D]``, as it is: this may overflow."""
        log = self._exponent(x) - self._half_square(x)
        return jnp.exp(log) * jnp.shape(self.projection)[0] ** -0.5

    def _scale(self) -> Any:
        return jnp.shape(self.projection)[-1] ** -0.5 if self.scale is None else self.scale

    def _exponent(self, x: jax.Array) -> jax.Array:
        root = jnp.sqrt(jnp.asarray(self._scale(), x.dtype))
        return project(x, root * jnp.asarray(self.projection).T)

    def _half_square(self, x: jax.Array) -> jax.Array:
        return jnp.asarray(self._scale(), x.dtype) * jnp.square(x).sum(-1, keepdims=True) / 2


class Features(NamedTuple):
    """Features ``[..., F]`` as ``factor * exp(log)``, up to what cancels in linear attention.

    A map whose logarithm is known has no ``factor``. Of any other, ``log [..., 1]`` is that of its
    largest feature, a constant for differentiation, and ``factor`` lies within [-1, 1]. (One for
    each feature would lose the derivative of features that are 0.)
    """

    log: jax.Array
    factor: jax.Array | None


FeatureMap = Callable[[jax.Array], jax.Array]


def resolve(feature_map: Any) -> FeatureMap:
    """The function that is meant; raises if it is none."""
    if isinstance(feature_map, str):
        if feature_map != "elu_plus_one":
            raise ValueError(
                unknown("feature_map", feature_map, ["elu_plus_one"])
                + ", or a function, or ar.Performer(ar.random_features(...))"
            )
        return elu_plus_one
    if not callable(feature_map):
        raise TypeError(
            "feature_map must be a name, a function or ar.Performer: got "
            f"{type(feature_map).__name__}"
        )
    if isinstance(feature_map, Performer):
        shape, scale = jnp.shape(feature_map.projection), feature_map.scale
        if len(shape) != 2 or not shape[0]:
            raise ValueError(f"projection of Performer must be [m, D]: got shape {shape}")
        if np.ndim(scale) or isinstance(scale, int | float) and not 0 < scale < math.inf:
            raise ValueError(f"scale of Performer must be a number above 0: got {scale}")
    return feature_map


def count(feature_map: FeatureMap, name: str, dim: int) -> int:
    """F for the ``dim`` features of the argument ``name``; raises if the map does not fit."""
    if isinstance(feature_map, Performer):
        m, needed = jnp.shape(feature_map.projection)
        if dim != needed:
            raise ValueError(
                f"Performer's projection is for {needed} features: {name} has {dim}; use "
                f"ar.random_features(rng, {dim}, {m})"
            )
        return m
    out = jax.eval_shape(feature_map, jax.ShapeDtypeStruct((3, 2, dim), jnp.float32))
    if getattr(out, "ndim", 0) != 3 or out.shape[:-1] != (3, 2) or not out.shape[-1]:
        raise ValueError(
            f"feature_map must take [..., D] to [..., F]: for {name} it made [3, 2, {dim}] into "
            f"{getattr(out, 'shape', out)}"
        )
    return out.shape[-1]


def features(feature_map: FeatureMap, x: jax.Array, of_keys: bool) -> Features:
    """The features of ``x [..., D]``, finite for finite x."""
    if isinstance(feature_map, Performer):
        log = feature_map._exponent(x)
        if of_keys:  # in a query it is one factor of the row, which cancels
            log = log - feature_map._half_square(x)
    elif feature_map is elu_plus_one:
        log = jnp.where(x > 0, jnp.log1p(jnp.where(x > 0, x, 0)), x)
    else:
        out = feature_map(x)
        out = out.astype(wide(out.dtype, x.dtype))
        top = jax.lax.stop_gradient(jnp.max(jnp.abs(out), -1, keepdims=True))
        top = jnp.where(top == 0, 1, top)
        return Features(jnp.log(top), out / top)
    # so that two of them add up to what is finite, and so does their difference to a third sum
    limit = float(jnp.finfo(log.dtype).max) / 8
    return Features(jnp.clip(log, -limit, limit), None)
