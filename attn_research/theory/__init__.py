"""When does 1/sqrt(d) matter? Closed forms about attention logits and their softmax.

1. ``variances.py``: how large logits are, for given inputs and at initialization.
2. ``saturation.py``: what softmax makes of iid normal logits of that size. The model is exact, not
   a limit, for keys of iid standard normal entries: the logits ``scale q . k_j`` of one query are
   then iid ``N(0, (scale |q|)^2)``.
3. ``jacobians.py``: what given weights do to gradients. J is the Jacobian of softmax by its logits.

For 64 keys of unit variance entries: the mean trace of J, which is 0.984 for uniform weights and 0
for one-hot ones, with and without the scale.

>>> for dim in (4, 64, 1024):
...     scaled, unscaled = (dot_variance(dim, scale=scale) ** 0.5 for scale in (dim**-0.5, 1))
...     print(dim, round(expected_trace(64, scaled), 3), round(expected_trace(64, unscaled), 3))
4 0.961 0.839
64 0.961 0.288
1024 0.961 0.073

The turn comes near a standard deviation of sqrt(2 ln n) (``freezing_std``): for unscaled unit
entries at d = 2 ln n, 8 for 64 keys. Results are floats, those of part 3 JAX arrays.
"""

from attn_research.theory.jacobians import (
    entmax_jacobian,
    jacobian_frobenius_norm,
    jacobian_spectral_bounds,
    jacobian_spectral_norm,
    jacobian_trace,
    softmax_jacobian,
    sparsemax_jacobian,
)
from attn_research.theory.saturation import (
    expected_entropy,
    expected_log_sum_exp,
    expected_max_of_normals,
    expected_trace,
    freezing_std,
    saturated_entropy,
    saturated_trace,
    stein_mean_logit,
    unsaturated_entropy,
)
from attn_research.theory.variances import (
    INITS,
    additive_variance,
    cosine_variance,
    dot_variance,
    general_variance,
    kernel_variance,
    projected_dot_variance,
    tanh_second_moment,
)

__all__ = [
    "INITS",
    "additive_variance",
    "cosine_variance",
    "dot_variance",
    "entmax_jacobian",
    "expected_entropy",
    "expected_log_sum_exp",
    "expected_max_of_normals",
    "expected_trace",
    "freezing_std",
    "general_variance",
    "jacobian_frobenius_norm",
    "jacobian_spectral_bounds",
    "jacobian_spectral_norm",
    "jacobian_trace",
    "kernel_variance",
    "projected_dot_variance",
    "saturated_entropy",
    "saturated_trace",
    "softmax_jacobian",
    "sparsemax_jacobian",
    "stein_mean_logit",
    "tanh_second_moment",
    "unsaturated_entropy",
]
