"""Which checkpoints stay, and which one is taken."""

import jax.numpy as jnp
import pytest

from experiments.checkpoint import SELECT_BY, Checkpoints
from experiments.errors import UserError


def state(step):
    return {"w": jnp.full((3, 2), step, jnp.float32), "step": jnp.int32(step)}


@pytest.mark.parametrize(
    ("values", "best"),
    [([3.0, 9.0, 5.0, 4.0], 2), ([1.0, 2.0, 3.0, 4.0], 4), ([7.0, 1.0, 7.0, 0.0], 3)],
)
def test_the_two_newest_and_the_best_stay(tmp_path, values, best):
    kept = Checkpoints(tmp_path, print)
    for step, value in enumerate(values, 1):
        kept.save(step, state(step), {"step": step}, {SELECT_BY: value})
    kept.save(5, state(5), {"step": 5})  # not validated
    kept.wait()
    steps = {int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()}
    assert steps == {4, 5, best}
    newest, info = kept.newest(state(0))
    assert newest["step"] == 5 and info == {"step": 5}
    step, taken = kept.best(state(0))
    assert step == best and (taken["w"] == best).all()
    kept.close()


def test_no_checkpoint_is_one_line(tmp_path):
    kept = Checkpoints(tmp_path, print)
    assert kept.newest(state(0)) is None
    with pytest.raises(UserError, match="holds no checkpoint"):
        kept.best(state(0))
    kept.close()
