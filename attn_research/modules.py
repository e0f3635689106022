"""Multi-head attention modules for flax.linen, with any score.

Their parameters are those of ``flax.linen.MultiHeadDotProductAttention``: ``query``, ``key``,
``value`` (kernels ``[features, N, D]``) and ``out`` (``[N, D, features]``), so that its checkpoints
load; with ``score="dot"`` the outputs agree too. What else is asked for adds entries: ``score``
(the parameters of a score that has some, with a leading axis of N heads), ``scale`` (``[N]``),
``before`` and ``after`` (talking heads, ``[N, N]``).
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attn_research import scores
from attn_research.cache import KVCache
from attn_research.masks import Mask
from attn_research.multi_head import MultiHead, visible_where_not_zero
from attn_research.transformed import TransformedKeys, transform_keys


class SelfAttention(MultiHead):
    """Multi-head self-attention: learned W_Q, W_K, W_V and output projection, any score.

    Attributes:
      num_heads: N.
      num_kv_heads: K, the heads of keys and values; N, a multiple of K, unless given. 1 is
        multi-query, others below N grouped-query attention.
      qkv_features: width of the queries, N D of all heads together; default: that of x.
      out_features: width of the result; default: that of x.
      score: as for ``attend``: a name, or a function.
      score_options: options of ``init_score`` for a named score, such as ``{"dim": 32}``.
      score_init: for a function with parameters: ``f(key, query_dim, key_dim)`` draws those of one
        head.
      scale: as for ``attend``, or ``"learned"``: one factor a head, at first the score's own
        convention.
      normalizer, softcap, implementation: as for ``attend``. What else is learned is a parameter of
        the module around this one: ``scale=ar.log_n(s)``, ``normalizer=ar.normalizer("sinks",
        logit=s)``.
      talking_heads: whether logits and weights are mixed over the heads by matrices, at first the
        identity. See ``ar.TalkingHeads``.
      dropout_rate, deterministic: dropout of weights, from the rng stream "dropout", as in Flax.
      position_transform: ``f(x [..., L, H, D], positions [L])`` applied to queries and keys before
        the score, such as ``ar.positions.rope``.
      decode: incremental decoding: a call has the next t >= 1 positions, whose keys and values are
        added to the collection "cache", which ``init`` with x of the largest length L makes. A call
        equals those rows of the full causal pass.
      dtype: of the computation; default: that of x and the parameters.
      param_dtype, precision, kernel_init, out_kernel_init, bias_init, out_bias_init, use_bias: as
        in ``flax.linen.MultiHeadDotProductAttention``.

    >>> x = jnp.ones((2, 5, 8))
    >>> layer = SelfAttention(num_heads=4, score="additive")
    >>> variables = jax.jit(layer.init)(jax.random.key(0), x)
    >>> variables["params"]["score"]["v"].shape
    (4, 2)
    >>> jax.jit(layer.apply)(variables, x).shape
    (2, 5, 8)

    Decoding, three positions at once and then one:

    >>> layer = SelfAttention(num_heads=4, score="additive", decode=True)
    >>> variables = jax.jit(layer.init)(jax.random.key(0), x)
    >>> step = jax.jit(lambda variables, x: layer.apply(variables, x, mutable=["cache"]))
    >>> prompt, cache = step(variables, x[:, :3])
    >>> new, cache = step(variables | cache, x[:, 3:4])
    >>> print(new.shape, cache["cache"]["cache_index"])
    (2, 1, 8) 4

    Sources: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2; Shazeer 2019 and
    Ainslie et al. 2023 (multi-query, grouped-query).
    """

    position_transform: Callable[..., Any] | None = None

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        *,
        mask: Any = None,
        bias: Any = None,
        score_state: Any = None,
        deterministic: bool | None = None,
    ) -> jax.Array:
        """``x [..., T, features]`` -> ``[..., T, out_features]``.

        ``mask``, ``bias`` and ``score_state`` are those of ``attend``, for T keys; as in Flax, an
        array of numbers is also taken for a mask, visible where it is not 0.

        With ``decode`` there are L keys, and a causal mask always holds. ``bias``, or an array as
        mask, is then that of this call's queries, ``[..., N, t, L]``; a mask from ``ar.masks`` is
        that of the whole sequence, in each call the same as in the full pass:
        ``ar.masks.window(128, 0)``, say. More than L positions are an error, or NaN under ``jit``
        (see ``KVCache.append``).
        """
        head_dim = self._head_dim(x=x)
        query, key, value = (self._project(n, x, head_dim) for n in ("query", "key", "value"))
        mask = visible_where_not_zero(mask)
        cache = self._cache(key, value) if self.decode else None
        if self.position_transform is not None:
            positions = jnp.arange(x.shape[-2]) + (0 if cache is None else cache.length)
            query, key = (self.position_transform(y, positions) for y in (query, key))
        if cache is not None:
            mask = _rows_of(mask, cache, x.shape[-2])
            if score_state is None and scores.state_axes(self.score) == ():
                score_state = cache.length  # the position of the first query
            cache = cache.append(key, value)
            self.put_variable("cache", "cached_key", cache.key)
            self.put_variable("cache", "cached_value", cache.value)
            self.put_variable("cache", "cache_index", cache.length)
            key, value, causal = cache.key, cache.value, cache.mask(x.shape[-2])
            mask = causal if mask is None else causal & mask
        context = self._attend(
            query,
            key,
            value,
            self._score_params(head_dim),
            deterministic,
            mask=mask,
            bias=bias,
            score_state=score_state,
        )
        return self._out(context, x.shape[-1])

    def _cache(self, key: jax.Array, value: jax.Array) -> KVCache | None:
        """The cache as it is before this call; made, not used, while initializing."""
        *batch, length, heads, dim = key.shape
        if self.is_initializing():
            empty = KVCache.empty(tuple(batch), length, heads, dim, dtype=key.dtype)
            self.variable("cache", "cached_key", lambda: empty.key)
            self.variable("cache", "cached_value", lambda: empty.value)
            self.variable("cache", "cache_index", lambda: empty.length)
            return None
        if not self.has_variable("cache", "cached_key"):
            raise ValueError(
                "decode=True needs the collection 'cache': layer.init(rng, x)['cache'] makes one "
                "for as many positions as x has; apply takes it with mutable=['cache']"
            )
        names = ("cached_key", "cached_value", "cache_index")
        return KVCache(*(self.get_variable("cache", name) for name in names))


class CrossAttention(MultiHead):
    """Multi-head attention of one sequence to another; attributes as in ``SelfAttention``.

    ``decode=True`` is incremental decoding: keys and values are computed in the call that gives
    ``x_kv`` and kept in the collection "cache"; ``x_kv=None`` is "the same again".

    >>> layer = CrossAttention(num_heads=2, qkv_features=16, decode=True)
    >>> x_q, x_kv = jnp.ones((2, 3, 8)), jnp.ones((2, 5, 12))
    >>> variables = jax.jit(layer.init)(jax.random.key(0), x_q, x_kv)
    >>> first = jax.jit(lambda *x: layer.apply(variables, *x, mutable=["cache"]))
    >>> _, cache = first(x_q[:, :1], x_kv)
    >>> jax.jit(layer.apply)(variables | cache, x_q[:, 1:], None).shape
    (2, 2, 8)
    """

    @nn.compact
    def __call__(
        self,
        x_q: jax.Array,
        x_kv: jax.Array | None,
        *,
        mask: Any = None,
        bias: Any = None,
        score_state: Any = None,
        deterministic: bool | None = None,
    ) -> jax.Array:
        """``x_q [..., T, features]``, ``x_kv [..., S, other_features]`` -> ``[..., T, out]``.

        The other arguments are as in ``SelfAttention``, for T queries and S keys, with ``decode``
        too.
        """
        head_dim = self._head_dim(x_q=x_q, **({} if x_kv is None else {"x_kv": x_kv}))
        query = self._project("query", x_q, head_dim)
        score_params = self._score_params(head_dim)
        keys, value = self._keys_and_value(x_kv, head_dim, score_params)
        context = self._attend(
            query,
            keys,
            value,
            score_params,
            deterministic,
            mask=visible_where_not_zero(mask),
            bias=bias,
            score_state=score_state,
        )
        return self._out(context, x_q.shape[-1])

    def _keys_and_value(self, x_kv: jax.Array | None, head_dim: int, score_params: Any) -> Any:
        """Of ``x_kv``, or those kept of the call that gave it."""
        names = ("cached_key", "cached_key_bad", "cached_value")
        if x_kv is not None:
            key, value = (self._project(name, x_kv, head_dim) for name in ("key", "value"))
            if not self.decode:
                return key, value
            keys = transform_keys(key, score=self.score, score_params=score_params)
            for name, x in zip(names, (keys.keys, keys.bad, value), strict=True):
                self.put_variable("cache", name, x)
            return keys, value
        if not self.decode or not self.has_variable("cache", "cached_key"):
            raise ValueError(
                "x_kv may be None only with decode=True and the collection 'cache' of a call that "
                "gave x_kv (with mutable=['cache'])"
            )
        cached: list[Any] = [self.get_variable("cache", name) for name in names]
        return TransformedKeys(cached[0], cached[1], self.score, head_dim), cached[2]


def _rows_of(mask: Any, cache: KVCache, t: int) -> Any:
    """Of a mask of the whole sequence, the rows of the t positions to come; arrays stay."""
    if not isinstance(mask, Mask):
        return mask
    max_length = cache.key.shape[-3]
    whole = jax.eval_shape(lambda: mask.as_array(max_length, max_length)).shape
    if any(size not in (1, max_length) for size in whole[-2:]):
        raise ValueError(
            f"with decode a mask from ar.masks must be that of the whole sequence, "
            f"[..., {max_length}, {max_length}] for this cache: got {list(whole)}"
        )
    return mask.block(cache.length, 0, t, max_length)
