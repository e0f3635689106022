import csv

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from experiments import figures

EN = "The agreement was signed in August . <eos>".split()
FR = "L' accord a été signé en août . <eos>".split()
ODD = [
    "$x_1$ $",
    "\\frac{1}{2",
    "漢字",
    "\u2581mot",
    "\n",
    "",
    "😀\u200d👍",
    "\ud800",
    "x" * 99,
    "e\u0301",
]


def weights(*shape):
    raw = np.exp(3 * np.random.RandomState(0).randn(*shape))
    return raw / raw.sum(-1, keepdims=True)


def picture(path):
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def test_heatmap_and_its_arrays(tmp_path):
    drawn = weights(len(FR), len(EN)).astype(np.float32)
    path = figures.heatmap(tmp_path / "deep" / "beam.1", drawn, EN, FR, "août")
    assert path == tmp_path / "deep" / "beam.1.png"
    assert sorted(p.name for p in path.parent.iterdir()) == ["beam.1.npz", "beam.1.png"]
    assert picture(path).std() > 10
    with np.load(tmp_path / "deep" / "beam.1.npz") as saved:  # no pickles in it
        assert sorted(saved) == ["source_tokens", "target_tokens", "weights"]
        np.testing.assert_array_equal(saved["weights"], drawn)
        assert saved["weights"].dtype == np.float32
        assert list(saved["source_tokens"]) == EN and list(saved["target_tokens"]) == FR


def test_rows_are_targets_from_the_top(tmp_path):
    """One weight of 1 at target 0, source 2 of [2, 3]: the dark cell lies in the upper right."""
    image = picture(figures.heatmap(tmp_path / "x", [[0, 0, 1.0], [0, 0, 0]], "abc", "xy"))
    dark = np.argwhere((image[..., 2] > 80) & (image[..., 0] < 40))
    assert dark.size
    middle = (dark.min(0) + dark.max(0)) / 2 / image.shape[:2]
    assert 0.3 < middle[0] < 0.7 < middle[1]  # the labels take the upper third


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 60), (60, 1), (25, 25), (26, 3), (60, 60), (150, 90)]
)
def test_no_label_overlaps_another(shape):
    target = [f"réponse{i}" for i in range(shape[0])]
    source = [f"\u2581source{i}" for i in range(shape[1])]
    figure = figures._heatmap(weights(1, *shape), source, target, "title")
    figure.canvas.draw()
    axes = figure.axes[0]
    for labels, side in ((axes.get_xticklabels(), 0), (axes.get_yticklabels(), 1)):
        boxes = sorted((label.get_window_extent().intervalx, label.get_window_extent().intervaly)
                       [side].tolist() for label in labels)  # fmt: skip
        assert all(one[1] <= two[0] + 0.5 for one, two in zip(boxes, boxes[1:], strict=False))
    printed = [text.get_text() for text in axes.texts]
    assert len(printed) == (shape[0] * shape[1] if max(shape) <= 25 else 0)
    assert len(figure.axes) == (1 if printed else 2)  # else a colour bar
    highest = max(label.get_window_extent().y1 for label in axes.get_xticklabels())
    assert figure.texts[0].get_window_extent().y0 >= highest  # the title


def test_cells_say_their_weight_and_masked_is_a_plain_zero():
    panel = np.array([[[0.0, 0.001, 0.999, 0.5, 1.0, np.nan]]])
    figure = figures._heatmap(panel, list("abcdef"), ["x"], "")
    assert [t.get_text() for t in figure.axes[0].texts] == [
        "0",
        ".00",
        "1.00",
        ".50",
        "1.00",
        "nan",
    ]
    signed = figures._heatmap(np.array([[[-0.25, 1.5]]]), list("ab"), ["x"], "")
    assert [t.get_text() for t in signed.axes[0].texts] == ["-.25", "1.50"]


def test_heads_are_panels(tmp_path):
    drawn = weights(5, 3, 4)
    figure = figures._heatmap(drawn, list("abcd"), list("xyz"), "")
    assert [axes.get_xlabel() for axes in figure.axes] == [f"head {h}" for h in range(5)]
    for axes, head in zip(figure.axes, drawn, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), head)
    figures.heatmap(tmp_path / "h", jnp.asarray(drawn, jnp.bfloat16), list("abcd"), list("xyz"))
    with np.load(tmp_path / "h.npz") as saved:
        np.testing.assert_allclose(saved["weights"], drawn, atol=0.01)


