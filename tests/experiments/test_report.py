"""Reports of made-up sweeps: what is in them, against what was written into the runs."""

import csv
import dataclasses
import html
import json
import re
import time
import urllib.parse

import numpy as np
import pytest

from experiments import (
    report,
    report_attention,
    report_data,
    report_html,
    runs,
    summary,
    sweep,
    sweep_figures,
)
from experiments.worked_examples import WorkedExamplesConfig
from tests.experiments import fake_sweep

COMMAND = ["launch.py", "--config=configs/<x>.py", "--sweep", "two words"]
GRID = sweep.product(
    {"model.attention.score": ["additive", "none"]}, {"model.hidden_size": [16, 64]}, sweep.seeds(3)
)


def written(folder, points):
    """(the page, the data in it, what was logged) of a report."""
    lines = []
    report.write(folder, points, COMMAND, lines.append)
    page = (folder / "report.html").read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return page, json.loads(data[1]), "\n".join(lines)


@pytest.fixture
def no_figures(monkeypatch):
    """Those of matplotlib take a second a report."""
    monkeypatch.setattr(sweep_figures, "write", lambda *_: [])


def table(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_statistics_are_of_what_the_runs_wrote(tmp_path, rng, no_figures):
    points = fake_sweep.make(tmp_path / "fake", rng, GRID)
    fake_sweep.undo(points[4], "diverged", "the loss is nan at step 7")
    page, data, log = written(tmp_path / "fake", points)
    assert log == "11 of 12 runs done, 1 diverged" and log in page
    assert [one["label"] for one in data["conditions"]] == [
        "hidden_size=16, score=additive", "hidden_size=64, score=additive",
        "hidden_size=16, score=none", "hidden_size=64, score=none",
    ]  # fmt: skip
    assert [one["runs"] for one in data["conditions"]] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [9, 10, 11],
    ]
    losses = [runs.result(point.path).get("test/loss") for point in points]
    rows = [row for row in table(tmp_path / "fake/statistics.csv") if row["metric"] == "test/loss"]
    assert [row["n"] for row in rows] == ["3", "2", "3", "3"]
    assert [row["pairs"] for row in rows] == ["0", "2", "3", "3"]
    for row, members in zip(rows, ([0, 1, 2], [3, 5], [6, 7, 8], [9, 10, 11]), strict=True):
        assert float(row["mean"]) == pytest.approx(np.mean([losses[k] for k in members]))
    want = np.mean([losses[3] - losses[0], losses[5] - losses[2]])
    assert float(rows[1]["difference"]) == pytest.approx(want)
    assert rows[0]["difference"] == rows[0]["p"] == ""
    shown = data["statistics"]["test/loss"][1]
    assert shown["difference"] == pytest.approx(want, rel=1e-5)
    assert len(table(tmp_path / "fake/summary.csv")) == 12
    assert data["axis"] == 0 and data["factors"][0]["ticks"] == [16, 64]
    assert not data["factors"][1]["numeric"] and list(data["statistics"])[0] == "test/exact_match"


def test_what_is_not_done_is_listed_with_its_reason(tmp_path, rng, no_figures):
    points = fake_sweep.make(tmp_path / "fake", rng, GRID)
    fake_sweep.undo(points[0], "missing")
    fake_sweep.undo(points[1], "failed", "ValueError: <b>no</b>")
    fake_sweep.undo(points[2], "running")  # of a process that has gone
    fake_sweep.undo(points[3], "running")
    with runs.locked(points[3].path):
        page, data, log = written(tmp_path / "fake", points)
    section = page[page.index('id="unfinished"') : page.index('id="results"')]
    rows = [
        [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall("<td.*?</td>", row)][:3]
        for row in re.findall("<tr><td>.*?</tr>", section)
    ]
    assert rows == [
        ["missing", "hidden_size=16, score=additive, seed=0", "has not begun"],
        ["failed", "hidden_size=16, score=additive, seed=1", "ValueError: <b>no</b>"],
        ["stopped", "hidden_size=16, score=additive, seed=2",
         "at step 400 of 400; the same command goes on from what is saved"],
        ["running", "hidden_size=64, score=additive, seed=0", "at step 400 of 400"],
    ]  # fmt: skip
    assert log == "8 of 12 runs done, 1 failed, 1 missing, 1 running, 1 stopped"
    assert [run["status"] for run in data["runs"][:4]] == [
        "missing",
        "failed",
        "stopped",
        "running",
    ]


def test_before_any_run_has_begun(tmp_path, rng):
    points = fake_sweep.make(tmp_path / "fake", rng, GRID[:4])
    for point in points:
        fake_sweep.undo(point, "missing")
    page, data, log = written(tmp_path / "fake", points)
    assert log == "0 of 4 runs done, 4 missing"
    assert data["statistics"] == data["curves"] == data["lengths"] == {}
    assert data["attention"] == [] and page.count("has not begun") == 4
    assert [row["n"] for row in table(tmp_path / "fake/statistics.csv")] == ["0", "0"]
    assert not list(tmp_path.glob("fake/figures/*"))


