"""The recurrent encoder-decoder against a float64 NumPy run of one unpadded sentence at a time."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import decode, evaluate
from experiments.batches import Batch
from experiments.config import AttentionConfig, ModelConfig
from experiments.errors import UserError
from experiments.models import rnn_seq2seq as model
from experiments.vocabulary import EOS, PAD, SOS

CONFIGS = {
    "fixed context": ModelConfig(attention=AttentionConfig(score="none")),
    "fixed context, lstm": ModelConfig(cell="lstm", attention=AttentionConfig(score="none")),
    "bahdanau": ModelConfig(bidirectional=True),
    "bahdanau, rnn": ModelConfig(cell="rnn"),
    "bahdanau, lstm, two layers": ModelConfig(cell="lstm", num_layers=2, bidirectional=True),
    "bahdanau, two heads": ModelConfig(attention=AttentionConfig(num_heads=2)),
    "luong": ModelConfig(
        bidirectional=True, attention=AttentionConfig(score="general", query="current")
    ),
    "luong, input feeding": ModelConfig(
        cell="lstm",
        num_layers=2,
        attention=AttentionConfig(
            score="dot", query="current", scale="inverse_dim", input_feeding=True
        ),
    ),
    "projected": ModelConfig(attention=AttentionConfig(score="projected_dot", scale="0.5")),
}
VOCABULARY = 11


def small(config: ModelConfig) -> ModelConfig:
    return dataclasses.replace(config, hidden_size=8, embedding_size=5)


def make(name: str, seed: int) -> tuple[ModelConfig, dict]:
    """A config and random parameters (biases too), none of them small."""
    config = small(CONFIGS[name])
    params = model.init(jax.random.key(seed), config, VOCABULARY, VOCABULARY)
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    leaves = [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return config, jax.tree.unflatten(tree, leaves)


def draw(seed: int, lengths: list[int], target_lengths: list[int], extra: int = 0) -> Batch:
    """Random sentences of these lengths (<eos> counted), padded `extra` beyond the longest."""
    rng = np.random.default_rng(seed)

    def rows(lengths: list[int]) -> np.ndarray:
        out = np.full((len(lengths), max(lengths) + extra), PAD, np.int32)
        for row, n in zip(out, lengths, strict=True):
            row[: n - 1] = rng.integers(4, VOCABULARY, n - 1)
            row[n - 1] = EOS
        return out

    return Batch(
        rows(lengths),
        np.array(lengths, np.int32),
        rows(target_lengths),
        np.array(target_lengths, np.int32),
    )


# ---- the oracle: plain loops over one sentence ----


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def cell_step(kind, recurrent, carry, x):
    u = carry[0] @ recurrent
    n = carry[0].shape[0]
    if kind == "rnn":
        return (np.tanh(x + u),)
    if kind == "gru":
        z, r = sigmoid((x + u)[:n]), sigmoid((x + u)[n : 2 * n])
        candidate = np.tanh(x[2 * n :] + r * u[2 * n :])
        return ((1 - z) * candidate + z * carry[0],)
    i, f, g, o = (x + u)[:n], (x + u)[n : 2 * n], (x + u)[2 * n : 3 * n], (x + u)[3 * n :]
    c = sigmoid(f) * carry[1] + sigmoid(i) * np.tanh(g)
    return (sigmoid(o) * np.tanh(c), c)


def oracle(params, config, source, inputs):
    """Logits [T, V] and weights [N, T, S] for source tokens [S] and decoder inputs [T]."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    kind, hidden = config.cell, config.hidden_size
    x = p["source_embedding"][source]
    for layer in range(config.num_layers):
        outputs, finals = [], []
        for direction, cell in p["encoder"][f"layer_{layer}"].items():
            order = range(len(x)) if direction == "forward" else range(len(x) - 1, -1, -1)
            size = cell["recurrent"].shape[0]
            carry = (np.zeros(size),) * (2 if kind == "lstm" else 1)
            states = np.zeros((len(x), size))
            for t in order:
                gates = x[t] @ cell["input"] + cell["bias"]
                carry = cell_step(kind, cell["recurrent"], carry, gates)
                states[t] = carry[0]
            outputs.append(states)
            finals.append(carry[0])
        x, final = np.concatenate(outputs, -1), np.concatenate(finals)
    bridge = np.tanh(final @ p["bridge"]["kernel"] + p["bridge"]["bias"]).reshape(
        config.num_layers, -1, hidden
    )
    cells = [tuple(parts) for parts in bridge]
    a = config.attention
    heads = a.num_heads
    feed = np.zeros(hidden)

    def attend(query):
        context, weights = [], []
        for n in range(heads):
            q, h = np.split(query, heads)[n], np.split(x, heads, -1)[n]
            s = p["score"].params if heads > 1 else p["score"]
            s = jax.tree.map(lambda v, n=n: v[n], s) if heads > 1 else s
            if a.score == "additive":
                scores = [s["v"] @ np.tanh(q @ s["query"] + k @ s["key"]) for k in h]
            elif a.score == "general":
                scores = [q @ s["kernel"] @ k for k in h]
            elif a.score == "projected_dot":
                scores = [(q @ s["query"]) @ (k @ s["key"]) for k in h]
            else:
                scores = [q @ k for k in h]
            factor = {"default": 1.0, "inverse_dim": 1 / len(q)}.get(a.scale) or float(a.scale)
            e = np.exp(factor * (np.array(scores) - max(scores)))
            weights.append(e / e.sum())
            context.append(weights[-1] @ h)
        return np.concatenate(context), np.array(weights)

    logits, rows = [], []
    for token in inputs:
        y = p["target_embedding"][token]
        first = p["decoder"]["layer_0"]
        gates = y @ first["input"] + first["bias"]
        if a.score == "none":
            context, weights = final, np.zeros((0, len(x)))
            gates = gates + context @ first["context"]
        elif a.query == "previous":  # Bahdanau: s_{i-1} asks, c_i enters s_i
            context, weights = attend(cells[-1][0])
            gates = gates + context @ first["context"]
        elif a.input_feeding:
            gates = gates + feed @ first["feed"]
        for layer in range(config.num_layers):
            cell = p["decoder"][f"layer_{layer}"]
            if layer:
                gates = cells[layer - 1][0] @ cell["input"] + cell["bias"]
            cells[layer] = cell_step(kind, cell["recurrent"], cells[layer], gates)
        top = cells[-1][0]
        if a.score != "none" and a.query == "current":  # Luong: s_i asks, c_i enters the readout
            context, weights = attend(top)
            read = np.concatenate([top, context])
        else:
            read = np.concatenate([top, context, y])
        feed = np.tanh(read @ p["readout"]["kernel"] + p["readout"]["bias"])
        logits.append(feed @ p["output"]["kernel"] + p["output"]["bias"])
        rows.append(weights)
    return np.array(logits), np.stack(rows, 1)


