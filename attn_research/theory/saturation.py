"""What softmax makes of n iid logits ``z_j ~ N(0, std^2)``; p = softmax(z), J its Jacobian.

Exact for any n and std, by quadrature in one dimension, and the limits that explain it. This is
the random energy model of physics (Derrida 1981) with std in the place of the inverse temperature.

>>> n = 64
>>> for std in (0.5, 1, 2, 4, 8, 16, 32):  # sqrt(2 ln n) = 2.88
...     exact, limit = expected_trace(n, std), saturated_trace(n, std)
...     print(std, round(exact, 3), round(limit, 3), round(expected_entropy(n, std), 3))
0.5 0.98 4.687 4.037
1 0.961 2.344 3.685
2 0.839 1.172 2.643
4 0.542 0.586 1.308
8 0.288 0.293 0.576
16 0.146 0.146 0.264
32 0.073 0.073 0.126
"""

import math

import numpy as np

from attn_research.theory._common import at_least, normal_nodes


def stein_mean_logit(mean_trace: float, std: float) -> float:
    """Stein's identity: ``E sum_i p_i z_i = std^2 E[1 - sum_i p_i^2]``, here from ``E tr J``.

    ``E z_i f(z) = std^2 E df/dz_i`` (integrate by parts; Stein 1981, "Estimation of the Mean of a
    Multivariate Normal Distribution"), with f = p_i, and ``sum_i dp_i/dz_i = tr J``. So the mean
    trace is read off the mean logit that is attended to, and the other way round.

    >>> stein_mean_logit(0.75, 2.0)
    3.0
    """
    at_least(0, mean_trace=mean_trace, std=std)
    return std**2 * mean_trace


def expected_max_of_normals(n: float) -> float:
    """Expected maximum of n iid standard normals, 1 <= n <= 1e15; relative error below 1e-12.

    ``n (n - 1) int phi(x)^2 Phi(x)^(n - 2) dx``: integrate ``int x n phi Phi^(n - 1)`` by parts
    (David, Nagaraja 2003, "Order Statistics", section 3.1). About sqrt(2 ln n), from below. The
    integral is also the density at 0 of the gap between the two largest: hence the laws below.

    >>> [round(expected_max_of_normals(n), 6) for n in (1, 2, 10, 1000, 10**6)]
    [0.0, 0.56419, 1.538753, 3.241436, 4.862897]
    """
    at_least(1, n=n)
    if n > 1e15:
        raise ValueError(f"n must be at most 1e15: got {n}")
    x, weights = normal_nodes(1 / 64)  # weights = phi(x) dx
    tail = np.array([math.erfc(abs(t) / math.sqrt(2)) / 2 for t in x])
    log_cdf = np.where(x < 0, np.log(tail), np.log1p(-tail))
    density = np.exp(-(x**2) / 2 + (n - 2) * log_cdf) / math.sqrt(2 * math.pi)
    return float(n * (n - 1) * (weights @ density))


def saturated_trace(n: float, std: float) -> float:
    """``E tr J -> E[max of n normals] / std`` for std well above sqrt(2 ln n).

    By Stein ``std^2 E tr J = E sum p z``, which tends to ``E max z = std E[max]``. What is left is
    from pairs: the gap g of the two largest logits has density E[max] / std at 0 (see
    ``expected_max_of_normals``), and ``max - sum p z = g / (1 + e^g)`` has integral pi^2 / 12: the
    relative error tends to ``(pi^2 / 12) / std^2``. So only rows whose two best keys nearly tie
    pass gradient on: the mean falls as 1 / std, the median exponentially.

    >>> round(saturated_trace(64, 8.0), 4), round(expected_trace(64, 8.0), 4)
    (0.293, 0.2882)
    """
    at_least(1, n=n)
    _positive(std)
    return expected_max_of_normals(n) / std


def saturated_entropy(n: float, std: float) -> float:
    """``E H(p) -> (pi^2 / 6) E[max of n normals] / std`` nats for large std.

    As for ``saturated_trace``: pairs, and the entropy of (1, e^-g) / (1 + e^-g) has integral
    pi^2 / 6 over g > 0.

    >>> round(saturated_entropy(64, 32.0), 4), round(expected_entropy(64, 32.0), 4)
    (0.1205, 0.1261)
    """
    return math.pi**2 / 6 * saturated_trace(n, std)


def unsaturated_entropy(n: float, std: float) -> float:
    """``E H(p) = ln n - std^2 / 2 (1 - 1 / n) + O(std^4)`` nats, for std well below 1.

    ``H = ln n - Var(z) / 2 + O(z^3)``, Var over the keys, divided by n: its mean is
    ``std^2 (1 - 1 / n)``. Odd moments of the logits are 0.

    >>> round(unsaturated_entropy(64, 0.5), 4), round(expected_entropy(64, 0.5), 4)
    (4.0358, 4.0367)
    """
    at_least(1, n=n)
    at_least(0, std=std)
    return math.log(n) - std**2 / 2 * (1 - 1 / n)


