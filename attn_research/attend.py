"""The public entry: what is asked for is checked (``validate.py``), then computed
(``compute.py``)."""

from typing import Any

import jax
import jax.numpy as jnp  # noqa: F401 (the examples use it)

from attn_research import compute
from attn_research.validate import Options, check


def attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    score: Any = "dot",
    score_params: Any = None,
    score_state: Any = None,
    scale: Any = None,
    bias: Any = None,
    mask: Any = None,
    normalizer: Any = "softmax",
    softcap: Any = None,
    talking_heads: Any = None,
    dropout_rate: Any = 0.0,
    dropout_key: Any = None,
    implementation: str | None = None,
) -> jax.Array:
    """Attention: each query's weighted mean of the values.

    Args:
      query: ``[..., T, N, Dq]``, or ``[T, Dq]`` for one head. float16, bfloat16, float32, float64.
      key: ``[..., S, K, Dk]`` or ``[S, Dk]``, or what ``transform_keys`` made of it. N must be a
        multiple of K: query head n reads key head ``n // (N / K)``.
      value: ``[..., S, K, Dv]`` or ``[S, Dv]``.
      score: a name in ``SCORES``, or a function ``f(score_params, query [T, Dq], key [S, Dk]) ->
        logits [T, S]`` of one head, each from its own query and key alone: it is called with blocks
        of them. It may return -inf for "not visible".
      score_params: its parameters, from ``init_score``: shared by the heads, or ``PerHead``.
      score_state: what a score with a memory reads, such as the weights of the decoder's last step
        (``location_aware``, ``coverage``) or the position of the first query (``local``); see its
        file. None is the state at the first step.
      scale: factor on the logits: None (the score's own convention, see its file; 1 for a
        function), ``"none"`` (1), ``"rsqrt_dim"`` (1/sqrt(d)), ``"inverse_dim"`` (1/d), a number or
        a traced scalar, an array ``[N]``, ``"log_n"`` or ``ar.log_n(s)`` (scalable softmax). d is
        the number of terms in the pairwise sum (Dq for a function).
      bias: added to the scaled logits; floating, broadcastable to ``[..., N, T, S]`` (``[T, S]``
        for one head). -inf means "not visible".
      mask: from ``ar.masks``, or a boolean array broadcastable like ``bias``; True is visible.
      normalizer: a name in ``NORMALIZERS``, or one with options from ``ar.normalizer``.
      softcap: ``c`` replaces scaled logits ``l`` by ``c tanh(l / c)``, before the bias (Gemma 2).
      talking_heads: ``ar.TalkingHeads``: matrices that mix logits and weights over the heads.
      dropout_rate: weights are dropped with this probability (in [0, 1), may be traced) and the
        rest grows to make up; needs ``dropout_key``, a ``jax.random`` key.
      implementation: None chooses the fastest; "dense" materializes the weights; "blocked" does
        not: memory grows with T + S, in the gradient too. It has reverse mode (and forward over
        reverse, so ``jax.hessian``); "blocked_any_mode" also has ``jax.jvp`` and ``jax.linearize``,
        and a slower reverse mode that needs more memory. The last two refuse ``talking_heads`` and
        normalizers that need whole rows; under a mask, rows that NaN spoils have no gradient there.
        "cudnn" and "splash" are the fused kernels of NVIDIA GPUs and of TPUs for plain softmax of
        16-bit products, in reverse mode alone; products above 3e38 do not saturate there. "splash"
        on several TPUs must be within ``shard_map``.

    Returns:
      ``[..., T, N, Dv]`` (``[T, Dv]``) in the dtype of ``value``. Logits, softmax and sums are
      float32 for 16-bit inputs, float64 if query, key or a parameter is float64. A query that sees
      no key gets 0, and no gradient flows through it. Keys and values which a query does not see do
      not influence it or its gradient, whatever they hold; NaN in what it does see makes its
      result NaN, at weight 0 too. Finite inputs never give NaN: what is too large for the dtype
      saturates.

    >>> q, k, v = jnp.eye(2), jnp.eye(2), jnp.array([[1.0], [3.0]])
    >>> print(attend(q, k, v, scale=1.0).round(4)[:, 0])
    [1.5379 2.4621]
    >>> print(attend(q, k, v, mask=jnp.array([[True, False], [False, False]])).tolist())
    [[1.0], [0.0]]

    Sources: Bahdanau et al. 2015; Luong et al. 2015; Vaswani et al. 2017; GQA: Ainslie et al. 2023.
    """
    options = Options(
        score,
        score_params,
        score_state,
        scale,
        bias,
        mask,
        normalizer,
        softcap,
        talking_heads,
        dropout_rate,
        dropout_key,
        implementation,
    )
    inputs = check(query, key, value, options)
    return compute.context(inputs, options)


def attention_weights(
    query: Any,
    key: Any,
    *,
    score: Any = "dot",
    score_params: Any = None,
    score_state: Any = None,
    scale: Any = None,
    bias: Any = None,
    mask: Any = None,
    normalizer: Any = "softmax",
    softcap: Any = None,
    talking_heads: Any = None,
    dropout_rate: Any = 0.0,
    dropout_key: Any = None,
    implementation: str | None = None,
) -> jax.Array:
    """The weights by which ``attend`` mixes the values; same options (whatever the implementation,
    all weights are in memory).

    Returns:
      ``[..., N, T, S]`` (``[T, S]`` for one head), float32 (float64 if an input is). Rows sum to 1
      (unless the normalizer, dropout or talking heads say otherwise), or to 0 where nothing is
      visible.

    >>> print(attention_weights(jnp.zeros((1, 3)), jnp.ones((4, 3))))
    [[0.25 0.25 0.25 0.25]]
    """
    options = Options(
        score,
        score_params,
        score_state,
        scale,
        bias,
        mask,
        normalizer,
        softcap,
        talking_heads,
        dropout_rate,
        dropout_key,
        implementation,
    )
    inputs = check(query, key, None, options)
    weights = compute.weights(inputs, options)
    return weights[0] if inputs.one_head else weights


def attend_with_lse(
    query: Any,
    key: Any,
    value: Any,
    *,
    score: Any = "dot",
    score_params: Any = None,
    score_state: Any = None,
    scale: Any = None,
    bias: Any = None,
    mask: Any = None,
    normalizer: Any = "softmax",
    softcap: Any = None,
    talking_heads: Any = None,
    dropout_rate: Any = 0.0,
    dropout_key: Any = None,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """``attend``, and the log-sum-exp of the visible logits; same options.

    Returns:
      The context, and lse ``[..., N, T]`` (``[T]`` for one head), float32 (float64 if query, key or
      a parameter is): -inf, with gradient 0, where nothing is visible. Its derivative by logit j
      is the weight of j, so a loss on it (a z-loss) trains.

    >>> context, lse = attend_with_lse(jnp.zeros((1, 3)), jnp.ones((4, 3)), jnp.ones((4, 2)))
    >>> print(lse.round(4))  # log 4
    [1.3863]
    """
    options = Options(
        score,
        score_params,
        score_state,
        scale,
        bias,
        mask,
        normalizer,
        softcap,
        talking_heads,
        dropout_rate,
        dropout_key,
        implementation,
    )
    inputs = check(query, key, value, options)
    context, lse = compute.context_and_lse(inputs, options)
    return context, (lse[0] if inputs.one_head else lse)
