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
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments import batches, evaluate, results, runs, tasks
from experiments.checkpoint import SELECT_BY, Checkpoints
from experiments.clock import Clock
from experiments.config import DECAYS, Config, one_of
from experiments.errors import UserError

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
    """The function (state, batch, key) -> (state, what is logged); pure."""
    transform = optimizer(config)

    def loss_fn(params: Any, batch: batches.Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = model.apply(params, config.model, *batch, key=key)
        losses = evaluate.token_losses(logits, batch.target, batch.target_length)
        total = losses.sum()
        return total / jnp.maximum(batch.target_length.sum(), 1), total

    def step(state: TrainState, batch: batches.Batch, key: jax.Array) -> Any:
        key = jax.random.fold_in(key, state.step)
        (_, total), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, batch, key)
        updates, opt_state = transform.update(grads, state.opt_state, state.params)
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


def max_length(config: Config, task: Any) -> int:
    """The most tokens that decoding says, <eos> counted: half again what any target has."""
    longest = max(len(ids) for split in task.splits.values() for ids in split.target_ids)
    return config.decode.max_length or (longest + 1) * 3 // 2


@contextmanager
def _asked_to_stop(log: Log) -> Iterator[Callable[[], str]]:
    """Within it SIGTERM and the first Ctrl-C do no more than name themselves through the yielded
    function, so that the loop can save; a second Ctrl-C stops at once."""
    came: list[str] = []

    def note(number: int, frame: Any) -> None:
        if number == signal.SIGINT and came:
            raise runs.Stopped("stopped at once, without saving")
        came.append(signal.Signals(number).name)
        log("stops after this step, and saves first ...")

    with runs.handling(note):
        yield lambda: came[0] if came else ""


def run(config: Config, path: Path, log: Log) -> dict[str, Any]:
    """Trains, or goes on training, in the run directory `path`; evaluates, draws -> result.json."""
    log("loads the data ...")
    task = tasks.load(config.task, log)
    model = load_model(config)
    task.source.save(path / "source_vocabulary.json")
    task.target.save(path / "target_vocabulary.json")
    mesh = jax.make_mesh((jax.local_device_count(),), ("data",), axis_types=(AxisType.Auto,))
    replicated = NamedSharding(mesh, PartitionSpec())
    sharded = NamedSharding(mesh, PartitionSpec("data"))
    step_fn = jax.jit(
        make_step(model, config),
        donate_argnums=0,
        in_shardings=(replicated, sharded, replicated),
        out_shardings=replicated,
    )
    state = initial_state(model, config, task.source.size, task.target.size)
    state = jax.device_put(state, replicated)
    size = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    log(
        f"{size:,} parameters; {len(task.splits['train']):,} training sentences; vocabularies of "
        f"{task.source.size:,} and {task.target.size:,}; {jax.local_device_count()} "
        f"{jax.default_backend()} device(s)"
    )
    checkpoints = Checkpoints(path / "checkpoints", log)
    clock = Clock()
    restored = checkpoints.newest(state)
    if restored:
        state, info = restored
        clock = Clock(**info)
        log(f"goes on from step {int(state.step)}")
    metrics = runs.Metrics(path, int(state.step))
    evaluator = evaluate.make(model, config, max_length(config, task), replicated, sharded)
    try:
        with _asked_to_stop(log) as stop:
            state = _loop(
                config, state, task, step_fn, evaluator, checkpoints, metrics, clock, stop, log
            )
        train: dict[str, Any] = {
            "train/steps": config.train.steps,
            "train/parameters": size,
            "train/seconds": clock.seconds,
            "train/compile_seconds": clock.compile_seconds,
            "train/validation_seconds": clock.validation_seconds,
            "train/target_tokens_per_second": clock.tokens_per_second(),
        }
        checkpoints.wait()
        train["train/best_step"], state = checkpoints.best(state)
        log(f"evaluates the best checkpoint on validation, of step {train['train/best_step']} ...")
        found = {name: evaluator(state.params, task, name) for name in ("validation", "test")}
    finally:
        metrics.close()
        checkpoints.close()
    return results.write(path, config, task, model, state.params, found, train, log)


def _loop(
    config: Config,
    state: TrainState,
    task: Any,
    step_fn: Any,
    evaluator: Any,
    checkpoints: Checkpoints,
    metrics: runs.Metrics,
    clock: Clock,
    stop: Callable[[], str],
    log: Log,
) -> TrainState:
    """The steps that are left; validates and saves on the way. `clock` goes on counting."""
    steps, first = config.train.steps, int(state.step)
    key = jax.random.fold_in(jax.random.key(config.seed), 1)
    programs: dict[Any, Any] = {}
    pending: tuple[int, dict[str, jax.Array]] | None = None

    def flush() -> None:
        """Writes the last logged step; its numbers are there by now, the device need not wait."""
        nonlocal pending
        if pending is None:
            return
        step, arrays = pending
        pending = None
        values = {name: float(value) for name, value in arrays.items()}
        metrics.write(step, values)
        if not math.isfinite(values["train/loss"]):
            raise runs.Diverged(f"the loss is {values['train/loss']} at step {step}")
        log(
            f"step {step}/{steps}  loss {values['train/loss']:.4f}  "
            f"{clock.tokens_per_second():,.0f} target tokens/s  "
            f"{(steps - step) * clock.training_seconds() / step:,.0f} s left"
        )

    stream = batches.train_batches(
        task.splits["train"], config.train.batch_size, config.seed, first, steps
    )
    for step, batch in stream:
        done = step + 1
        shape = batch.source.shape, batch.target.shape
        if shape not in programs:
            jax.block_until_ready(state)
            log(f"compiles the step for up to {shape[0][1]} x {shape[1][1]} tokens ...")
            with clock.counting("compile_seconds"):
                programs[shape] = step_fn.lower(state, batch, key).compile()
        state, logged = programs[shape](state, batch, key)
        clock.tokens += int(batch.target_length.sum())
        if done == first + 1:
            jax.block_until_ready(state)
            log(f"step {done} is done; a line comes every {config.train.log_every} steps")
        if done % config.train.log_every == 0 or done == steps:
            flush()
            pending = done, logged
        if done % config.train.eval_every == 0 or done == steps:
            jax.block_until_ready(state)
            flush()
            with clock.counting("validation_seconds"):
                summary = evaluator(state.params, task, "validation").summary
            numbers = {
                f"validation/{name}": value
                for name, value in summary.items()
                if not isinstance(value, str)
            }
            metrics.write(done, numbers)
            log("  ".join(f"{name} {value:.4f}" for name, value in numbers.items()))
            loss = numbers["validation/loss"]
            if not math.isfinite(loss):
                raise runs.Diverged(f"the loss on validation is {loss} at step {done}")
            checkpoints.save(done, state, clock.totals(), {SELECT_BY: numbers[SELECT_BY]})
        elif stop():
            jax.block_until_ready(state)
            flush()
            checkpoints.save(done, state, clock.totals(), None)
        if stop():
            checkpoints.wait()
            raise runs.Stopped(f"stopped by {stop()}, saved at step {done} of {steps}")
    clock.totals()
    return state
