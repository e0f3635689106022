"""The recurrent encoder-decoder, with one fixed context vector or with attention.

Encoder: h_1..h_S from a vanilla RNN, GRU or LSTM, in one or both directions. Decoder at step i:

    none      s_i = f(s_{i-1}, y_{i-1}, c)      c the encoder's final state     (Cho et al. 2014)
    previous  c_i = sum_j a_ij h_j, a_i = softmax_j score(s_{i-1}, h_j)
              s_i = f(s_{i-1}, y_{i-1}, c_i)                               (Bahdanau et al. 2015)
    current   s_i = f(s_{i-1}, y_{i-1} [, t_{i-1}]), a_i = softmax_j score(s_i, h_j)
              t_i = tanh(W [s_i; c_i] + b)      t_{i-1} with input feeding    (Luong et al. 2015)

For none and previous t_i = tanh(W [s_i; c_i; y_{i-1}] + b); y_i is softmax(W_o t_i + b_o).

A model of this laboratory is a module of pure functions: `check`, `init`, `apply` (teacher forcing)
and, for decoding, `encode`, `start`, `step`. What does not depend on the recurrence (the encoder's
input products, the key side of the score, the embeddings' part of the gates, the readout) is
computed once, outside the scans.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

import attn_research as ar
from attn_research import params as parameters
from attn_research import scaling, scores
from experiments.config import ModelConfig
from experiments.models import recurrence, rnn_decoder, scan
from experiments.models.layers import dense, dense_init, dropout, embed, scale_value
from experiments.models.rnn_check import check as check
from experiments.models.rnn_check import init_score
from experiments.models.rnn_decoder import Masks, Memory, State
from experiments.vocabulary import PAD, SOS

Params = dict[str, Any]


def scale_of(config: ModelConfig) -> Any:
    """What the logits are multiplied by: `model.attention.scale` as a number."""
    attention = config.attention
    if not isinstance(attention.scale, str):
        return attention.scale

    def project() -> jax.Array:
        score_params = init_score(jax.random.key(0), config)
        states = jnp.zeros((1, attention.num_heads, config.hidden_size // attention.num_heads))
        return parameters.transform(attention.score, "query", score_params, states)

    default = scores.get(attention.score).DEFAULT_SCALE
    dim = jax.eval_shape(project).shape[-1]
    return float(scaling.resolve(scale_value(attention.scale), default, dim))


def init(key: jax.Array, config: ModelConfig, source_size: int, target_size: int) -> Params:
    """Parameters, float32, for vocabularies of `source_size` and `target_size` tokens."""
    keys = iter(jax.random.split(key, 32 + 4 * config.num_layers))
    hidden, width, attention = config.hidden_size, config.encoder_width, config.attention
    embedding = config.embedding_size

    def table(size: int) -> jax.Array:
        return config.embedding_stddev * jax.random.normal(next(keys), (size, embedding))

    def cell(inputs: dict[str, int], size: int) -> Params:
        return recurrence.init(next(keys), config.cell, inputs, size)

    encoder: Params = {}
    for layer in range(config.num_layers):
        inputs = {"input": embedding if layer == 0 else width}
        encoder[f"layer_{layer}"] = {
            direction: cell(inputs, config.encoder_size or hidden)
            for direction in ("forward", "backward")[: 1 + config.bidirectional]
        }
    decoder: Params = {}
    for layer in range(config.num_layers):
        inputs = {"input": embedding if layer == 0 else hidden}
        if layer == 0 and (attention.score == "none" or attention.query == "previous"):
            inputs["context"] = width
        elif layer == 0 and attention.input_feeding:
            inputs["feed"] = hidden
        decoder[f"layer_{layer}"] = cell(inputs, hidden)
    states = config.num_layers * recurrence.num_states(config.cell)
    readout = hidden + width + (embedding if rnn_decoder.reads_embedding(config) else 0)
    return {
        "source_embedding": table(source_size),
        "target_embedding": table(target_size),
        "encoder": encoder,
        "bridge": dense_init(next(keys), width, states * hidden),
        "decoder": decoder,
        "score": {} if attention.score == "none" else init_score(next(keys), config),
        "readout": dense_init(next(keys), readout, hidden),
        "output": dense_init(next(keys), hidden, target_size),
    }


def encode(
    params: Params,
    config: ModelConfig,
    source: jax.Array,
    length: jax.Array,
    key: jax.Array | None = None,
) -> Memory:
    """Source tokens [B, S] int32 of real length [B] (<eos> counted) -> what the decoder sees.

    The forward direction stops at the last real token and the backward one starts there; nothing
    reads the states of padding. `key` turns dropout on.
    """
    x = dropout(embed(params["source_embedding"], source), config.dropout, key, 0)
    x = jnp.swapaxes(x, 0, 1)  # time first, for the scans
    real = jnp.arange(x.shape[0])[:, None] < length
    finals: list[jax.Array] = []
    for layer in range(config.num_layers):
        if layer:
            x = dropout(x, config.dropout, key, layer)
        outputs = []
        finals = []
        for direction, cell in params["encoder"][f"layer_{layer}"].items():
            last, states = recurrence.run(
                cell, config.cell, x, real, reverse=direction == "backward"
            )
            outputs.append(states)
            finals.append(last[0])
        x = jnp.concatenate(outputs, axis=-1)
    final = jnp.concatenate(finals, axis=-1)
    values = jnp.swapaxes(x, 0, 1)
    heads = config.attention.num_heads
    values = values.reshape(*values.shape[:2], heads, -1)
    if config.attention.score == "none":
        gates = final @ params["decoder"]["layer_0"]["context"]
        return Memory(None, values, length, final, gates)
    keys = ar.transform_keys(values, score=config.attention.score, score_params=params["score"])
    return Memory(keys, values, length, final, None)


def start(params: Params, config: ModelConfig, memory: Memory) -> State:
    """s_0 = tanh(W h_final + b), every layer; the first attentional vector is zero."""
    parts = recurrence.num_states(config.cell)
    states = jnp.tanh(dense(params["bridge"], memory.final))
    arrays = jnp.split(states, config.num_layers * parts, axis=-1)
    cells = tuple(
        tuple(arrays[parts * layer : parts * (layer + 1)]) for layer in range(config.num_layers)
    )
    batch = memory.final.shape[0]
    return State(cells, jnp.zeros((batch, config.hidden_size * config.attention.input_feeding)))


def step(
    params: Params, config: ModelConfig, memory: Memory, state: State, token: jax.Array
) -> tuple[State, jax.Array, jax.Array]:
    """One decoding step: the token before, [B] int32 -> (state, logits [B, V], weights [B, N, S]).

    Without attention the weights are [B, 0, S].
    """
    embedded = embed(params["target_embedding"], token)
    gates = _input_gates(params, memory, embedded)
    product = scan.product(rnn_decoder.weights_in_scan(params, config))
    masks = rnn_decoder.draw_masks(config, None)
    seen = params["score"], memory
    state, done = rnn_decoder.advance(product, config, seen, state, gates, masks)
    done = jax.tree.map(lambda x: x[:, None], done)
    logits = rnn_decoder.logits_of(params, config, memory, done, embedded[:, None], None)
    weights = rnn_decoder.weights_of(params["score"], config, memory, done.query)
    return state, logits[:, 0], weights[:, :, 0]


def apply(
    params: Params,
    config: ModelConfig,
    source: jax.Array,
    source_length: jax.Array,
    target: jax.Array,
    target_length: jax.Array,
    *,
    key: jax.Array | None = None,
    with_weights: bool = False,
) -> Any:
    """Teacher forcing: logits [B, T, V] of every target token given those before it.

    The decoder reads <sos>, y_1 .. y_{T-1}; <eos> and padding are never fed (they become <pad>,
    whose output nothing reads). `key` turns dropout on. With `with_weights` the result is
    (logits, weights [B, N, T, S]).
    """
    batch = source, source_length, target, target_length
    memory, embedded, masks, steps = _forced(params, config, batch, key)
    logits = rnn_decoder.logits_of(params, config, memory, steps, embedded, masks.readout)
    if not with_weights:
        return logits
    return logits, rnn_decoder.weights_of(params["score"], config, memory, steps.query)


def saturation(
    params: Params,
    config: ModelConfig,
    source: jax.Array,
    source_length: jax.Array,
    target: jax.Array,
    target_length: jax.Array,
) -> dict[str, jax.Array]:
    """How sharply it attends under teacher forcing: `logit_std`, the root mean variance of the
    (scaled) logits of a row over the keys it sees, and `largest_weight`, the median over rows.
    Rows are the real target tokens, of every head, that see more than one key. Nothing without
    attention."""
    if config.attention.score == "none":
        return {}
    batch = source, source_length, target, target_length
    memory, _, _, steps = _forced(params, config, batch, None)
    query = steps.query
    largest = rnn_decoder.weights_of(params["score"], config, memory, query).max(-1)
    # The log of a softmax is its logits but for a constant; a small scale keeps it from underflow.
    small = 0.01
    scales = {"scale": small * scale_of(config), "normalizer": "softmax"}
    soft = dataclasses.replace(config, attention=dataclasses.replace(config.attention, **scales))
    weights = rnn_decoder.weights_of(params["score"], soft, memory, query)
    seen = (jnp.arange(weights.shape[-1]) < source_length[:, None])[:, None, None]
    logits = jnp.log(jnp.where(seen, weights, 1)) / small
    rows = (jnp.arange(target.shape[1]) < target_length[:, None])[:, None]
    rows = jnp.broadcast_to(rows & (source_length > 1)[:, None, None], weights.shape[:-1])
    variance = jnp.var(logits, axis=-1, where=seen)
    return {
        "logit_std": jnp.sqrt(jnp.mean(variance, where=rows)),
        "largest_weight": jnp.nanmedian(jnp.where(rows, largest, jnp.nan)),
    }


def _forced(
    params: Params, config: ModelConfig, batch: tuple[jax.Array, ...], key: jax.Array | None
) -> tuple[Memory, jax.Array, Masks, rnn_decoder.Step]:
    """Teacher forcing up to what is read out: the memory, the decoder's inputs [B, T, E], dropout,
    and the recurrent part of all decoder steps, [B, T, ...]."""
    source, source_length, target, target_length = batch
    memory = encode(params, config, source, source_length, key)
    embedded = embed(params["target_embedding"], shift_right(target, target_length))
    embedded = dropout(embedded, config.dropout, key, 100)
    masks = rnn_decoder.draw_masks(config, key, *target.shape)
    gates = _input_gates(params, memory, embedded)

    def advance(product: scan.Product, seen: Any, state: State, x: Any) -> tuple[State, Any]:
        return rnn_decoder.advance(product, config, seen, state, *x)

    _, steps = scan.scan(
        advance,
        rnn_decoder.weights_in_scan(params, config),
        (params["score"], memory),
        start(params, config, memory),
        jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (gates, masks)),
    )
    return memory, embedded, masks, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps)


def shift_right(target: jax.Array, length: jax.Array) -> jax.Array:
    """[a b <eos> <pad>] -> [<sos> a b <pad>]: the decoder's inputs under teacher forcing."""
    shifted = jnp.concatenate([jnp.full_like(target[:, :1], SOS), target[:, :-1]], axis=1)
    real = jnp.arange(target.shape[1]) < length[:, None]
    return jnp.where(real, shifted, PAD)


def _input_gates(params: Params, memory: Memory, embedded: jax.Array) -> jax.Array:
    """What y_{i-1} (and the fixed context) give to the first layer's gates: [B, (T,) G]."""
    cell = params["decoder"]["layer_0"]
    gates = embedded @ cell["input"] + cell["bias"]
    if memory.context_gates is not None:
        context = memory.context_gates
        gates += context if gates.ndim == 2 else context[:, None]
    return gates
