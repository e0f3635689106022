"""How large logits are: the variance of every score, for given inputs and at initialization."""

import math

import numpy as np

from attn_research.folders import unknown
from attn_research.theory._common import at_least, normal_nodes

INITS = ("glorot_normal", "glorot_uniform", "lecun_normal", "lecun_uniform")
"""Names of initializers, as in ``jax.nn.initializers``."""


def dot_variance(
    dim: int, *, query_variance: float = 1.0, key_variance: float = 1.0, scale: float = 1.0
) -> float:
    """Variance of ``scale q . k``: ``scale^2 d Var(q_i) Var(k_i)``.

    For d independent products of independent entries of mean 0: variances of products multiply,
    variances of sums add. Vaswani et al. 2017, "Attention Is All You Need", footnote 4.

    >>> dot_variance(64), dot_variance(64, scale=64**-0.5), dot_variance(64, scale=1 / 64)
    (64.0, 1.0, 0.015625)
    """
    at_least(1, dim=dim)
    at_least(0, query_variance=query_variance, key_variance=key_variance)
    return float(scale**2 * dim * query_variance * key_variance)


def cosine_variance(dim: int, *, scale: float = 1.0) -> float:
    """Variance of ``scale cos(q, k)``, q of any isotropic distribution: ``scale^2 / d``.

    ``u . w`` for a fixed unit vector u is distributed as an entry of w, and the squares of the d
    entries of a unit vector sum to 1. So cosines need a scale near sqrt(d) to select anything.
    (Cai, Fan, Jiang 2013, "Distributions of Angles in Random Packing on Spheres".)

    >>> cosine_variance(64), cosine_variance(64, scale=8)
    (0.015625, 1.0)
    """
    at_least(1, dim=dim)
    return float(scale**2 / dim)


def kernel_variance(init: str, fan_in: int, fan_out: int) -> float:
    """Variance of the entries of a kernel ``[fan_in, fan_out]``; ``init`` is one of ``INITS``.

    LeCun, Bottou, Orr, Mueller 1998, "Efficient BackProp": 1 / fan_in. Glorot, Bengio 2010,
    "Understanding the Difficulty of Training Deep Feedforward Neural Networks": 2 / (fan_in +
    fan_out). Normal and uniform have the same.

    >>> kernel_variance("lecun_normal", 512, 64), kernel_variance("glorot_uniform", 192, 64)
    (0.001953125, 0.0078125)
    """
    at_least(1, fan_in=fan_in, fan_out=fan_out)
    if init not in INITS:
        raise ValueError(unknown("init", init, INITS))
    return 1 / fan_in if init.startswith("lecun") else 2 / (fan_in + fan_out)


def projected_dot_variance(
    query_dim: int,
    key_dim: int,
    dim: int,
    *,
    fan_out: int | None = None,
    init: str = "lecun_normal",
    scale: float = 1.0,
) -> float:
    """Variance of ``scale (W_q x) . (W_k y)`` at initialization, d = ``dim`` terms of one head.

    ``scale^2 d (Dq Var W_q) (Dk Var W_k)``: entries of W_q x have second moment ``|x|^2 Var W_q``,
    two of them are uncorrelated, and E |x|^2 = Dq. x and y have independent entries of mean 0 and
    variance 1. Only E |x|^2 |y|^2 = Dq Dk is used, so it also holds for layer-normalized inputs,
    however dependent, y = x included.

    ``fan_out`` is that of the kernels: ``dim`` (default) for one head, heads * dim in a module of
    more, 3 * heads * dim where one kernel makes queries, keys and values. LeCun gives d, as for
    plain unit vectors; Glorot less or more, here a quarter, for fan_in = 512 = heads * dim:

    >>> projected_dot_variance(512, 512, 64, fan_out=512, init="glorot_uniform")
    64.0
    >>> projected_dot_variance(512, 512, 64, fan_out=3 * 512, init="glorot_uniform")
    16.0
    >>> round(projected_dot_variance(512, 512, 64, init="glorot_uniform"), 1)  # one head
    202.3
    """
    at_least(1, query_dim=query_dim, key_dim=key_dim, dim=dim)
    fan_out = dim if fan_out is None else fan_out
    gains = [size * kernel_variance(init, size, fan_out) for size in (query_dim, key_dim)]
    return float(scale**2 * dim * gains[0] * gains[1])


def general_variance(
    query_dim: int, key_dim: int, *, init: str = "lecun_normal", scale: float = 1.0
) -> float:
    """Variance of ``scale q^T W k`` at initialization: ``scale^2 Dq Dk Var(W)``.

    A sum of Dq Dk uncorrelated terms; fan_in is Dk, as W applies to k. q and k as in
    ``projected_dot_variance``. LeCun gives Dq, the variance of a plain dot.

    >>> general_variance(64, 256), general_variance(64, 64, init="glorot_normal")
    (64.0, 64.0)
    """
    at_least(1, query_dim=query_dim, key_dim=key_dim)
    return scale**2 * query_dim * key_dim * kernel_variance(init, key_dim, query_dim)


def tanh_second_moment(std: float) -> float:
    """``E tanh^2(z)``, z ~ N(0, std^2): std^2 for small std, ``1 - sqrt(2 / pi) / std`` for large.

    By the trapezoidal rule, whose error for analytic integrands over the whole line is
    ``exp(-pi^2 / step)``, here below 1e-16 (Trefethen, Weideman 2014, "The Exponentially Convergent
    Trapezoidal Rule"); Gauss-Hermite needs ever more nodes as std grows.

    >>> [round(tanh_second_moment(std), 4) for std in (0.1, 1.0, 2**0.5, 10.0)]
    [0.0098, 0.3943, 0.52, 0.9205]
    """
    at_least(0, std=std)
    if std <= 1:
        x, weights = normal_nodes(0.2)
        return float(weights @ np.tanh(std * x) ** 2)
    z = np.arange(-100, 101) * 0.2  # 1 - tanh^2 = cosh^-2 is gone where |z| > 20
    density = np.exp(-((z / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi))
    return 1 - float(0.2 * density @ np.cosh(z) ** -2)


def additive_variance(v_norm: float, std: float) -> float:
    """Variance of Bahdanau's ``v . tanh(a + b)``: ``|v|^2 E tanh^2(z)``, z ~ N(0, std^2).

    For fixed v and d uncorrelated units ``a_i + b_i`` of standard deviation ``std`` (tanh is odd:
    their mean is 0). At most |v|^2, and the same for every d if |v| is: which is why additive
    attention does not need 1/sqrt(d) (Britz et al. 2017 find it ahead of the unscaled dot at large
    d). With ``ar.init_score("additive")`` and unit variance inputs E |v|^2 = 1, std = sqrt(2).

    >>> round(additive_variance(1.0, 2**0.5), 4), round(additive_variance(2.0, 2**0.5), 4)
    (0.52, 2.0799)
    """
    at_least(0, v_norm=v_norm)
    return v_norm**2 * tanh_second_moment(std)
