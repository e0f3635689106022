"""What SelfAttention and CrossAttention share: attributes, their checks, parameters, the call."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attn_research import params as parameters
from attn_research import scaling, scores
from attn_research.attend import attend
from attn_research.masks import Mask
from attn_research.params import PerHead, init_score
from attn_research.talking_heads import TalkingHeads


class MultiHead(nn.Module):
    """Base of the modules; attributes as in ``SelfAttention``."""

    num_heads: int
    qkv_features: int | None = None
    out_features: int | None = None
    score: Any = "dot"
    score_options: Any = None
    scale: Any = None
    normalizer: Any = "softmax"
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
    num_kv_heads: int | None = None
    score_init: Callable[..., Any] | None = None
    talking_heads: bool = False
    dropout_rate: float = 0.0
    deterministic: bool | None = None
    decode: bool = False

    def _head_dim(self, **inputs: jax.Array) -> int:
        """The features of one head; raises if the attributes or the inputs are wrong."""
        for name, x in inputs.items():
            if jnp.ndim(x) < 2:
                raise ValueError(f"{name} must be [..., length, features]: got {jnp.shape(x)}")
        queries, x_q = next(iter(inputs.items()))
        width = self.qkv_features or jnp.shape(x_q)[-1]
        if self.num_heads < 1 or width % self.num_heads:
            given = "qkv_features" + ("" if self.qkv_features else f" (here those of {queries})")
            heads = max(self.num_heads, 1)
            near = max(round(width / heads), 1) * heads
            raise ValueError(
                f"{given} must be a multiple of num_heads: {width} features, {self.num_heads} "
                f"heads; qkv_features={near} would work"
            )
        kv_heads = self.num_kv_heads
        if kv_heads is not None and (kv_heads < 1 or self.num_heads % kv_heads):
            fitting = [n for n in range(1, self.num_heads + 1) if self.num_heads % n == 0]
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads: {self.num_heads} heads, "
                f"num_kv_heads={kv_heads}; {', '.join(map(str, fitting))} would work"
            )
        if not 0 <= self.dropout_rate < 1:
            raise ValueError(f"dropout_rate must be in [0, 1): got {self.dropout_rate}")
        if callable(self.score) and self.score_options:
            raise ValueError("score_options are for named scores: score is a function")
        if self.score_init is not None and not callable(self.score):
            raise ValueError(
                f"score_init is for a score that is a function: score is {self.score!r}, whose "
                "parameters ar.init_score draws; score_options are its options"
            )
        return width // self.num_heads

    def _project(self, name: str, x: jax.Array, head_dim: int) -> jax.Array:
        """``x [..., L, features]`` -> ``[..., L, heads, D]``."""
        heads = self.num_heads if name == "query" else self.num_kv_heads or self.num_heads
        return nn.DenseGeneral(
            features=(heads, head_dim),
            use_bias=self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            name=name,
        )(x)

    def _attend(
        self,
        query: jax.Array,
        key: Any,
        value: jax.Array,
        score_params: Any,
        deterministic: bool | None,
        **call: Any,
    ) -> jax.Array:
        """``attend`` with the options of the module and of this call."""
        rate, rng = self._dropout(deterministic)
        scale, talking_heads = self._scale(query, score_params), self._talking_heads()
        try:
            return attend(
                query,
                key,
                value,
                score=self.score,
                score_params=score_params,
                scale=scale,
                normalizer=self.normalizer,
                softcap=self.softcap,
                talking_heads=talking_heads,
                dropout_rate=rate,
                dropout_key=rng,
                implementation=self.implementation,
                **call,
            )
        except (TypeError, AttributeError) as error:
            if callable(self.score) and self.score_init is None and "None" in str(error):
                error.add_note("score got None for parameters: score_init=... draws them")
            raise

    def _out(self, context: jax.Array, features: int) -> jax.Array:
        """``context [..., T, N, D]`` -> ``[..., T, out_features or features]``."""
        return nn.DenseGeneral(
            features=self.out_features or features,
            axis=(-2, -1),
            use_bias=self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=self.out_kernel_init or self.kernel_init,
            bias_init=self.out_bias_init or self.bias_init,
            name="out",
        )(context)

    def _score_params(self, head_dim: int) -> PerHead | None:
        if callable(self.score) and self.score_init is None:
            return None

        def init(rng: jax.Array) -> Any:
            if self.score_init is None:
                options = dict(self.score_options or {})
                drawn = init_score(self.score, rng, head_dim, head_dim, self.num_heads, **options)
                drawn = drawn.params
            else:
                one = self.score_init
                rngs = jax.random.split(rng, self.num_heads)
                drawn = jax.vmap(lambda rng: one(rng, head_dim, head_dim))(rngs)
            return jax.tree.map(lambda leaf: leaf.astype(self.param_dtype), drawn)

        if not jax.tree.leaves(jax.eval_shape(init, jax.random.key(0))):
            return None
        return PerHead(self.param("score", init))

    def _scale(self, query: jax.Array, score_params: Any) -> Any:
        if not isinstance(self.scale, str) or self.scale != "learned":
            return self.scale

        def transform(query: jax.Array, score_params: Any) -> jax.Array:
            return parameters.transform(self.score, "query", score_params, query)

        named = isinstance(self.score, str)
        default = scores.get(self.score).DEFAULT_SCALE if named else "none"
        dim = jax.eval_shape(transform, query, score_params).shape[-1]
        init = nn.initializers.constant(scaling.resolve(None, default, dim))
        return self.param("scale", init, (self.num_heads,), self.param_dtype)

    def _talking_heads(self) -> TalkingHeads | None:
        if not self.talking_heads:
            return None

        def identity(rng: jax.Array) -> jax.Array:
            return jnp.eye(self.num_heads, dtype=self.param_dtype)

        return TalkingHeads(self.param("before", identity), self.param("after", identity))

    def _dropout(self, deterministic: bool | None) -> tuple[float, jax.Array | None]:
        """The rate to use now, and a key if it is not 0."""
        if self.dropout_rate == 0:
            return 0.0, None
        if nn.merge_param("deterministic", self.deterministic, deterministic):
            return 0.0, None
        return self.dropout_rate, self.make_rng("dropout")


def visible_where_not_zero(mask: Any) -> Any:
    """``flax.linen.make_causal_mask`` and its like return 0. and 1.; other masks stay."""
    is_array = hasattr(mask, "dtype") and not isinstance(mask, Mask)
    return mask != 0 if is_array else mask
