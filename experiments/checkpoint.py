"""Checkpoints through orbax: atomic, the two newest and the best on validation are kept.

A checkpoint is (state, info): the training state as arrays, and a small dict. It carries a digest
of the arrays, so that one damaged on disk is noticed and the one before it used.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

SELECT_BY = "validation/loss"  # the lower the better


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, path: Path) -> None:
        def measure(metrics: Any) -> float:
            return metrics[SELECT_BY]

        best = checkpoint_managers.BestN(
            n=1, get_metric_fn=measure, reverse=True, keep_checkpoints_without_metrics=False
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=checkpoint_managers.AnyPreservationPolicy(
                [checkpoint_managers.LatestN(2), best]
            ),
            best_fn=measure,
            best_mode="min",
            cleanup_tmp_directories=True,
        )
        self._manager = ocp.CheckpointManager(path.absolute(), options=options)

    def save(self, step: int, state: Any, info: dict[str, Any], validation: Any = None) -> None:
        """Saves behind the training's back; `validation` {SELECT_BY: ...} if it was measured."""
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                info=ocp.args.JsonSave(info | {"digest": _digest(state)}),
            ),
            metrics=validation,
        )

    def newest(self, like: Any, log: Callable[[str], None]) -> tuple[Any, dict[str, Any]] | None:
        """(state, info) of the newest sound checkpoint, shaped and placed as `like`, or None.

        Damaged ones are named in a line and deleted: the run comes by these steps again.
        """
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                return self._restore(step, like)
            except Exception as error:  # whatever a damaged file makes orbax raise
                reason = str(error).strip().split("\n")[0][:100]
                log(f"the checkpoint of step {step} is damaged ({reason}); using the one before it")
                self._manager.delete(step)
        return None

    def best(self, like: Any) -> tuple[int, Any]:
        """(step, state) of the checkpoint with the lowest validation loss."""
        step = self._manager.best_step()
        return step, self._restore(step, like)[0]

    def _restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(jax.tree.map(ocp.utils.to_shape_dtype_struct, like)),
                info=ocp.args.JsonRestore(),
            ),
        )
        if restored.info["digest"] != _digest(restored.state):
            raise ValueError("its arrays are not those that were saved")
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
