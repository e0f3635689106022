"""The recurrent encoder-decoder, with one fixed context vector or with attention.

Encoder: h_1..h_S from a vanilla RNN, GRU or LSTM, in one or both directions. Decoder at step i:

    none      s_i = f(s_{i-1}, y_{i-1}, c)      c the encoder's final state     (Cho et al. 2014)
    previous  c_i = sum_j a_ij h_j, a_i = softmax_j score(s_{i-1}, h_j)
              s_i = f(s_{i-1}, y_{i-1}, c_i)                               (Bahdanau et al. 2015)
    current   s_i = f(s_{i-1}, y_{i-1} [, t_{i-1}]), a_i = softmax_j score(s_i, h_j)
              t_i = tanh(W [s_i; c_i] + b)      t_{i-1} with input feeding    (Luong et al. 2015)

For none and previous t_i = tanh(W [s_i; c_i; y_{i-1}] + b); the next token is softmax(W_o t_i + b_o).

A model of this laboratory is a module of pure functions: `check`, `init`, `apply` (teacher forcing)
and, for decoding, `encode`, `start`, `step`. What does not depend on the recurrence (the encoder's
input products, the key side of the score, the embeddings' part of the gates, the readout) is
computed once, outside the scans.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import attn_research as ar
from experiments.config import CELLS, QUERIES, SCALES, ModelConfig, one_of
from experiments.errors import UserError
from experiments.models import recurrence
from experiments.models.layers import dense, dense_init, dropout, embed, scale_value
from experiments.vocabulary import EOS, PAD, SOS

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


def check(config: ModelConfig) -> None:
    """Raises UserError, a line, for a config that cannot be built; compiles nothing."""
    one_of("model.cell", config.cell, CELLS)
    for field in ("hidden_size", "embedding_size", "num_layers", "encoder_size"):
        value = getattr(config, field)
        if value is not None and value < 1:
            raise UserError(f"model.{field}={value} must be at least 1")
    if not 0 <= config.dropout < 1:
        raise UserError(f"model.dropout={config.dropout} is not in [0, 1)")
    attention = config.attention
    one_of("model.attention.score", attention.score, ("none", *ar.SCORES))
    one_of("model.attention.query", attention.query, QUERIES)
    one_of("model.attention.normalizer", attention.normalizer, ar.NORMALIZERS)
    try:
        scale_value(attention.scale)
    except ValueError:
        one_of("model.attention.scale", attention.scale, (*SCALES, "a number"))
    if attention.input_feeding and (attention.score == "none" or attention.query == "previous"):
        raise UserError(
            "model.attention.input_feeding=true feeds Luong's attentional vector: it needs "
            "model.attention.query=current and a score"
        )
    heads = attention.num_heads
    if heads < 1:
        raise UserError(f"model.attention.num_heads={heads} must be at least 1")
    for field, size in (
        ("model.hidden_size", config.hidden_size),
        ("the width of the encoder states,", config.encoder_width),
    ):
        if size % heads:
            raise UserError(f"{field} {size} is not divisible by model.attention.num_heads={heads}")
    if attention.score != "none":
        _check_score(config)


def _check_score(config: ModelConfig) -> None:
    """Lets the library judge the shapes, without computing anything."""

    def attend() -> jax.Array:
        params = _init_score(jax.random.key(0), config)
        heads = config.attention.num_heads
        query = jnp.zeros((1, 1, heads, config.hidden_size // heads))
        states = jnp.zeros((1, 1, heads, config.encoder_width // heads))
        return ar.attend(query, states, states, score_params=params, **_options(config))

    try:
        jax.eval_shape(attend)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"model.attention.score={config.attention.score!r} cannot score a decoder state of "
            f"{config.hidden_size} (model.hidden_size) against encoder states of "
            f"{config.encoder_width} features (model.encoder_size x directions): {error}"
        ) from None


def _options(config: ModelConfig) -> dict[str, Any]:
    attention = config.attention
    return {
        "score": attention.score,
        "scale": scale_value(attention.scale),
        "normalizer": attention.normalizer,
    }


def _init_score(key: jax.Array, config: ModelConfig) -> Any:
    heads = config.attention.num_heads
    sizes = config.hidden_size // heads, config.encoder_width // heads
    return ar.init_score(
        config.attention.score, key, *sizes, num_heads=heads if heads > 1 else None
    )


def init(key: jax.Array, config: ModelConfig, source_size: int, target_size: int) -> Params:
    """Parameters, float32, for vocabularies of `source_size` and `target_size` tokens."""
    keys = iter(jax.random.split(key, 32 + 4 * config.num_layers))
    hidden, width, attention = config.hidden_size, config.encoder_width, config.attention
    embedding = config.embedding_size

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
    readout = hidden + width + (embedding if _reads_embedding(config) else 0)
    return {
        "source_embedding": 0.1 * jax.random.normal(next(keys), (source_size, embedding)),
        "target_embedding": 0.1 * jax.random.normal(next(keys), (target_size, embedding)),
        "encoder": encoder,
        "bridge": dense_init(next(keys), width, states * hidden),
        "decoder": decoder,
        "score": {} if attention.score == "none" else _init_score(next(keys), config),
        "readout": dense_init(next(keys), readout, hidden),
        "output": dense_init(next(keys), hidden, target_size),
    }


def _reads_embedding(config: ModelConfig) -> bool:
    return config.attention.score == "none" or config.attention.query == "previous"


def encode(
    params: Params,
    config: ModelConfig,
    source: jax.Array,
    length: jax.Array,
    key: jax.Array | None = None,
) -> Memory:
    """Source tokens [B, S] int32 of real length [B] (<eos> counted) -> what the decoder sees.

    States of padding are zeros' successors that nothing reads: the forward direction stops at the
    last real token, the backward one starts there. `key` turns dropout on.
    """
    x = dropout(embed(params["source_embedding"], source), config.dropout, key, 0)
    x = jnp.swapaxes(x, 0, 1)  # time first, for the scans
    real = jnp.arange(x.shape[0])[:, None] < length
    finals = []
    for layer in range(config.num_layers):
        if layer:
            x = dropout(x, config.dropout, key, layer)
        outputs = []
        finals = []
        for direction, cell in params["encoder"][f"layer_{layer}"].items():
            final, states = recurrence.run(
                cell, config.cell, x, real, reverse=direction == "backward"
            )
            outputs.append(states)
            finals.append(final[0])
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
    state, (top, query, context) = _advance(
        params, config, memory, state, _input_gates(params, memory, embedded), None, None
    )
    if context is None:
        context = _context(params, config, memory, query[:, None])[:, 0]
    logits = dense(params["output"], _readout(params, config, top, context, embedded))
    return state, logits, _weights(params, config, memory, query[:, None])[:, :, 0]


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
    memory = encode(params, config, source, source_length, key)
    embedded = embed(params["target_embedding"], shift_right(target, target_length))
    embedded = dropout(embedded, config.dropout, key, 100)
    gates = jnp.swapaxes(_input_gates(params, memory, embedded), 0, 1)
    masks = None
    if config.attention.input_feeding and key is not None and config.dropout:
        shape = (*gates.shape[:2], config.hidden_size + config.encoder_width)
        masks = dropout(jnp.ones(shape), config.dropout, key, 101)

    def scanned(state: State, xs: tuple[jax.Array, jax.Array | None]) -> tuple[State, Any]:
        return _advance(params, config, memory, state, xs[0], xs[1], key)

    _, outputs = jax.lax.scan(scanned, start(params, config, memory), (gates, masks))
    top, query, context = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), outputs)
    if context is None:  # the recurrence does not need it: every step at once
        context = _context(params, config, memory, query)
    read_mask = jnp.swapaxes(masks, 0, 1) if masks is not None else None
    read = _readout(params, config, top, context, embedded, key, read_mask)
    logits = dense(params["output"], read)
    return (logits, _weights(params, config, memory, query)) if with_weights else logits


def shift_right(target: jax.Array, length: jax.Array) -> jax.Array:
    """[a b <eos> <pad>] -> [<sos> a b <pad>]: the decoder's inputs under teacher forcing."""
    shifted = jnp.concatenate([jnp.full_like(target[:, :1], SOS), target[:, :-1]], axis=1)
    real = jnp.arange(target.shape[1]) < length[:, None]
    return jnp.where(real & (shifted != EOS), shifted, PAD)


