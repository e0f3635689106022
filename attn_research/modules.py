"""Multi-head attention modules for flax.linen, with any score.

Their parameters are those of ``flax.linen.MultiHeadDotProductAttention``: ``query``, ``key``,
``value`` (kernels ``[features, N, D]``) and ``out`` (``[N, D, features]``), so that its checkpoints
load; with ``score="dot"`` the outputs agree too. A score that has parameters adds an entry
``score``, with a leading axis of N heads.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attn_research.attend import attend
from attn_research.masks import Mask
from attn_research.params import PerHead, init_score


class _MultiHead(nn.Module):
    num_heads: int
    qkv_features: int | None = None
    out_features: int | None = None
    score: Any = "dot"
    score_options: Any = None
    scale: Any = None
    normalizer: str = "softmax"
    softcap: float | None = None
    implementation: str | None = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Callable[..., Any] = nn.initializers.lecun_normal()
    out_kernel_init: Callable[..., Any] | None = None
    bias_init: Callable[..., Any] = nn.initializers.zeros_init()
    out_bias_init: Callable[..., Any] | None = None
    use_bias: bool = True

    def _attend(self, x_q: jax.Array, x_kv: jax.Array, mask: Any, bias: Any) -> jax.Array:
        for name, x in (("x_q", x_q), ("x_kv", x_kv)):
            if jnp.ndim(x) < 2:
                raise ValueError(f"{name} must be [..., length, features]: got {jnp.shape(x)}")
        width = self.qkv_features or x_q.shape[-1]
        if self.num_heads < 1 or width % self.num_heads:
            given = "qkv_features" if self.qkv_features else "qkv_features (here those of x_q)"
            raise ValueError(
                f"{given} must be a multiple of num_heads: {width} features, "
                f"{self.num_heads} heads; qkv_features={self._near(width)} would work"
            )
        head_dim = width // self.num_heads

        def dense(name: str, x: jax.Array) -> jax.Array:
            return nn.DenseGeneral(
                features=(self.num_heads, head_dim),
                use_bias=self.use_bias,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
                precision=self.precision,
                kernel_init=self.kernel_init,
                bias_init=self.bias_init,
                name=name,
            )(x)

        query, key, value = dense("query", x_q), dense("key", x_kv), dense("value", x_kv)
        if mask is not None and not isinstance(mask, Mask) and hasattr(mask, "dtype"):
            mask = mask != 0  # flax.linen.make_causal_mask and its like return 0. and 1.
        context = attend(
            query,
            key,
            value,
            score=self.score,
            score_params=self._score_params(head_dim),
            scale=self.scale,
            bias=bias,
            mask=mask,
            normalizer=self.normalizer,
            softcap=self.softcap,
            implementation=self.implementation,
        )
        return nn.DenseGeneral(
            features=self.out_features or x_q.shape[-1],
            axis=(-2, -1),
            use_bias=self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=self.out_kernel_init or self.kernel_init,
            bias_init=self.out_bias_init or self.bias_init,
            name="out",
        )(context)

    def _score_params(self, head_dim: int) -> Any:
        if callable(self.score):
            if self.score_options:
                raise ValueError("score_options are for named scores: score is a function")
            return None

        def init(rng: jax.Array) -> Any:
            options = dict(self.score_options or {})
            drawn = init_score(self.score, rng, head_dim, head_dim, self.num_heads, **options)
            return jax.tree.map(lambda leaf: leaf.astype(self.param_dtype), drawn.params)

        if not jax.eval_shape(init, jax.random.key(0)):
            return None
        return PerHead(self.param("score", init))

    def _near(self, width: int) -> int:
        heads = max(self.num_heads, 1)
        return max(round(width / heads), 1) * heads


class SelfAttention(_MultiHead):
    """Multi-head self-attention: learned W_Q, W_K, W_V and output projection, any score.

    Attributes:
      num_heads: N.
      qkv_features: width of query, key and value, all heads together; default: that of x.
      out_features: width of the result; default: that of x.
      score: as for ``attend``: a name, or a function (then without parameters of its own).
      score_options: options of ``init_score``, such as ``{"dim": 32}``.
      scale, normalizer, softcap, implementation: as for ``attend``.
      dtype: of the computation; default: that of x and the parameters.
      param_dtype, precision, kernel_init, out_kernel_init, bias_init, out_bias_init, use_bias: as
        in ``flax.linen.MultiHeadDotProductAttention``.

    >>> x = jnp.ones((2, 5, 8))
    >>> layer = SelfAttention(num_heads=4, score="additive")
    >>> variables = layer.init(jax.random.key(0), x)
    >>> variables["params"]["score"]["v"].shape
    (4, 2)
    >>> layer.apply(variables, x).shape
    (2, 5, 8)

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """

    @nn.compact
    def __call__(self, x: jax.Array, *, mask: Any = None, bias: Any = None) -> jax.Array:
        """``x [..., T, features]`` -> ``[..., T, out_features]``.

        ``mask`` and ``bias`` are those of ``attend``, broadcastable to ``[..., N, T, T]``; as in
        Flax, an array of numbers is also taken for a mask, visible where it is not 0.
        """
        return self._attend(x, x, mask, bias)


class CrossAttention(_MultiHead):
    """Multi-head attention of one sequence to another; attributes as in ``SelfAttention``.

    >>> layer = CrossAttention(num_heads=2, qkv_features=16)
    >>> x_q, x_kv = jnp.ones((2, 3, 8)), jnp.ones((2, 5, 12))
    >>> layer.init_with_output(jax.random.key(0), x_q, x_kv)[0].shape
    (2, 3, 8)
    """

    @nn.compact
    def __call__(
        self, x_q: jax.Array, x_kv: jax.Array, *, mask: Any = None, bias: Any = None
    ) -> jax.Array:
        """``x_q [..., T, features]``, ``x_kv [..., S, other_features]`` -> ``[..., T, out]``."""
        return self._attend(x_q, x_kv, mask, bias)
