"""The decoder of `rnn_seq2seq`: what a step computes, and what is done for all steps at once.

Shapes: B sentences, T target steps, S source positions, N heads, H features of a decoder state.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import attn_research as ar
from experiments.config import ModelConfig
from experiments.models import recurrence, scan
from experiments.models.layers import dense, dropout, drops, scale_value

Params = dict[str, Any]


class Memory(NamedTuple):
    """What the decoder sees of a batch of source sentences."""

    keys: ar.TransformedKeys | None  # of [B, S, N, Dk]; None without attention
    values: jax.Array  # [B, S, N, Dk]: the encoder states, a head's features together
    length: jax.Array  # [B] int32, <eos> counted
    final: jax.Array  # [B, encoder_width]: the last state of each direction
    context_gates: jax.Array | None  # [B, G]: what the fixed context gives to every step's gates


class State(NamedTuple):
    """What one decoder step hands to the next."""

    cells: tuple[recurrence.Carry, ...]  # a layer each, [B, hidden_size]
    feed: jax.Array  # t_{i-1} [B, hidden_size] with input feeding, otherwise [B, 0]


class Step(NamedTuple):
    """What a decoder step computed, [B, ...]; None is what the recurrence does not depend on."""

    top: jax.Array  # s_i, of the last layer
    query: jax.Array  # what it asked with: s_{i-1} or s_i
    context: jax.Array | None  # c_i
    read: jax.Array | None  # t_i


class Masks(NamedTuple):
    """Dropout in the decoder: factors of 0 or 1 / (1 - rate), or none."""

    readout: jax.Array | None  # of the readout's features
    layers: tuple[jax.Array, ...]  # of what each layer but the first reads


def options(config: ModelConfig) -> dict[str, Any]:
    attention = config.attention
    return {
        "score": attention.score,
        "scale": scale_value(attention.scale),
        "normalizer": attention.normalizer,
    }


def reads_embedding(config: ModelConfig) -> bool:
    return config.attention.score == "none" or config.attention.query == "previous"


def draw_masks(config: ModelConfig, key: jax.Array | None, *shape: int) -> Masks:
    """Those of decoder steps of `shape` [B, T]; none without a key."""
    if not drops(config.dropout, key):
        return Masks(None, ())

    def draw(features: int, place: int) -> jax.Array:
        return dropout(jnp.ones((*shape, features)), config.dropout, key, place)

    readout = config.hidden_size + config.encoder_width
    readout += config.embedding_size if reads_embedding(config) else 0
    layers = (draw(config.hidden_size, 200 + layer) for layer in range(1, config.num_layers))
    return Masks(draw(readout, 101), tuple(layers))


def weights_in_scan(params: Params, config: ModelConfig) -> scan.Weights:
    """What `advance` multiplies by."""
    weights = {}
    for layer, cell in enumerate(params["decoder"].values()):
        weights[f"recurrent_{layer}"] = {"kernel": cell["recurrent"]}
        if layer:
            weights[f"input_{layer}"] = {"kernel": cell["input"], "bias": cell["bias"]}
    first = params["decoder"]["layer_0"]
    attention = config.attention
    if attention.score != "none" and attention.query == "previous":
        weights["context"] = {"kernel": first["context"]}
    if attention.input_feeding:
        weights |= {"feed": {"kernel": first["feed"]}, "readout": params["readout"]}
    return weights


def advance(
    product: scan.Product,
    config: ModelConfig,
    seen: tuple[Any, Memory],
    state: State,
    gates: jax.Array,
    masks: Masks,
) -> tuple[State, Step]:
    """The recurrent part of a decoder step; `seen` is (score parameters, memory), gates [B, G] what
    the input gives to the first layer."""
    attention, (score_params, memory) = config.attention, seen
    query = state.cells[-1][0]
    context = read = None
    if attention.score == "none":
        context = memory.final
    elif attention.query == "previous":
        context = context_of(score_params, config, memory, query[:, None])[:, 0]
        gates = gates + product("context", context)
    elif attention.input_feeding:
        gates = gates + product("feed", state.feed)
    cells: list[recurrence.Carry] = []
    for layer, carry in enumerate(state.cells):
        if layer:
            below = cells[-1][0]
            below = below * masks.layers[layer - 1] if masks.layers else below
            gates = product(f"input_{layer}", below)
        u = product(f"recurrent_{layer}", carry[0])
        cells.append(recurrence.advance(config.cell, carry, gates, u))
    top = cells[-1][0]
    if attention.score != "none" and attention.query == "current":
        query = top
    feed = state.feed
    if attention.input_feeding:
        context = context_of(score_params, config, memory, query[:, None])[:, 0]
        features = _features(config, top, context, None, masks.readout)
        feed = read = jnp.tanh(product("readout", features))
    return State(tuple(cells), feed), Step(top, query, context, read)


def logits_of(
    params: Params,
    config: ModelConfig,
    memory: Memory,
    steps: Step,
    embedded: jax.Array,
    mask: jax.Array | None,
) -> jax.Array:
    """Logits [B, T, V] of T steps at once: all that the recurrence did not need."""
    context, read = steps.context, steps.read
    if context is None:
        context = context_of(params["score"], config, memory, steps.query)
    if read is None:
        features = _features(config, steps.top, context, embedded, mask)
        read = jnp.tanh(dense(params["readout"], features))
    return dense(params["output"], read)


def _features(
    config: ModelConfig,
    top: jax.Array,
    context: jax.Array,
    embedded: jax.Array | None,
    mask: jax.Array | None,
) -> jax.Array:
    """What the readout reads, [..., F]: [s_i; c_i], and y_{i-1} if it is not Luong's."""
    parts = [top, context]
    if reads_embedding(config):
        assert embedded is not None
        parts.append(embedded)
    features = jnp.concatenate(parts, axis=-1)
    return features if mask is None else features * mask


def context_of(
    score_params: Any, config: ModelConfig, memory: Memory, query: jax.Array
) -> jax.Array:
    """Queries [B, T, H] -> context vectors [B, T, encoder_width]."""
    query = query.reshape(*query.shape[:2], config.attention.num_heads, -1)
    mask = ar.masks.lengths(memory.length)
    context = ar.attend(
        query, memory.keys, memory.values, score_params=score_params, mask=mask, **options(config)
    )
    return context.reshape(*context.shape[:2], -1)


def weights_of(
    score_params: Any, config: ModelConfig, memory: Memory, query: jax.Array
) -> jax.Array:
    """Queries [B, T, H] -> attention weights [B, N, T, S] (N = 0 without attention)."""
    if memory.keys is None:
        return jnp.zeros((query.shape[0], 0, query.shape[1], memory.values.shape[1]))
    query = query.reshape(*query.shape[:2], config.attention.num_heads, -1)
    mask = ar.masks.lengths(memory.length)
    return ar.attention_weights(
        query, memory.keys, score_params=score_params, mask=mask, **options(config)
    )
