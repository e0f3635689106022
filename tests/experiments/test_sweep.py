"""Sweeps as data: the algebra, and what is refused before anything runs."""

import itertools
import types
from pathlib import Path

import numpy as np
import pytest

from experiments import local, sweep, sweeping, train
from experiments.config import Config, fields
from experiments.errors import UserError
from experiments.sweep import chain, one_at_a_time, product, seeds, zip_


def points(overrides, base=None, default=None):
    module = types.SimpleNamespace(
        get_config=lambda variant: default or Config(), sweep=lambda variant: overrides
    )
    return sweep.points(module, "configs/x.py", "", base or Config(), Path("runs"), train)


def test_product_is_every_combination_once():
    found = product({"a": range(3), "b": ["x", "y"]}, seeds(2))
    want = itertools.product(range(3), "xy", range(2))
    assert [tuple(one.values()) for one in found] == list(want)
    assert [*found[0]] == ["a", "b", "seed"]


def test_sweeps_nest():
    one = one_at_a_time({"a": 0}, {"a": [0, 1]}, {"b": [2]})
    assert one == [{"a": 0}, {"a": 1}, {"a": 0, "b": 2}]
    assert len(product(chain(one, zip_({"a": [5, 6], "b": [7, 8]})), seeds(3))) == 15
    with pytest.raises(UserError, match=r"\[2, 1\]"):
        zip_({"a": [1, 2], "b": [3]})
    with pytest.raises(UserError, match="seed twice"):
        product(seeds(2), {"seed": [1]})


def test_points_are_resolved_and_lie_where_single_runs_lie():
    found = points(product({"model.attention.score": ["dot", "additive"]}, seeds(2)))
    assert [point.config.model.attention.score for point in found] == ["dot"] * 2 + ["additive"] * 2
    assert len({point.path for point in found}) == 4
    assert found[0].path.parent == Path("runs/x")
    assert found[0].config.task.max_number is not None  # the task's own default is filled in
    assert sweep.varying(found) == ["seed", "model.attention.score"]


def test_numbers_become_what_the_command_line_would_make_of_them():
    (one,) = points([{"model.attention.scale": 0.25, "optim.learning_rate": 1}])
    assert one.config.model.attention.scale == "0.25" and one.config.optim.learning_rate == 1.0
    assert isinstance(one.config.optim.learning_rate, float)


def test_equal_points_are_one():
    assert len(points([{"seed": 1}, {"seed": 1, "train.steps": 1000}, {"seed": 2}])) == 2


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ({"model.atention.score": "dot"}, "did you mean 'model.attention.score'"),
        ({"seed": "one"}, "it takes int"),
        ({"seed": True}, "it takes int"),
        ({"task.max_number": 0.5}, "it takes int or None"),
        ({"model.attention.score": "dott"}, "did you mean 'dot'"),
        ({"model.attention.dim": 8, "model.attention.score": "dot"}, "projected_dot"),
        ({"train.batch_size": 0}, "train.batch_size=0"),
    ],
)
def test_a_point_that_cannot_run_is_named(override, words):
    with pytest.raises(UserError) as error:
        points([{"seed": 3}, override])
    assert words in str(error.value) and "point 2 of 2" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: product({"a": "additive"}),
            "a: a sweep takes a list of values, ['additive', ...]",
        ),
        (lambda: product({"a": 8}), "a: a sweep takes a list of values, [8, ...]"),
        (lambda: product({"a": {1, 2}}), "a: a sweep takes a list"),
        (lambda: chain(["dot"]), "no list of overrides"),
        (lambda: chain([{3: 4}]), "no list of overrides"),
        (lambda: seeds("3"), "whole numbers"),
        (lambda: points({"seed": [1, 2]}), "product("),
        (lambda: points(None), "None is no list of overrides"),
        (lambda: points([{"task.data_dir": "/x"}]), "cannot be swept"),
        (lambda: points([]), "has no points"),
    ],
)
def test_mistakes_in_a_sweep_are_one_line(make, words):
    with pytest.raises(UserError) as error:
        make()
    assert words in str(error.value) and "\n" not in str(error.value)


def test_what_a_sweep_raises_is_one_line(monkeypatch):
    def broken(variant):
        raise KeyError("scores")

    module = types.SimpleNamespace(get_config=lambda variant: Config(), sweep=broken)
    with pytest.raises(UserError, match=r"sweep\('quick'\) of x.py: KeyError: 'scores'"):
        sweep.points(module, "x.py", "quick", Config(), Path("runs"), train)


def test_values_of_numpy_are_numbers():
    found = points(product({"optim.learning_rate": np.array([0.5, 0.25]), "seed": np.arange(2)}))
    assert [point.config.optim.learning_rate for point in found] == [0.5, 0.5, 0.25, 0.25]
    assert all(type(point.config.seed) is int for point in found)
    (one,) = points([{"optim.learning_rate": np.float32(0.5)}])
    assert type(one.config.optim.learning_rate) is float


def test_what_the_command_line_sets_holds_and_is_not_set_twice():
    base = Config(seed=5)
    assert [point.config.seed for point in points([{"train.steps": 7}], base)] == [5]
    with pytest.raises(UserError, match="--config.seed is given"):
        points(seeds(2), base)


def test_what_can_be_traced_makes_groups():
    traced = {
        "optim.learning_rate": [1e-3, 1e-2],
        "model.attention.scale": ["none", "rsqrt_dim", "0.3"],
    }
    found = points(product({"model.attention.score": ["dot", "general"]}, traced, seeds(2)))
    groups = local.groups(found, train)
    assert [len(group) for group in groups] == [12, 12]
    assert {point.config.model.attention.score for point in groups[0]} == {"dot"}
    # Dropout at rate 0 is another program, and so is another size.
    found = points(product({"model.dropout": [0.0, 0.1, 0.2], "model.hidden_size": [64, 128]}))
    assert sorted(len(group) for group in local.groups(found, train)) == [1, 1, 2, 2]


def test_a_dry_run_shows_what_differs(tmp_path):
    text = sweeping.dry_run(points(product({"train.steps": [10, 20]}, seeds(2))), train, False)
    head, *rows = text.splitlines()
    assert head.split() == ["point", "group", "seed", "train.steps", "status"]
    assert rows[3].split() == ["4", "2", "1", "20", "missing"]
    assert "steps: 60 in all, 60 left" in text and "time: not known" in text


def test_replaced_fields_are_all_that_changes():
    config = Config()
    other = sweep.with_overrides(config, {"model.attention.score": "dot", "seed": 4})
    changed = {k for k, v in fields(other).items() if v != fields(config)[k]}
    assert changed == {"seed", "model.attention.score"} and config.seed == 0
