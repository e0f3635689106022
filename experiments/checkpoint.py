"""Checkpoints through orbax: atomic, the two newest and the best on validation are kept.

A checkpoint is (state, info): the training state as arrays, and a small dict. It carries a digest
of the arrays, so that one damaged on disk is noticed, said, and another one used.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from experiments.errors import UserError

# The higher the better. Not the loss: on sentences longer than those of training it grows while
# translations still improve. Not BLEU: it is 0 where outputs have fewer than four tokens.
SELECT_BY = "validation/chrf"
Log = Callable[[str], None]


class Checkpoints:
    """The checkpoints of one run, in the directory `path`."""

    def __init__(self, path: Path, log: Log) -> None:
        def measure(metrics: Any) -> float:
            return metrics[SELECT_BY]

        best = checkpoint_managers.BestN(
            n=1, get_metric_fn=measure, keep_checkpoints_without_metrics=False
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=checkpoint_managers.AnyPreservationPolicy(
                [checkpoint_managers.LatestN(2), best]
            ),
            best_fn=measure,  # without it orbax keeps no metrics
            cleanup_tmp_directories=True,
        )
        self._path, self._log = path.absolute(), log
        self._drop_unreadable()
        self._manager = ocp.CheckpointManager(self._path, options=options)

    def _drop_unreadable(self) -> None:
        """Orbax reads all metrics as it opens a directory, and stops at a bad file."""
        for file in self._path.glob("*/metrics/metrics"):
            try:
                json.loads(file.read_text())[SELECT_BY]
            except (OSError, ValueError, LookupError, TypeError) as error:
                self._damaged(file.parts[-3], error)
                shutil.rmtree(file.parents[1])

    def _damaged(self, step: Any, error: Exception) -> None:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:100]
        self._log(f"the checkpoint of step {step} is damaged ({reason}); looking for another")

    def save(self, step: int, state: Any, info: dict[str, Any], validation: Any = None) -> None:
        """Saves in the background; `validation` is {SELECT_BY: value} if measured."""
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                info=ocp.args.JsonSave(info | {"digest": _digest(state)}),
            ),
            metrics=validation,
        )

    def steps(self) -> set[int]:
        """Those that were saved."""
        return set(self._manager.all_steps())

    def newest(self, like: Any, steps: set[int] | None = None) -> tuple[Any, dict[str, Any]] | None:
        """(state, info) of the newest sound checkpoint (of these steps), shaped and placed as
        `like`, or None.

        Damaged ones and those that are newer are deleted: the run comes by these steps again.
        """
        for step in sorted(self._manager.all_steps(), reverse=True):
            restored = self._restore(step, like) if steps is None or step in steps else None
            if restored:
                return restored
            self._manager.delete(step)
        return None

    def best(self, like: Any) -> tuple[int, Any]:
        """(step, state) of the checkpoint that did best on validation, the latest if equal."""

        def value(step: int) -> float:
            metrics = self._manager.metrics(step)
            return metrics[SELECT_BY] if metrics else -math.inf  # saved by SIGTERM: not validated

        for step in sorted(self._manager.all_steps(), key=lambda s: (value(s), s), reverse=True):
            restored = self._restore(step, like)
            if restored:
                return step, restored[0]
        raise UserError(f"{self._path} holds no checkpoint; train the run first")

    def _restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """(state, info), or None, having said so, if anything about it is not as it was saved."""
        arguments = ocp.args.Composite(
            state=ocp.args.StandardRestore(jax.tree.map(ocp.utils.to_shape_dtype_struct, like)),
            info=ocp.args.JsonRestore(),
        )
        try:
            restored = self._manager.restore(step, args=arguments)
            if restored.info.pop("digest") != _digest(restored.state):
                raise ValueError("its arrays are not those that were saved")
        except Exception as error:  # whatever a damaged file makes orbax raise
            self._damaged(step, error)
            return None
        return restored.state, restored.info

    def wait(self) -> None:
        """Until what was saved is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()


def _digest(state: Any) -> str:
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        sha.update(np.ascontiguousarray(leaf).tobytes())
    return sha.hexdigest()
