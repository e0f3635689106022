"""Greedy decoding: from <sos>, the likeliest token at every step, until <eos> or a maximum length.

One jitted program a shape. A sentence's translation depends on nothing but the sentence: neither on
the others of its batch nor on padding.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.vocabulary import EOS, PAD, SOS


class Decoded(NamedTuple):
    tokens: jax.Array  # [B, L] int32, <eos> included, <pad> after it
    length: jax.Array  # [B] int32, <eos> counted; L where no <eos> came
    weights: jax.Array  # [B, N, L, S] float32: row i is the i-th output token; 0 after the end


def greedy(
    model: Any,
    params: Any,
    config: Any,
    source: jax.Array,
    source_length: jax.Array,
    max_length: int,
) -> Decoded:
    """Source tokens [B, S] of real length [B] (<eos> counted) -> at most `max_length` tokens."""
    memory = model.encode(params, config, source, source_length)
    state = model.start(params, config, memory)
    batch = source.shape[0]
    token = jnp.full(batch, SOS, jnp.int32)
    like = jax.eval_shape(lambda: model.step(params, config, memory, state, token))[2]
    tokens = jnp.full((max_length, batch), PAD, jnp.int32)
    weights = jnp.zeros((max_length, *like.shape), like.dtype)

    def unfinished(loop: Any) -> jax.Array:
        i, _, _, running, _, _ = loop
        return (i < max_length) & running.any()

    def advance(loop: Any) -> Any:
        i, state, token, running, tokens, weights = loop
        state, logits, row = model.step(params, config, memory, state, token)
        # <pad> and <sos> are no words: they are never said
        logits = logits.at[:, jnp.array([PAD, SOS])].set(-jnp.inf)
        token = jnp.where(running, jnp.argmax(logits, axis=-1).astype(jnp.int32), PAD)
        tokens = tokens.at[i].set(token)
        weights = weights.at[i].set(jnp.where(running[:, None, None], row, 0))
        return i + 1, state, token, running & (token != EOS), tokens, weights

    loop = (jnp.int32(0), state, token, jnp.ones(batch, bool), tokens, weights)
    _, _, _, _, tokens, weights = jax.lax.while_loop(unfinished, advance, loop)
    tokens = tokens.T
    return Decoded(tokens, (tokens != PAD).sum(axis=1), jnp.transpose(weights, (1, 2, 0, 3)))