def _input_gates(params: Params, memory: Memory, embedded: jax.Array) -> jax.Array:
    """What y_{i-1} (and the fixed context) give to the first layer's gates: [B, (T,) G]."""
    cell = params["decoder"]["layer_0"]
    gates = embedded @ cell["input"] + cell["bias"]
    if memory.context_gates is not None:
        context = memory.context_gates
        gates += context if gates.ndim == 2 else context[:, None]
    return gates


def _advance(
    params: Params,
    config: ModelConfig,
    memory: Memory,
    state: State,
    gates: jax.Array,
    mask: jax.Array | None,
    key: jax.Array | None,
) -> tuple[State, tuple[jax.Array, jax.Array, jax.Array | None]]:
    """The recurrent part of a step: gates [B, G] of the input -> state, (s_i, query, c_i).

    c_i is None where the recurrence does not depend on it (current without input feeding).
    """
    attention = config.attention
    first = params["decoder"]["layer_0"]
    query = state.cells[-1][0]
    context = None
    if attention.score == "none":
        context = memory.final
    elif attention.query == "previous":
        context = _context(params, config, memory, query[:, None])[:, 0]
        gates = gates + context @ first["context"]
    elif attention.input_feeding:
        gates = gates + state.feed @ first["feed"]
    cells = []
    for layer in range(config.num_layers):
        cell = params["decoder"][f"layer_{layer}"]
        if layer:
            gates = dropout(cells[-1][0], config.dropout, key, 200 + layer) @ cell["input"]
            gates = gates + cell["bias"]
        cells.append(recurrence.advance(config.cell, cell["recurrent"], state.cells[layer], gates))
    top = cells[-1][0]
    if attention.score != "none" and attention.query == "current":
        query = top
    feed = state.feed
    if attention.input_feeding:
        context = _context(params, config, memory, query[:, None])[:, 0]
        feed = _readout(params, config, top, context, None, key, mask)
    return State(tuple(cells), feed), (top, query, context)