def test_any_token_is_drawn_as_it_is_written(tmp_path):
    """Formulas, ideographs, controls, lone surrogates: no warning (they are errors here)."""
    path = figures.heatmap(tmp_path / "odd.png", weights(10, 10), ODD, ODD, "$\\frac{ 漢 %s")
    assert path == tmp_path / "odd.png"
    with np.load(tmp_path / "odd.npz") as saved:
        assert list(saved["source_tokens"]) == ODD
    figures.accuracy_by_length(tmp_path / "by", ROWS, "$d$ = 64, 漢")
    figures.learning_curves(tmp_path / "curves", [{"step": 1, "train/loss": 1}], "$\\bad{")
    shown = [figures.readable(token) for token in ODD]
    assert shown[:5] == ["$x_1$ $", "\\frac{1}{2", "□□", "\u2581mot", "␣"]
    assert shown[5] == "␣" and shown[7] == "□" and shown[9] == "é"
    assert shown[8] == "x" * 23 + "…"


@pytest.mark.parametrize("shape", [(2, 3), (3,), (1, 1, 3, 2)])
def test_weights_that_do_not_fit_the_tokens(tmp_path, shape):
    with pytest.raises(ValueError, match=r"not \[T, S\]"):
        figures.heatmap(tmp_path / "x", np.ones(shape), ["a", "b"], ["x", "y", "z"])
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.heatmap(tmp_path / "x", np.ones((0, 2)), ["a", "b"], [])
    assert not list(tmp_path.iterdir())


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    figures.write_file(tmp_path / "x", ".bin", lambda file: file.write(b"old"))

    def dies(file):
        file.write(b"ne")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        figures.write_file(tmp_path / "x", ".bin", dies)
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]
    assert (tmp_path / "x.bin").read_bytes() == b"old"


def test_same_input_same_bytes(tmp_path):
    one = figures.heatmap(tmp_path / "a", weights(3, 3), "abc", "xyz").read_bytes()
    assert figures.heatmap(tmp_path / "b", weights(3, 3), "abc", "xyz").read_bytes() == one


ROWS = [
    dict(length_low=10 * k + 1, length_high=10 * k + 10, n=100 - 9 * k, exact_match=1 - k / 9,
         token_accuracy=1 - k / 20, bleu=90 - 8 * k, chrf=95 - 7 * k) for k in range(8)
]  # fmt: skip


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_accuracy_by_length(tmp_path):
    path = figures.accuracy_by_length(tmp_path / "by_length", ROWS, "été", train_max_length=35)
    assert picture(path).std() > 10 and path == tmp_path / "by_length.png"
    rows = read(tmp_path / "by_length.csv")
    assert [{name: float(value) for name, value in row.items()} for row in rows] == ROWS
    few = [{name: row[name] for name in ("length_low", "length_high", "n", "bleu")} for row in ROWS]
    for drawn in (few, few[:1], ROWS[:1]):
        figures.accuracy_by_length(tmp_path / "few", drawn, "")
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.accuracy_by_length(tmp_path / "none", [], "")


def test_bins_labels_do_not_overlap(monkeypatch, tmp_path):
    kept = []
    save = figures._save_lines
    monkeypatch.setattr(
        figures, "_save_lines", lambda f, *rest: (kept.append(f), save(f, *rest))[1]
    )
    wide = [row | {"length_low": 100 + row["length_low"], "n": 12345} for row in ROWS]
    wide = [row | {"length_high": 100 + row["length_high"]} for row in wide]
    figures.accuracy_by_length(tmp_path / "x", wide, "t", 130)
    boxes = [label.get_window_extent() for label in kept[0].axes[-1].get_xticklabels()]
    assert all(one.x1 < two.x0 for one, two in zip(boxes, boxes[1:], strict=False))


def test_learning_curves_gaps_and_missing_keys(tmp_path):
    rows = [{"step": s, "train/loss": 4.0 * 0.9**s} for s in range(60)]
    for row in rows[::10]:
        row |= {"validation/loss": 2.0, "validation/exact_match": 0.5, "validation/bleu": 30.0}
    rows[5]["train/loss"], rows[7]["train/loss"] = None, float("inf")
    path = figures.learning_curves(tmp_path / "curves", rows, "a run")
    assert picture(path).std() > 10
    table = read(tmp_path / "curves.csv")
    assert len(table) == 60 and table[1]["validation/loss"] == "" and table[5]["train/loss"] == ""
    assert float(table[10]["validation/exact_match"]) == 0.5
    figures.learning_curves(tmp_path / "nan", [{"step": 1, "train/loss": float("nan")}])
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.learning_curves(tmp_path / "none", [{"step": 1}])


def test_wilson_by_hand():
    # 8 of 10 at z = 2: centre (.8 + .2) / 1.4, half width 2 / 1.4 sqrt(.016 + .01)
    low, high = figures.wilson(np.array([0.8]), np.array([10]), z=2)
    half = 2 / 1.4 * np.sqrt(0.8 * 0.2 / 10 + 4 / 400)
    np.testing.assert_allclose([low[0], high[0]], [1 / 1.4 - half, 1 / 1.4 + half])
    low, high = figures.wilson(np.array([0.0, 1.0]), np.array([1, 1]))
    assert low[0] == 0 and 0.75 < high[0] < 0.8 and high[1] == 1
