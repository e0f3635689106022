"""Training: from a config to a finished run directory, resumable at any step, bit for bit.

Data are a function of (seed, step), randomness is `fold_in(key, step)`, so the state below is all
that a resume needs. One device or many, the code is the same: the batch is split over a mesh.
"""

import dataclasses
import importlib
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from experiments import batches, evaluate, programs, results, runs, signals, tasks, traced
from experiments.config import DECAYS, Config, one_of
from experiments.errors import UserError
from experiments.programs import Programs
from experiments.record import Record

Log = Callable[[str], None]


class TrainState(NamedTuple):
    """All that changes in training."""

    params: Any
    opt_state: Any
    step: jax.Array  # int32: steps done
    loss: jax.Array  # float32: summed over the real tokens since the last logged step
    tokens: jax.Array  # float32: how many these were


def check(config: Config) -> Config:
    """The config with the task's defaults filled in. Raises UserError, one line, for one that
    cannot run; compiles and writes nothing."""
    if not 0 <= config.seed < 2**32:
        raise UserError(f"seed={config.seed} is not in 0 .. 2**32 - 1")
    tasks.check(config.task)
    load_model(config).check(config.model)
    one_of("optim.decay", config.optim.decay, DECAYS)
    for field in ("steps", "batch_size", "log_every", "eval_every"):
        if getattr(config.train, field) < 1:
            raise UserError(f"train.{field}={getattr(config.train, field)} must be at least 1")
    for field in ("learning_rate", "clip_norm"):
        if not 0 < getattr(config.optim, field) < math.inf:
            raise UserError(f"optim.{field}={getattr(config.optim, field)} must be above 0, finite")
    for field in ("warmup_steps", "weight_decay"):
        if not 0 <= getattr(config.optim, field) < math.inf:
            raise UserError(f"optim.{field}={getattr(config.optim, field)} must not be negative")
    if config.optim.warmup_steps > config.train.steps:
        raise UserError(
            f"optim.warmup_steps={config.optim.warmup_steps} is more than "
            f"train.steps={config.train.steps}"
        )
    if config.decode.beam_size != 1:
        raise UserError(
            f"decode.beam_size={config.decode.beam_size}: only greedy decoding is there, 1"
        )
    if config.decode.max_length is not None and config.decode.max_length < 1:
        raise UserError(f"decode.max_length={config.decode.max_length} must be at least 1")
    devices = jax.local_device_count()
    if config.train.batch_size % devices:
        near = -(-config.train.batch_size // devices) * devices
        raise UserError(
            f"train.batch_size={config.train.batch_size} is not divisible by the {devices} local "
            f"devices; {near} is"
        )
    return dataclasses.replace(config, task=tasks.resolve(config.task))


def program(config: Config) -> Config:
    """Equal for configs whose runs share a program, and so may be a group (population.py)."""
    return traced.program(load_model(config), config)


def load_model(config: Config) -> Any:
    """The module of experiments/models that `model.kind` names."""
    one_of("model.kind", config.model.kind, ("rnn_seq2seq",))
    return importlib.import_module(f"experiments.models.{config.model.kind}")


def optimizer(config: Config) -> optax.GradientTransformation:
    """AdamW after clipping; the rate warms up from 0 and decays to 0 at the last step."""
    optim, steps = config.optim, config.train.steps
    rate: Any = optim.learning_rate
    if optim.decay == "cosine":
        rate = optax.cosine_decay_schedule(rate, max(steps - optim.warmup_steps, 1))
    elif optim.decay == "linear":
        rate = optax.linear_schedule(rate, 0.0, max(steps - optim.warmup_steps, 1))
    if optim.warmup_steps:
        warm = optax.linear_schedule(0.0, optim.learning_rate, optim.warmup_steps)
        rest = rate if callable(rate) else optax.constant_schedule(rate)
        rate = optax.join_schedules([warm, rest], [optim.warmup_steps])
    return optax.chain(
        optax.clip_by_global_norm(optim.clip_norm),
        optax.adamw(rate, weight_decay=optim.weight_decay),
    )


def make_step(model: Any, config: Config) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """The function (state, batch, key, numbers) -> (state, what is logged); pure. `numbers` are
    those of `traced.numbers`, whatever the config itself says there."""

    def loss_fn(
        params: Any, config: Config, batch: batches.Batch, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        logits = model.apply(params, config.model, *batch, key=key)
        losses = evaluate.token_losses(logits, batch.target, batch.target_length)
        total = losses.sum()
        return total / jnp.maximum(batch.target_length.sum(), 1), total

    def step(state: TrainState, batch: batches.Batch, key: jax.Array, numbers: Any) -> Any:
        own = traced.put(config, numbers)
        key = jax.random.fold_in(key, state.step)
        grad = jax.value_and_grad(loss_fn, has_aux=True)
        (_, total), grads = grad(state.params, own, batch, key)
        updates, opt_state = optimizer(own).update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        carried = state.step % config.train.log_every != 0
        loss = jnp.where(carried, state.loss, 0) + total
        tokens = jnp.where(carried, state.tokens, 0) + batch.target_length.sum()
        logged = {"train/loss": loss / tokens, "train/gradient_norm": optax.tree.norm(grads)}
        return TrainState(params, opt_state, state.step + 1, loss, tokens), logged

    return step


def initial_state(model: Any, config: Config, source_size: int, target_size: int) -> TrainState:
    """Step 0, from the seed alone, for vocabularies of these sizes."""
    key = jax.random.fold_in(jax.random.key(config.seed), 0)
    params = model.init(key, config.model, source_size, target_size)
    opt_state = optimizer(config).init(params)
    loss, tokens = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32)
    return TrainState(params, opt_state, jnp.zeros((), jnp.int32), loss, tokens)


@contextmanager
def asked_to_stop(log: Log) -> Iterator[Callable[[], str]]:
    """Within it SIGTERM and the first Ctrl-C do no more than name themselves through the yielded
    function, so that the loop can save; a second Ctrl-C stops at once."""
    came: list[str] = []

    def note(number: int, frame: Any) -> None:
        if number == signal.SIGINT and came:
            raise signals.Stopped("stopped at once, without saving")
        came.append(signal.Signals(number).name)
        log("stops after this step, and saves first ...")

    with signals.handling(note):
        yield lambda: came[0] if came else ""


def prepare(config: Config, log: Log) -> Programs:
    """What runs that differ only in the seed and in what is traced share."""
    log("loads the data ...")
    return programs.make(load_model(config), config, make_step, log)


def begin(config: Config, path: Path, prepared: Programs) -> TrainState:
    """Writes the vocabularies; the state at step 0."""
    task = prepared.task
    task.source.save(path / "source_vocabulary.json")
    task.target.save(path / "target_vocabulary.json")
    return initial_state(prepared.model, config, *sizes(task))


def sizes(task: Any) -> tuple[int, int]:
    """Of the vocabularies."""
    return task.source.size, task.target.size


def run(config: Config, path: Path, log: Log, prepared: Programs | None = None) -> dict[str, Any]:
    """Trains, or goes on training, in the run directory `path`; evaluates, draws -> result.json."""
    prepared = prepared or prepare(config, log)
    task, numbers = prepared.task, traced.numbers(prepared.model, config)
    state = jax.device_put(begin(config, path, prepared), prepared.replicated)
    size = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    log(
        f"{size:,} parameters; {len(task.splits['train']):,} training sentences; vocabularies of "
        f"{task.source.size:,} and {task.target.size:,}; {jax.local_device_count()} "
        f"{jax.default_backend()} device(s)"
    )
    record = Record(config, path, log)
    try:
        state = record.restore(state)
        with asked_to_stop(log) as stop:
            state = _loop(config, state, prepared, numbers, record, stop, log)
        train, state = record.best(state)
        return evaluated(config, path, prepared, numbers, state.params, train, log)
    finally:
        record.close()


def evaluated(
    config: Config,
    path: Path,
    prepared: Programs,
    numbers: dict[str, float],
    params: Any,
    train: dict[str, Any],
    log: Log,
) -> dict[str, Any]:
    """Evaluates on validation and, this once, on test; draws; what goes into result.json."""
    found = {
        name: prepared.evaluate(params, numbers, prepared.task, name)
        for name in ("validation", "test")
    }
    first = initial_state(prepared.model, config, *sizes(prepared.task)).params
    for when, own in (("initial", first), ("validation", params)):
        measured = prepared.saturation(own, numbers)
        train |= {f"{when}/{name}": value for name, value in measured.items()}
    train |= results.by_step(runs.read_metrics(path), config.train.steps)
    return results.write(path, config, prepared, params, numbers, found, train, log)


def _loop(
    config: Config,
    state: TrainState,
    prepared: Programs,
    numbers: dict[str, float],
    record: Record,
    stop: Callable[[], str],
    log: Log,
) -> TrainState:
    """The steps that are left; validates and saves on the way."""
    steps, first, clock = config.train.steps, int(state.step), record.clock
    key = jax.random.fold_in(jax.random.key(config.seed), 1)
    stream = batches.train_batches(
        prepared.task.splits["train"], config.train.batch_size, config.seed, first, steps
    )
    for step, batch in stream:
        done = step + 1
        shape = programs.shape_of(batch)
        if shape not in prepared.compiled:
            jax.block_until_ready(state)
            log(f"compiles the step for up to {shape[0][1]} x {shape[1][1]} tokens ...")
            with clock.counting("compile_seconds"):
                prepared.step_for(state, batch, key, numbers)
        state, logged = prepared.step_for(state, batch, key, numbers)(state, batch, key, numbers)
        clock.tokens += int(batch.target_length.sum())
        if done == first + 1:
            jax.block_until_ready(state)
            log(f"step {done} is done; a line comes every {config.train.log_every} steps")
        if done % config.train.log_every == 0 or done == steps:
            record.trained(done, logged)
        if done % config.train.eval_every == 0 or done == steps:
            jax.block_until_ready(state)
            record.flush()
            with clock.counting("validation_seconds"):
                validation = prepared.evaluate(state.params, numbers, prepared.task, "validation")
            record.validated(done, state, validation)
        elif stop():
            jax.block_until_ready(state)
            record.save(done, state)
        if stop():
            record.checkpoints.wait()
            raise signals.Stopped(f"stopped by {stop()}, saved at step {done} of {steps}")
    clock.totals()
    return state