def test_an_experiment_that_trains_nothing(tmp_path):
    """Its own schema, no metrics.jsonl, texts and numbers of any name in result.json."""
    points = []
    for seed in range(3):
        config = WorkedExamplesConfig(seed=seed)
        path = tmp_path / "worked" / f"seed={seed}-x"
        path.mkdir(parents=True)
        runs.describe(path, config)
        runs.write_json(
            path / "result.json", {"a/weight 1": 0.5 + seed, "what": "text", "yes": True}
        )
        runs.set_status(path, "done")
        points.append(sweep.Point(config, path))
    page, data, log = written(tmp_path / "worked", points)
    assert log == "3 of 3 runs done" and data["factors"] == [] and data["axis"] == -1
    assert data["metrics"] == ["a/weight 1"] and data["conditions"][0]["label"] == "worked"
    assert data["statistics"]["a/weight 1"][0]["mean"] == 1.5
    assert sorted(path.name for path in (tmp_path / "worked/figures").iterdir()) == [
        f"a_weight_1_by_condition.{suffix}" for suffix in ("csv", "pdf", "png")
    ]


def test_what_was_run(tmp_path, rng, no_figures):
    points = fake_sweep.make(tmp_path / "fake", rng, GRID[:3], commit="aaaa")
    points += fake_sweep.make(tmp_path / "fake", rng, GRID[3:5], commit="bbbb")
    env = json.loads((points[4].path / "env.json").read_text())
    runs.write_json(points[4].path / "env.json", env | {"git_diff": "+x"})
    (points[3].path / "env.json").write_text('{"git_commit": "cut sh')
    page, _, _ = written(tmp_path / "fake", points)
    text = html.unescape(page)
    assert "launch.py '--config=configs/<x>.py' --sweep 'two words'" in text
    assert "configs/<x>" not in page
    assert "aaaa (runs: 3)" in text
    assert "bbbb with uncommitted changes (git_diff in env.json) (runs: 1)" in text
    assert "jax 0.10.2, flax 0.12.1" in text and "Linux-6.1-x86_64; 2 CPUs; devices: cpu" in text
    assert (
        "<code>model.hidden_size</code>: 16, 64" in text and "<code>seed</code>: 3 values" in text
    )
    assert "<td><code>optim.learning_rate</code></td><td>0.003</td>" in text


def test_nothing_of_the_runs_ends_a_script_or_becomes_markup(tmp_path, rng, no_figures):
    points = fake_sweep.make(tmp_path / "fake", rng, GRID[:2])
    page, data, _ = written(tmp_path / "fake", points)
    assert fake_sweep.SOURCES[1] == " ".join(data["attention"][0]["examples"][1]["source"])
    assert "<script>alert" not in page
    own = page.replace(page[page.index("<script>/**") : page.index("<script>(() =>")], "")
    assert own.count("<script") == own.count("</script>") == 2
    assert not re.search(r'(src|href)="(https?:)?//', own)


def test_links_lead_to_files(tmp_path, rng):
    points = fake_sweep.make(tmp_path / "fake", rng, GRID[:1])
    moved = points[0].path.with_name("odd #1 100%?é")
    points[0].path.rename(moved)
    found = report_data.links(tmp_path / "fake", moved)
    assert {name for name, _ in found} >= {"config.json", "result.json", "metrics.jsonl"}
    for name, address in found:
        assert not re.search("[#? ]", address)
        assert (tmp_path / "fake" / urllib.parse.unquote(address)) == moved / name


