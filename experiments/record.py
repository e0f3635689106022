"""What a run writes while it trains: metrics.jsonl, tb/, checkpoints/; and its clock."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from experiments import runs
from experiments.checkpoint import SELECT_BY, Checkpoints
from experiments.clock import Clock
from experiments.config import Config
from experiments.evaluate import Evaluation

Log = Callable[[str], None]


class Record:
    """Of one run, in its directory `path`. Close it."""

    def __init__(self, config: Config, path: Path, log: Log) -> None:
        self.config, self.path, self.log = config, path, log
        self.checkpoints = Checkpoints(path / "checkpoints", log)
        self.clock = Clock()
        self._metrics: runs.Metrics | None = None
        self._pending: tuple[int, dict[str, Any]] | None = None

    def restore(self, like: Any, steps: set[int] | None = None) -> Any:
        """The newest state saved (of these steps), shaped and placed as `like`; `like` itself if
        there is none."""
        restored = self.checkpoints.newest(like, steps)
        state = like
        if restored:
            state, info = restored
            self.clock = Clock(**info)
            self.log(f"goes on from step {int(state.step)}")
        if self._metrics is not None:
            self._metrics.close()
        self._metrics = runs.Metrics(self.path, int(state.step))
        return state

    def trained(self, step: int, logged: dict[str, Any]) -> None:
        """Notes what was logged at this step; it is written when the next is, or at `flush`: its
        numbers are there by then, and the device need not wait."""
        self.flush()
        self._pending = step, logged

    def flush(self) -> None:
        """Raises Diverged if the loss is no number."""
        if self._pending is None:
            return
        (step, arrays), self._pending = self._pending, None
        values = {name: float(value) for name, value in arrays.items()}
        self._write(step, values)
        if not math.isfinite(values["train/loss"]):
            raise runs.Diverged(f"the loss is {values['train/loss']} at step {step}")
        steps = self.config.train.steps
        self.log(
            f"step {step}/{steps}  loss {values['train/loss']:.4f}  "
            f"{self.clock.tokens_per_second():,.0f} target tokens/s  "
            f"{(steps - step) * self.clock.training_seconds() / step:,.0f} s left"
        )

    def validated(self, step: int, state: Any, validation: Evaluation) -> None:
        """Writes what was measured on validation and saves. Diverged if the loss is no number."""
        numbers = {
            f"validation/{name}": value
            for name, value in validation.summary.items()
            if not isinstance(value, str)
        }
        self._write(step, numbers)
        self.log("  ".join(f"{name} {value:.4f}" for name, value in numbers.items()))
        loss = numbers["validation/loss"]
        if not math.isfinite(loss):
            raise runs.Diverged(f"the loss on validation is {loss} at step {step}")
        self.checkpoints.save(step, state, self.clock.totals(), {SELECT_BY: numbers[SELECT_BY]})

    def save(self, step: int, state: Any) -> None:
        """Between two validations."""
        self.flush()
        self.checkpoints.save(step, state, self.clock.totals(), None)

    def best(self, like: Any) -> tuple[dict[str, Any], Any]:
        """What result.json says of training, and the state that did best on validation."""
        self.checkpoints.wait()
        step, state = self.checkpoints.best(like)
        self.log(f"evaluates the best checkpoint on validation, of step {step} ...")
        clock = self.clock
        return {
            "train/steps": self.config.train.steps,
            "train/parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
            "train/seconds": clock.seconds,
            "train/compile_seconds": clock.compile_seconds,
            "train/validation_seconds": clock.validation_seconds,
            "train/target_tokens_per_second": clock.tokens_per_second(),
            "train/best_step": step,
        }, state

    def _write(self, step: int, values: dict[str, float]) -> None:
        assert self._metrics is not None  # restore comes first
        self._metrics.write(step, values)

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
        self.checkpoints.close()