def freezing_std(n: float) -> float:
    """sqrt(2 ln n): where softmax over many keys turns from averaging to selecting.

    As n grows at a fixed ``std / sqrt(2 ln n)``: below 1, ``E H = ln n - std^2 / 2`` to leading
    order (the law of large numbers holds for sum exp z) and E tr J -> 1; above 1, the entropy
    stays finite and ``E tr J -> sqrt(2 ln n) / std``, as of ``saturated_trace``. Derrida 1981,
    "Random-Energy Model"; Mezard, Montanari 2009, "Information, Physics, and Computation",
    chapter 5.

    >>> [round(freezing_std(n), 2) for n in (2, 64, 1024, 10**6)]
    [1.18, 2.88, 3.72, 5.26]
    """
    at_least(1, n=n)
    return math.sqrt(2 * math.log(n))


def expected_trace(n: int, std: float) -> float:
    """``E tr J = 1 - E sum p^2``, absolute error below 1e-12.

    ``1 / (sum e^z)^2 = int t exp(-t sum e^z) dt`` makes the keys independent: with t = e^u,
    ``E sum p^2 = n int E[e^(2(z+u)) exp(-e^(z+u))] (E exp(-e^(z+u)))^(n-1) du``.

    >>> [round(expected_trace(64, std), 4) for std in (0.0, 1.0, 4.0, 16.0)]
    [0.9844, 0.9612, 0.5418, 0.146]
    """
    _, step, squares, log_others = _laplace(n, std)
    return max(0.0, 1 - n * step * float((squares * np.exp((n - 1) * log_others)).sum()))


def expected_log_sum_exp(n: int, std: float) -> float:
    """``E log sum exp z``, by the Gumbel trick: the mean of max_j (z_j + g_j), minus Euler's gamma.

    For standard Gumbel g (Gumbel 1954), ``P(z + g < -u) = E exp(-e^(z+u))``; the mean of a maximum
    is the integral of its distribution function. Absolute error about 1e-14 (1 + ln n + std).

    >>> [round(expected_log_sum_exp(64, std), 4) for std in (0.0, 1.0, 16.0)]
    [4.1589, 4.6459, 37.6278]
    """
    u, step, _, log_cdf = _laplace(n, std)
    cdf = np.exp(n * log_cdf)  # 1 at u[0]: the half weight of an end
    return -float(u[0] + step * (cdf.sum() - cdf[0] / 2)) - np.euler_gamma


def expected_entropy(n: int, std: float) -> float:
    """``E H(p) = E log sum exp z - E sum p z`` nats, the latter by Stein from ``expected_trace``.

    From ln n at std 0 (uniform) to 0. Absolute error about 1e-14 (1 + ln n + std^2).

    >>> [round(expected_entropy(64, std), 4) for std in (0.0, 1.0, 4.0, 16.0)]
    [4.1589, 3.6847, 1.3081, 0.264]
    """
    attended = stein_mean_logit(expected_trace(n, std), std)
    return max(0.0, expected_log_sum_exp(n, std) - attended)


def _laplace(n: int, std: float) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
    """Nodes u and their distance, ``E[e^(2(z+u)) exp(-e^(z+u))]``, ``log E exp(-e^(z+u))``.

    The integrands are analytic for |Im(z + u)| < pi / 2; those over u, blurred by std, for wider.
    """
    at_least(1, n=n)
    at_least(0, std=std)
    x, weights = normal_nodes(0.25 / max(1, std))
    step, far = max(0.25, std / 32), 36 + math.log(n)
    low = -far - std * (9 + freezing_std(n))  # exp(-e^u sum e^z) is 1 below this u
    u = low + step * np.arange(math.ceil((5 + 9 * std - low) / step))
    squares, logs = np.empty_like(u), np.empty_like(u)
    # exp(-e^w) is 1 below w = -far, 0 above 7
    windows = np.searchsorted(std * x, np.stack([-far - u, 7 - u], -1))
    for k, (i, j) in enumerate(windows):
        t = np.exp(std * x[i:j] + u[k])
        squares[k] = (weights[i:j] * t**2 * np.exp(-t)).sum()
        gone = weights[j:].sum() - (weights[i:j] * np.expm1(-t)).sum()
        kept = weights[:i].sum() + (weights[i:j] * np.exp(-t)).sum()
        logs[k] = math.log1p(-gone) if gone < 0.5 else math.log(kept + 1e-300)
    return u, step, squares, logs


def _positive(std: float) -> None:
    if not 0 < std < math.inf:
        raise ValueError(f"std must be a finite number above 0: got {std}")