@pytest.mark.parametrize("name", CONFIGS)
def test_teacher_forcing_equals_the_oracle_sentence_by_sentence(name, seed, quick_compile):
    """Cases 20, 26, 27: padding, the backward pass, and whether s_{i-1} or s_i is the query."""
    config, params = make(name, seed)
    batch = draw(seed, [6, 1, 4], [3, 5, 1], extra=2)
    logits, weights = model.apply(params, config, *batch, with_weights=True)
    for b in range(3):
        n, t = batch.source_length[b], batch.target_length[b]
        inputs = [SOS, *batch.target[b, : t - 1]]
        want, rows = oracle(params, config, batch.source[b, :n], inputs)
        np.testing.assert_allclose(logits[b, :t], want, rtol=2e-4, atol=2e-4)
        np.testing.assert_allclose(weights[b, :, :t, :n], rows, atol=1e-5)
        assert not np.any(weights[b, :, :, n:])
    if config.attention.score != "none":
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_is_stepwise_argmax_and_teacher_forcing_it_gives_the_same_weights(
    name, seed, quick_compile
):
    """Cases 21 and 25: the same output alone or in a batch; the heatmap can be reproduced."""
    config, params = make(name, seed)
    batch = draw(seed, [6, 1, 4, 9], [1, 1, 1, 1], extra=3)
    longest = 7
    greedy = jax.jit(lambda s, n: decode.greedy(model, params, config, s, n, longest))
    together = greedy(batch.source, batch.source_length)
    for b in range(4):
        n = batch.source_length[b]
        alone = greedy(batch.source[b : b + 1, :n], batch.source_length[b : b + 1])
        length = int(alone.length[0])
        assert together.tokens[b].tolist() == alone.tokens[0].tolist()
        assert together.length[b] == length
        said = alone.tokens[0, :length].tolist()
        assert PAD not in said and SOS not in said and EOS not in said[:-1]
        logits, weights = oracle(params, config, batch.source[b, :n], [SOS, *said[:-1]])
        logits[:, [PAD, SOS]] = -np.inf
        assert said == logits.argmax(-1).tolist()
        np.testing.assert_allclose(together.weights[b, :, :length, :n], weights, atol=1e-5)
        assert not np.any(together.weights[b, :, length:])
        forced, rows = model.apply(
            params, config, batch.source[b : b + 1], batch.source_length[b : b + 1],
            np.array([said], np.int32), np.array([length], np.int32), with_weights=True,
        )  # fmt: skip
        assert forced[0].at[:, jnp.array([PAD, SOS])].set(-jnp.inf).argmax(-1).tolist() == said
        np.testing.assert_allclose(rows[0, :, :, :n], weights, atol=1e-5)


