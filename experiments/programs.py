"""What is loaded and compiled once, and serves every run of one program (see traced.py): the data,
the training step, evaluation, greedy decoding."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments import batches, decode, evaluate, tasks, traced
from experiments.batches import Batch
from experiments.config import Config


@dataclasses.dataclass(frozen=True)
class Programs:
    """The batch is split over all local devices; parameters are on each of them."""

    task: Any
    model: Any
    max_length: int  # the most tokens that decoding says, <eos> counted
    replicated: NamedSharding
    sharded: NamedSharding
    step: Any  # jitted: (state, batch, key, numbers) -> (state, what is logged)
    evaluate: Callable[..., evaluate.Evaluation]  # (params, numbers, task, name of the split)
    greedy: Callable[..., decode.Decoded]  # (params, numbers, source, length)
    saturation: Callable[..., dict[str, float]]  # (params, numbers), on sentences of validation
    compiled: dict[Any, Any] = dataclasses.field(default_factory=dict)  # the step, by batch shape

    def step_for(self, state: Any, batch: Batch, key: Any, numbers: Any) -> Callable[..., Any]:
        """The step compiled for a batch of this shape, once."""
        shape = shape_of(batch)
        if shape not in self.compiled:
            self.compiled[shape] = self.step.lower(state, batch, key, numbers).compile()
        return self.compiled[shape]


def shape_of(batch: Batch) -> tuple[Any, Any]:
    return batch.source.shape, batch.target.shape


def make(model: Any, config: Config, make_step: Any, log: Callable[[str], None]) -> Programs:
    """For `config`, and all whose `traced.program` is the same. Compiles nothing yet."""
    task: Any = tasks.load(config.task, log)
    longest = max(len(ids) for split in task.splits.values() for ids in split.target_ids)
    max_length = config.decode.max_length or (longest + 1) * 3 // 2  # half again what any has
    mesh = jax.make_mesh((jax.local_device_count(),), ("data",), axis_types=(AxisType.Auto,))
    replicated = NamedSharding(mesh, PartitionSpec())
    sharded = NamedSharding(mesh, PartitionSpec("data"))
    step = jax.jit(
        make_step(model, config),
        donate_argnums=0,
        in_shardings=(replicated, sharded, replicated, replicated),
        out_shardings=replicated,
    )
    return Programs(
        task,
        model,
        max_length,
        replicated,
        sharded,
        step,
        evaluate.make(model, config, max_length, replicated, sharded),
        greedy(model, config, max_length),
        _saturation(model, config, task),
    )


def greedy(model: Any, config: Config, max_length: int) -> Callable[..., decode.Decoded]:
    """The jitted function (params, numbers, source [B, S], length [B]) -> Decoded."""

    @jax.jit
    def run(params: Any, numbers: Any, source: jax.Array, length: jax.Array) -> decode.Decoded:
        own = traced.put(config, numbers).model
        return decode.greedy(model, params, own, source, length, max_length)

    return run


def _saturation(model: Any, config: Config, task: Any) -> Callable[..., dict[str, float]]:
    split = task.splits["validation"]

    @jax.jit
    def run(params: Any, numbers: Any, batch: Batch) -> dict[str, jax.Array]:
        return model.saturation(params, traced.put(config, numbers).model, *batch)

    def measured(params: Any, numbers: Any) -> dict[str, float]:
        shapes = batches.bucket_shapes(split, len(split), 1)
        _, batch = next(batches.eval_batches(split, evaluate.BATCH_SIZE, shapes))
        return {name: float(value) for name, value in run(params, numbers, batch).items()}

    return measured