def _context(params: Params, config: ModelConfig, memory: Memory, query: jax.Array) -> jax.Array:
    """Queries [B, T, H] -> context vectors [B, T, encoder_width]."""
    query = query.reshape(*query.shape[:2], config.attention.num_heads, -1)
    context = ar.attend(
        query,
        memory.keys,
        memory.values,
        score_params=params["score"],
        mask=ar.masks.lengths(memory.length),
        **_options(config),
    )
    return context.reshape(*context.shape[:2], -1)


def _weights(params: Params, config: ModelConfig, memory: Memory, query: jax.Array) -> jax.Array:
    """Queries [B, T, H] -> attention weights [B, N, T, S] (N = 0 without attention)."""
    if memory.keys is None:
        return jnp.zeros((query.shape[0], 0, query.shape[1], memory.values.shape[1]))
    query = query.reshape(*query.shape[:2], config.attention.num_heads, -1)
    return ar.attention_weights(
        query,
        memory.keys,
        score_params=params["score"],
        mask=ar.masks.lengths(memory.length),
        **_options(config),
    )


def _readout(
    params: Params,
    config: ModelConfig,
    top: jax.Array,
    context: jax.Array,
    embedded: jax.Array | None,
    key: jax.Array | None = None,
    mask: jax.Array | None = None,
) -> jax.Array:
    """t_i = tanh(W [s_i; c_i (; y_{i-1})] + b), [..., hidden_size]; `mask` is the dropout drawn before."""
    parts = [top, context] + ([embedded] if _reads_embedding(config) else [])
    features = jnp.concatenate(parts, axis=-1)
    features = dropout(features, config.dropout, key, 102) if mask is None else features * mask
    return jnp.tanh(dense(params["readout"], features))