def test_curves_are_mean_and_range_over_the_seeds_that_are_there(tmp_path, rng):
    points = fake_sweep.make(tmp_path / "fake", rng, GRID[:3])
    losses = rng.uniform(1, 2, size=(3, 4))
    for point, row in zip(points, losses.tolist(), strict=True):
        lines = [{"step": 10 * k + 10, "train/loss": x, "other": 1} for k, x in enumerate(row)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (point.path / "metrics.jsonl").write_text(text)
    with open(points[0].path / "metrics.jsonl", "a") as file:
        file.write('{"step": 50, "train/loss": null}\n{"step": 60, "train/lo')  # cut short
    text = (points[1].path / "metrics.jsonl").read_text().splitlines()
    (points[1].path / "metrics.jsonl").write_text("\n".join(text[:2]) + "\n")  # half-way
    made = report_data.group(points, summary.rows(points))
    assert list(report_data.curves(made)) == ["train/loss"]
    (one,) = report_data.curves(made)["train/loss"]
    assert one["x"] == [10, 20, 30, 40] and one["n"] == [3, 3, 2, 2]
    np.testing.assert_allclose(one["y"][:2], losses.mean(0)[:2], rtol=1e-5)
    np.testing.assert_allclose(one["y"][2:], losses[[0, 2]].mean(0)[2:], rtol=1e-5)
    np.testing.assert_allclose(one["low"][:2], losses.min(0)[:2], rtol=1e-5)
    np.testing.assert_allclose(one["high"][2:], losses[[0, 2]].max(0)[2:], rtol=1e-5)


def test_long_curves_are_thinned_and_keep_both_ends():
    steps = {float(x): [2.0 * x] for x in range(1, 1001)}
    one = report_data._series(3, steps, 50)
    assert len(one["x"]) == 50 and one["of"] == 1000 and one["x"][0] == 1 and one["x"][-1] == 1000
    assert set(np.diff(one["x"])) <= {20.0, 21.0} and one["y"] == [2 * x for x in one["x"]]


def test_heatmaps_hold_the_weights_and_are_limited_by_whole_runs(tmp_path, rng):
    points = fake_sweep.make(tmp_path / "fake", rng, GRID[:6], heads=3)
    made = report_data.group(points, summary.rows(points))
    found = report_attention.gather(made)
    assert (found.found, found.shown, found.broken) == (24, 24, 0)
    with np.load(points[4].path / "figures/attention_2.npz") as saved:
        weights = saved["weights"]
    shown = np.array(found.runs[4]["examples"][2]["weights"]) / report_attention.PRECISION
    assert shown.shape == (1, *weights.shape)
    np.testing.assert_allclose(shown[0], weights, atol=0.5001 / report_attention.PRECISION)
    few = report_attention.gather(made, heatmaps=9)  # a seed of each condition, no more
    assert [run["point"] for run in few.runs] == [0, 3] and few.shown == 8 and few.found == 24
    cells = report_attention.gather(made, cells=weights.size)
    assert 0 < cells.shown < 24


def test_heatmaps_that_are_none_are_counted(tmp_path, rng):
    (point,) = fake_sweep.make(tmp_path / "fake", rng, GRID[:1])
    folder = point.path / "figures"
    (folder / "attention_0.npz").write_bytes(b"PK no")
    np.savez(folder / "attention_1.npz", weights=np.ones((2, 3)))
    tokens = {"source_tokens": np.array(["a", "b"]), "target_tokens": np.array(["c"])}
    np.savez(folder / "attention_2.npz", weights=np.array([[np.nan, -0.25]]), **tokens)
    np.savez(folder / "attention_3.npz", weights=np.zeros((2, 3, 1, 2)), **tokens)
    found = report_attention.gather(report_data.group([point], summary.rows([point])))
    assert (found.found, found.shown, found.broken) == (4, 2, 2)
    assert found.runs[0]["examples"][0]["weights"] == [[[[None, -2500]]]]
    assert np.shape(found.runs[0]["examples"][1]["weights"]) == (2, 3, 1, 2)


@pytest.mark.slow
def test_two_hundred_runs_take_seconds(tmp_path, rng):
    """What is promised is under 10 s; most of it is matplotlib's."""
    overrides = sweep.product(
        {"model.attention.score": ["additive", "dot", "general", "none", "projected_dot"]},
        {"model.hidden_size": [16, 64, 256, 1024]},
        {"optim.learning_rate": [0.001, 0.01]},
        sweep.seeds(5),
    )
    points = fake_sweep.make(tmp_path / "fake", rng, overrides, steps=2000, log_every=10)
    began = time.perf_counter()
    page, data, _ = written(tmp_path / "fake", points)
    assert time.perf_counter() - began < 10
    assert len(page) < 10e6 and len(data["runs"]) == 200
    drawn = sum(len(one["x"]) for series in data["curves"].values() for one in series)
    assert drawn <= report_data.CURVE_POINTS
    assert sum(len(run["examples"]) for run in data["attention"]) <= report_attention.HEATMAPS


def test_data_are_strict_json_without_an_angle_bracket():
    """What no JSON has, NaN and infinity, is null; keys become texts."""
    text = report_html.embedded({1: (float("inf"), "é\ud800<"), "x": [None, True]})
    assert json.loads(text) == {"1": [None, "é\ud800<"], "x": [None, True]} and "<" not in text


def test_conditions_of_equal_points_count_a_seed_once(tmp_path, rng):
    """Two directories that hold one config: one value, not two."""
    first, second = fake_sweep.make(tmp_path / "fake", rng, GRID[:2])
    twin = sweep.Point(dataclasses.replace(second.config, seed=first.config.seed), second.path)
    made = report_data.group([first, twin], summary.rows([first, twin]))
    assert made.members == [[0, 1]] and made.compare("test/loss")[0].n == 1
