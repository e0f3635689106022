"""Training and evaluation as functions: what they check, what they repeat, what they leave out."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_research as ar
from attn_research import scores
from experiments import batches, evaluate, tasks, traced, train
from experiments.config import Config, ModelConfig, OptimConfig, TaskConfig, TrainConfig
from experiments.errors import UserError


@pytest.fixture
def config(tmp_path):
    task = TaskConfig("reverse", data_dir=str(tmp_path), train_examples=60, eval_examples=9)
    task = dataclasses.replace(task, max_length=5)
    model = ModelConfig(hidden_size=8, embedding_size=4, dropout=0.3)
    return Config(task=task, model=model, train=TrainConfig(steps=6, batch_size=4, log_every=2))


def ready(config):
    task = tasks.load(config.task, lambda line: None)
    model = train.load_model(config)
    return task, model, train.initial_state(model, config, task.source.size, task.target.size)


def everything(model, config):
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    evaluator = evaluate.make(model, config, 12, device, device)
    return lambda *run: evaluator(run[0], traced.numbers(model, config), *run[1:])


def test_two_evaluations_are_identical_whatever_the_batch(config, quick_compile, monkeypatch):
    """Cases 21 and 31: dropout is off, nothing is drawn, and the batch size changes no token."""
    task, model, state = ready(config)
    results = []
    for size in (128, 128, 4, 1):
        monkeypatch.setattr(evaluate, "BATCH_SIZE", size)
        results.append(everything(model, config)(state.params, task, "test"))
    assert results[0] == results[1]
    for other in results[2:]:
        assert other.hypotheses == results[0].hypotheses
        np.testing.assert_allclose(other.summary["loss"], results[0].summary["loss"], rtol=1e-5)


def test_what_teacher_forcing_counts_is_what_a_loop_counts(config, quick_compile):
    task, model, state = ready(config)
    split = task.splits["test"]
    ((indices, batch),) = list(batches.eval_batches(split, 16, [(11, 11)]))
    losses, correct = evaluate.teacher_forced(model, state.params, config.model, batch)
    logits = np.asarray(model.apply(state.params, config.model, *batch), np.float64)
    for row, index in enumerate(indices):
        if index < 0:
            assert losses[row] == 0 and correct[row] == 0
            continue
        want, right = 0.0, 0
        for i, token in enumerate([*split.target_ids[index], 2]):
            z = logits[row, i]
            want += np.log(np.exp(z - z.max()).sum()) + z.max() - z[token]
            right += int(z.argmax() == token)
        np.testing.assert_allclose(losses[row], want, rtol=1e-4)
        assert correct[row] == right


def test_the_loss_is_per_real_token_and_steps_repeat(config, quick_compile):
    """Same state, batch and key: same bits; more padding: same gradient step to rounding."""
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, dropout=0.0))
    task, model, state = ready(config)
    batch = batches.TrainBatches(task.splits["train"], 4, 0)[0]
    step, own = jax.jit(train.make_step(model, config)), traced.numbers(model, config)
    key = jax.random.key(0)
    one, two = step(state, batch, key, own), step(state, batch, key, own)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    wide = [np.pad(x, ((0, 0), (0, 3))) if x.ndim == 2 else x for x in batch]
    padded, logged = step(state, batches.Batch(*wide), key, own)
    np.testing.assert_allclose(logged["train/loss"], one[1]["train/loss"], rtol=1e-5)
    np.testing.assert_allclose(
        logged["train/gradient_norm"], one[1]["train/gradient_norm"], rtol=1e-4
    )
    losses, _ = evaluate.teacher_forced(model, state.params, config.model, batch)
    tokens = batch.target_length.sum()
    np.testing.assert_allclose(logged["train/loss"], losses.sum() / tokens, rtol=1e-5)


def test_the_schedule_warms_up_and_decays(config):
    """The first update is of rate 0, the peak comes at the end of warm-up, the end is near 0."""
    optim = OptimConfig(learning_rate=0.5, warmup_steps=3, decay="linear", clip_norm=1e9)
    config = dataclasses.replace(config, optim=optim, train=TrainConfig(steps=9))
    transform = train.optimizer(config)
    params = jnp.zeros(1)
    state, sizes = transform.init(params), []
    for _ in range(9):
        update, state = transform.update(jnp.ones(1), state, params)
        sizes.append(-float(update[0]))
    want = [0, 1 / 3, 2 / 3, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    np.testing.assert_allclose(sizes, 0.5 * np.array(want), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("score", ["none", *(s for s in ar.SCORES if scores.state_axes(s) is None)])
def test_every_score_learns(config, score, quick_compile):
    """A few steps on one batch lower its loss, with the fixed context and with every score."""
    config.model.attention.score = score
    config.model.dropout = 0.0
    config.optim.learning_rate = 0.02
    task, model, state = ready(config)
    batch = batches.TrainBatches(task.splits["train"], 4, 0)[0]
    step, own = jax.jit(train.make_step(model, config)), traced.numbers(model, config)
    losses = []
    for _ in range(20):
        state, logged = step(state, batch, jax.random.key(0), own)
        losses.append(float(logged["train/loss"]))
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    ("group", "field", "value", "words"),
    [
        ("optim", "decay", "cosin", "did you mean 'cosine'"),
        ("optim", "learning_rate", 0.0, "must be above 0"),
        ("optim", "warmup_steps", 7, "more than train.steps=6"),
        ("train", "steps", 0, "at least 1"),
        ("train", "eval_every", -1, "at least 1"),
        ("decode", "beam_size", 4, "only greedy"),
        ("decode", "max_length", 0, "at least 1"),
        ("model", "kind", "rnn_seq2sec", "did you mean 'rnn_seq2seq'"),
    ],
)
def test_what_cannot_run_is_one_line(config, group, field, value, words):
    setattr(getattr(config, group), field, value)
    with pytest.raises(UserError) as error:
        train.check(config)
    assert words in str(error.value) and f"{group}.{field}=" in str(error.value)
