"""The checks of a config for `rnn_seq2seq`, and the parameters of its score."""

import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp

import attn_research as ar
from attn_research import scores
from experiments.config import CELLS, QUERIES, SCALES, AttentionConfig, ModelConfig, one_of
from experiments.errors import UserError
from experiments.models import rnn_decoder
from experiments.models.layers import scale_value


def check(config: ModelConfig) -> None:
    """Raises UserError, a line, for a config that cannot be built; compiles nothing."""
    one_of("model.cell", config.cell, CELLS)
    for field in ("hidden_size", "embedding_size", "num_layers", "encoder_size"):
        value = getattr(config, field)
        if value is not None and value < 1:
            raise UserError(f"model.{field}={value} must be at least 1")
    if not 0 < config.embedding_stddev < math.inf:
        raise UserError(f"model.embedding_stddev={config.embedding_stddev} must be above 0")
    if not 0 <= config.dropout < 1:
        raise UserError(f"model.dropout={config.dropout} is not in [0, 1)")
    attention = config.attention
    stateless = [name for name in ar.SCORES if scores.state_axes(name) is None]
    if attention.score in ar.SCORES and attention.score not in stateless:
        raise UserError(
            f"model.attention.score={attention.score!r} needs a state of the decoder, which this "
            f"model does not keep; there are none, {', '.join(stateless)}"
        )
    one_of("model.attention.score", attention.score, ("none", *stateless))
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
    _check_dim(attention)
    if attention.score != "none":
        _check_score(config)


def _check_dim(attention: AttentionConfig) -> None:
    if attention.dim is None:
        return
    having = [
        name for name in ar.SCORES if "dim" in inspect.signature(scores.get(name).init).parameters
    ]
    if attention.dim < 1:
        raise UserError(f"model.attention.dim={attention.dim} must be at least 1")
    if attention.score not in having:
        raise UserError(
            f"model.attention.dim={attention.dim}: the score {attention.score!r} projects to no "
            f"space of its own; those that do are {', '.join(having)}"
        )


def _check_score(config: ModelConfig) -> None:
    """Lets the library judge the shapes, without computing anything."""

    def attend() -> jax.Array:
        params = init_score(jax.random.key(0), config)
        heads = config.attention.num_heads
        query = jnp.zeros((1, 1, heads, config.hidden_size // heads))
        states = jnp.zeros((1, 1, heads, config.encoder_width // heads))
        return ar.attend(query, states, states, score_params=params, **rnn_decoder.options(config))

    try:
        jax.eval_shape(attend)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"model.attention.score={config.attention.score!r} cannot score a decoder state of "
            f"{config.hidden_size} (model.hidden_size) against encoder states of "
            f"{config.encoder_width} features (model.encoder_size x directions): {error}"
        ) from None


def init_score(key: jax.Array, config: ModelConfig) -> Any:
    """Parameters of the score for the decoder's states against the encoder's."""
    attention, heads = config.attention, config.attention.num_heads
    sizes = config.hidden_size // heads, config.encoder_width // heads
    own = {} if attention.dim is None else {"dim": attention.dim}
    return ar.init_score(
        attention.score, key, *sizes, num_heads=heads if heads > 1 else None, **own
    )
