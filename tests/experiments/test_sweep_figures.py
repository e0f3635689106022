import csv

import numpy as np
import pytest
from PIL import Image

from experiments import report_data, statistics, summary, sweep, sweep_figures
from tests.experiments import fake_sweep

GRID = sweep.product(
    {"model.attention.score": ["additive", "none"]},
    {"model.hidden_size": [16, 256]},
    sweep.seeds(2),
)


def drawn(folder, points):
    """(the names of the figures, the sweep) in folder/figures."""
    made = report_data.group(points, summary.rows(points))
    compared = {metric: made.compare(metric) for metric in made.metrics}
    curves = report_data.curves(made)
    return sweep_figures.write(folder / "figures", made, compared, curves), made


def table(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_each_figure_is_a_column_wide_with_its_numbers_beside_it(tmp_path, rng):
    points = fake_sweep.make(tmp_path / "fake", rng, GRID)
    fake_sweep.undo(points[-1], "failed", "why")
    names, made = drawn(tmp_path, points)
    assert names == [
        "test_exact_match_by_condition", "test_exact_match_by_hidden_size",
        "test_loss_by_condition", "test_loss_by_hidden_size", "learning_curves",
    ]  # fmt: skip
    files = {path.name for path in (tmp_path / "figures").iterdir()}
    assert files == {f"{name}.{suffix}" for name in names for suffix in ("csv", "pdf", "png")}
    for name in names:
        assert (tmp_path / f"figures/{name}.pdf").read_bytes()[:5] == b"%PDF-"
        with Image.open(tmp_path / f"figures/{name}.png") as image:
            assert image.width == round(3.4 * 300) and np.asarray(image.convert("L")).std() > 10
    want = made.compare("test/loss")
    for name in ("test_loss_by_condition", "test_loss_by_hidden_size"):
        rows = table(tmp_path / f"figures/{name}.csv")
        values = {(row["model.attention.score"], row["model.hidden_size"]): row for row in rows}
        for one, (size, score) in zip(want, made.values, strict=True):
            row = values[score, str(size)]
            assert float(row["mean"]) == one.mean and int(row["n"]) == one.n
            assert row["low"] == ("" if one.n == 1 else str(one.low))
    rows = table(tmp_path / "figures/learning_curves.csv")
    assert {row["curve"] for row in rows} == {"train/loss", "validation/exact_match"}
    assert len(rows) == 4 * (20 + 4)


def test_intervals_and_seeds_are_where_the_numbers_are(tmp_path, rng, monkeypatch):
    """What is drawn, read back from the axes."""
    figures = {}
    monkeypatch.setattr(
        sweep_figures, "_save", lambda fig, path, _: figures.update({path.name: fig})
    )
    points = fake_sweep.make(tmp_path / "fake", rng, GRID)
    _, made = drawn(tmp_path, points)
    axes = figures["test_loss_by_condition"].axes[0]
    found = made.compare("test/loss")
    spans = [tuple(line.get_xdata()) for line in axes.lines if line.get_linestyle() == "-"]
    assert [(one.low, one.high) for one in found] == [s for s in spans if len(s) == 2]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the baseline is at the top
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "16 · additive", "256 · additive", "16 · none", "256 · none",
    ]  # fmt: skip
    axes = figures["test_loss_by_hidden_size"].axes[0]
    assert axes.get_xscale() == "log" and len(axes.lines) == 2
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), [found[2].mean, found[3].mean])
    np.testing.assert_allclose(axes.lines[1].get_xdata(), [16, 256], rtol=0.02)
    for figure in figures.values():  # text is of 7 or 8 points
        figure.canvas.draw()
        sizes = {t.get_fontsize() for ax in figure.axes for t in ax.get_xticklabels()}
        assert sizes == {8.0}


@pytest.mark.parametrize("count", [1, 60])
def test_few_and_many_conditions(tmp_path, rng, count):
    """Labels lie within the figure and do not overlap; what is left out is said."""
    rates = [0.001 * (k + 1) for k in range(count)]
    config = {"optim.learning_rate": rates, "model.attention.scale": ["$x_1$ \\frac{"]}
    points = fake_sweep.make(tmp_path / "fake", rng, sweep.product(config), steps=100)
    made = report_data.group(points, summary.rows(points))
    figures = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_figures, "_save", lambda figure, *_: figures.append(figure))
        found = made.compare("test/loss")
        sweep_figures.by_condition(tmp_path, made, "test/loss", found)
        sweep_figures.learning_curves(tmp_path, made, report_data.curves(made))
    first, second = figures
    for figure in figures:
        figure.canvas.draw()
    boxes = [label.get_window_extent() for label in first.axes[0].get_yticklabels()]
    assert len(boxes) == min(count, sweep_figures.ROWS)
    assert all(one.y0 >= two.y1 - 1 for one, two in zip(boxes, boxes[1:], strict=False))
    assert min(box.x0 for box in boxes) >= 0
    if count == 60:
        assert "the first 48 of 60" in first.get_suptitle()
        assert "the first 8 of 60" in second.legends[0].get_title().get_text()
    assert all(len(axes.lines) == min(count, 8) for axes in second.axes)


def test_nothing_to_draw(tmp_path, rng):
    points = fake_sweep.make(tmp_path / "fake", rng, GRID[:2])
    for point in points:
        fake_sweep.undo(point, "missing")
    assert drawn(tmp_path, points)[0] == []


def test_a_condition_without_a_result_has_its_row(tmp_path, rng):
    points = fake_sweep.make(tmp_path / "fake", rng, GRID)
    for point in points[:2]:  # the baseline
        fake_sweep.undo(point, "diverged", "the loss is nan")
    names, made = drawn(tmp_path, points)
    assert made.compare("test/loss")[0] == statistics.Comparison(0)
    rows = table(tmp_path / "figures" / f"{names[0]}.csv")
    assert [row["n"] for row in rows] == ["0", "2", "2", "2"] and rows[0]["mean"] == ""