def test_a_sentence_ends_at_eos_while_others_go_on(seed, quick_compile):
    """Rows stop one by one: nothing but <pad> and weights of 0 behind each <eos>."""
    config, params = make("bahdanau", seed)
    batch = draw(seed, [6, 1, 4, 9, 3, 7, 2, 5], [1] * 8)
    for push in (50.0, 2.0, 0.0):  # towards <eos>
        params["output"]["bias"] = params["output"]["bias"].at[EOS].add(push)
        out = decode.greedy(model, params, config, batch.source, batch.source_length, 12)
        for tokens, length, weights in zip(*map(np.asarray, out), strict=True):
            ends = np.flatnonzero(tokens == EOS)
            assert length == (ends[0] + 1 if len(ends) else 12)
            assert len(ends) <= 1 and not tokens[length:].any() and not weights[:, length:].any()
            np.testing.assert_allclose(weights[:, :length].sum(-1), 1, atol=1e-5)
        if push == 50.0:
            assert (out.length == 1).all()
        params["output"]["bias"] = params["output"]["bias"].at[EOS].add(-push)


def test_the_decoder_reads_sos_then_words_and_never_eos():
    """Case 23: pairs (<sos> -> a), (a -> b), (b -> <eos>); padding is fed nothing that was said."""
    target = np.array([[7, 8, EOS, PAD], [EOS, PAD, PAD, PAD], [4, 5, 6, EOS]], np.int32)
    inputs = model.shift_right(target, np.array([3, 1, 4]))
    assert inputs.tolist() == [[SOS, 7, 8, PAD], [SOS, PAD, PAD, PAD], [SOS, 4, 5, 6]]


@pytest.mark.parametrize("name", ["fixed context", "bahdanau", "luong, input feeding"])
def test_padding_changes_neither_loss_nor_gradient(name, quick_compile):
    """Case 23: targets that are padding give no gradient, whatever token stands there."""
    config, params = make(name, 3)
    batch = draw(5, [4, 2], [3, 5])
    wide = draw(5, [4, 2], [3, 5])
    pad = [(0, 0), (0, 4)]
    rubbish = np.random.default_rng(0).integers(0, VOCABULARY, (2, 9)).astype(np.int32)
    source, target = np.pad(wide.source, pad), np.pad(wide.target, pad)
    for row, n in zip(source, wide.source_length, strict=True):
        row[n:] = rubbish[0, n : len(row)]
    for row, n in zip(target, wide.target_length, strict=True):
        row[n:] = rubbish[1, n : len(row)]
    wide = wide._replace(source=source, target=target)

    def loss(params, batch):
        logits = model.apply(params, config, *batch)
        return evaluate.token_losses(logits, batch.target, batch.target_length).sum()

    a, da = jax.value_and_grad(loss)(params, batch)
    b, db = jax.value_and_grad(loss)(params, wide)
    np.testing.assert_allclose(a, b, rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), da, db)


def test_dropout_needs_a_key_and_depends_on_it():
    """Case 31: without a key two runs are equal; with one they follow the key."""
    config = small(CONFIGS["luong, input feeding"])
    config = dataclasses.replace(config, dropout=0.5)
    params = model.init(jax.random.key(0), config, VOCABULARY, VOCABULARY)
    batch = draw(1, [4, 2], [3, 5])
    plain = model.apply(params, config, *batch)
    assert np.array_equal(plain, model.apply(params, config, *batch))
    one, two = (model.apply(params, config, *batch, key=jax.random.key(k)) for k in (0, 1))
    assert not np.allclose(one, two) and not np.allclose(one, plain)
    assert np.array_equal(one, model.apply(params, config, *batch, key=jax.random.key(0)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cell": "gur"}, ["model.cell", "'gur'", "did you mean 'gru'"]),
        ({"attention": AttentionConfig(score="aditive")}, ["score", "did you mean 'additive'"]),
        ({"attention": AttentionConfig(query="curent")}, ["query", "did you mean 'current'"]),
        ({"attention": AttentionConfig(scale="rsqrt")}, ["scale", "did you mean 'rsqrt_dim'"]),
        ({"attention": AttentionConfig(num_heads=3)}, ["128", "num_heads=3", "divisible"]),
        (
            {"attention": AttentionConfig(score="dot"), "bidirectional": True},
            ["score='dot'", "128", "256"],
        ),
        ({"attention": AttentionConfig(input_feeding=True)}, ["input_feeding", "query=current"]),
        ({"dropout": 1.0}, ["model.dropout=1.0"]),
        ({"hidden_size": 0}, ["model.hidden_size=0"]),
    ],
)
def test_what_cannot_be_built_is_one_clear_line(change, words):
    with pytest.raises(UserError) as error:
        model.check(dataclasses.replace(ModelConfig(), **change))
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)
