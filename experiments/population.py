"""Runs that share one compiled program (see traced.py), trained as a group.

On one CPU device they run in turn: a vmapped step was never faster there (per member 82 ms for 78
in turn at 128 units and batch 128; 12.3 for 7.0 at 32 units and batch 64), and what is loaded and
compiled once serves all. On an accelerator, or several devices, they are one program: the members
are split over the devices, and vmapped on each. They go step by step together; each has its own
data, metrics, checkpoints and end. The seconds that each is said to take are those of all.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from experiments import batches, programs, runs, signals, traced, train
from experiments.batches import Batch
from experiments.config import Config
from experiments.programs import Programs
from experiments.record import Record
from experiments.train import Log, TrainState


def vmaps() -> bool:
    """Whether members are one program here, and not run in turn."""
    return devices() > 1 or jax.default_backend() != "cpu"


def devices() -> int:
    """Those that members are split over."""
    return jax.local_device_count()


def member_step(step: Any, used: int) -> Any:
    """`step` (state, batch, key, numbers) over a leading axis of members in all of them, split over
    the first `used` devices, jitted."""
    mesh = jax.make_mesh(
        (used,), ("member",), axis_types=(AxisType.Auto,), devices=jax.local_devices()[:used]
    )

    def of_device(*members: Any) -> Any:
        if jax.default_backend() == "cpu":
            return jax.lax.map(lambda member: step(*member), members)
        return jax.vmap(step)(*members)

    spec = PartitionSpec("member")
    # No check of what varies over members: all does, but the step's own scans begin with constants.
    split = jax.shard_map(
        of_device, mesh=mesh, in_specs=(spec,) * 4, out_specs=spec, check_vma=False
    )
    return jax.jit(split, donate_argnums=0)


class Member:
    """One run of a group."""

    def __init__(self, config: Config, path: Path, prepared: Programs, log: Log) -> None:
        self.config, self.path, self.log = config, path, log
        self.record = Record(config, path, log)
        self.first = train.begin(config, path, prepared)
        self.numbers = traced.numbers(prepared.model, config)
        self.key = jax.random.fold_in(jax.random.key(config.seed), 1)
        self.data = batches.TrainBatches(
            prepared.task.splits["train"], config.train.batch_size, config.seed
        )
        self.outcome: dict[str, Any] | Exception | None = None  # None: it goes on

    @contextlib.contextmanager
    def surviving(self) -> Any:
        """What goes wrong within is this member's end, and no other's."""
        try:
            yield
        except Exception as error:
            self.outcome = error
            runs.fail(self.path, error)  # at once: others may be killed before they end


def run(
    configs: Sequence[Config], paths: Sequence[Path], log: Log, prepared: Programs
) -> list[dict[str, Any] | Exception]:
    """Trains all as one program; what each came to: what goes into its result.json, or why it has
    none."""
    members = [
        Member(*one, prepared, _prefixed(log, one[1])) for one in zip(configs, paths, strict=True)
    ]
    try:
        common = set.intersection(*(m.record.checkpoints.steps() for m in members))
        states = [m.record.restore(m.first, common) for m in members]
        at = {int(state.step) for state in states}
        if len(at) > 1:  # a damaged checkpoint among them
            common = {step for step in common if step <= min(at)}
            states = [m.record.restore(m.first, common) for m in members]
        with train.asked_to_stop(log) as stop:
            _loop(members, jax.device_get(states), prepared, stop, log)
        for member in members:
            if member.outcome is None:
                with member.surviving():
                    numbers, state = member.record.best(member.first)
                    member.outcome = train.evaluated(
                        member.config,
                        member.path,
                        prepared,
                        member.numbers,
                        jax.device_get(state.params),
                        numbers,
                        member.log,
                    )
    finally:
        for member in members:
            member.record.close()
    return [member.outcome for member in members if member.outcome is not None]


def _loop(
    members: list[Member], first: list[TrainState], prepared: Programs, stop: Any, log: Log
) -> None:
    """The steps that are left, of all together, each from its state in `first`."""
    config = members[0].config  # what is read of it here is the same in all
    steps = config.train.steps
    used = min(devices(), len(members))
    step_fn = member_step(train.make_step(prepared.model, config), used)
    # As many rows on each device: the last member fills up what is left, and is not looked at.
    rows = [*range(len(members)), *[len(members) - 1] * (-len(members) % used)]
    states = _stacked([first[i] for i in rows])
    keys = jnp.stack([members[i].key for i in rows])
    numbers = _stacked([members[i].numbers for i in rows])
    compiled: dict[Any, Any] = {}
    for step in range(int(first[0].step), steps):
        done, own = step + 1, [m.data[step] for m in members]
        batch = _common([own[i] for i in rows])
        shape = programs.shape_of(batch)
        if shape not in compiled:
            jax.block_until_ready(states)
            log(f"compiles the step of {len(members)} members for {shape} tokens ...")
            with contextlib.ExitStack() as stack:
                for member in members:
                    stack.enter_context(member.record.clock.counting("compile_seconds"))
                compiled[shape] = step_fn.lower(states, batch, keys, numbers).compile()
        states, logged = compiled[shape](states, batch, keys, numbers)
        for member, its in zip(members, own, strict=True):
            member.record.clock.tokens += int(its.target_length.sum())
        asked = stop()
        validates = done % config.train.eval_every == 0 or done == steps
        logs = done % config.train.log_every == 0 or done == steps
        if not (logs or validates or asked):
            continue
        for i, member in enumerate(members):
            if member.outcome is None:
                with member.surviving():
                    if logs:
                        member.record.trained(done, _member(logged, i))
                    if validates:
                        _validate(member, done, _member(states, i), prepared)
                    elif asked:
                        member.record.save(done, jax.device_get(_member(states, i)))
        if asked:
            for member in members:
                member.record.checkpoints.wait()
            raise signals.Stopped(f"stopped by {asked}, saved at step {done} of {steps}")
        if all(member.outcome is not None for member in members):
            return
    for member in members:
        member.record.clock.totals()


def _validate(member: Member, done: int, state: TrainState, prepared: Programs) -> None:
    member.record.flush()
    state = jax.device_get(state)
    with member.record.clock.counting("validation_seconds"):
        found = prepared.evaluate(state.params, member.numbers, prepared.task, "validation")
    member.record.validated(done, state, found)


def _common(own: Sequence[Batch]) -> Batch:
    """[members, B, ...]: the batches of all, padded to one shape."""
    widest = [max(batch[i].shape[-1] for batch in own) for i in (0, 2)]

    def padded(batch: Batch) -> Batch:
        wide = [
            np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=batches.PAD)
            for x, width in zip((batch.source, batch.target), widest, strict=True)
        ]
        return Batch(wide[0], batch.source_length, wide[1], batch.target_length)

    return Batch(*(np.stack(x) for x in zip(*map(padded, own), strict=True)))


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)


def _member(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda x: x[i], tree)


def _prefixed(log: Log, path: Path) -> Log:
    return lambda line: log(f"{path.name}: {line}")
