"""Against float64 NumPy that follows the formulas and shares nothing with the library."""

import dataclasses

import numpy as np
import pytest

from experiments import worked_examples
from experiments.errors import UserError


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    run_dir, lines = tmp_path_factory.mktemp("run"), []
    config = worked_examples.WorkedExamplesConfig()
    return worked_examples.run(config, run_dir, lines.append), run_dir, lines


def softmax(scores):
    exps = np.exp(scores)
    return exps / exps.sum(-1, keepdims=True)


def by_numpy():
    """[(scores, weights, context)] of the five examples."""
    found = []
    q = np.array([[2.0, 0.0, 1.0], [0.0, 2.0, 1.0]])
    weights = softmax(q / np.sqrt(3))
    found.append((q, weights, weights))

    s = np.array([0.45, 0.80])
    h = np.array([[0.31, -0.12], [0.68, 0.24], [0.52, 0.71]])
    scores = np.array([[sum(s[k] * h[j, k] for k in range(2)) for j in range(3)]])
    found.append((scores, softmax(scores), softmax(scores) @ h))

    x = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]])
    random = np.random.RandomState(0)
    w_q = np.round(random.randn(4, 4) * 0.5, 2)
    w_k = np.round(random.randn(4, 4) * 0.5, 2)
    w_v = np.round(random.randn(4, 4) * 0.5, 2)
    scores = np.einsum("ia,ab,cb,jc->ij", x, w_q, w_k, x)
    found.append((scores, softmax(scores / 2), softmax(scores / 2) @ x @ w_v))

    w_1, w_2, v = [[1, -0.5], [0.2, 1]], [[1, 0.5], [-1, 1]], [1, -1]
    one = np.empty((1, 3))
    for j in range(3):
        inside = [w_1[e][0] * s[0] + w_1[e][1] * s[1] for e in range(2)]
        inside = [inside[e] + w_2[e][0] * h[j, 0] + w_2[e][1] * h[j, 1] for e in range(2)]
        one[0, j] = v[0] * np.tanh(inside[0]) + v[1] * np.tanh(inside[1])
    found.append((one, softmax(one), softmax(one) @ h))

    k = np.array([[2.0, 1], [0, 3], [1, 1]])
    scores = np.array([[5.0, 3.0, 3.0]])
    found.append((scores, softmax(scores), softmax(scores) @ k))
    return found


def test_each_step_is_numpys():
    examples = worked_examples.examples()
    for example, (scores, weights, context) in zip(examples, by_numpy(), strict=True):
        steps = worked_examples.compute(example)
        np.testing.assert_allclose(steps["scores"], scores, atol=2e-6)
        np.testing.assert_allclose(steps["weights"], weights, atol=1e-6)
        np.testing.assert_allclose(steps["context"], context, atol=1e-6)
        np.testing.assert_allclose(softmax(steps["scaled scores"]), weights, atol=1e-6)


def test_the_numbers_that_were_asked_for(done):
    result, _, _ = done

    def row(name, n):
        return [result[f"{name}_{i}"] for i in range(n)]

    np.testing.assert_allclose(row("example_1/weight", 3), [0.533, 0.168, 0.299], atol=5e-4)
    np.testing.assert_allclose(row("example_1/context", 3), [0.533, 0.168, 0.299], atol=5e-4)
    np.testing.assert_allclose(row("example_2/weight", 3), [0.21, 0.33, 0.46], atol=0.007)
    np.testing.assert_allclose(row("example_2/context", 2), [0.53, 0.38], atol=5e-3)
    np.testing.assert_allclose(row("example_3/weight", 3), [0.4512, 0.3703, 0.1785], atol=5e-5)
    output = [-0.264, -0.6959, -0.8281, 0.5546]
    np.testing.assert_allclose(row("example_3/context", 4), output, atol=5e-5)
    np.testing.assert_allclose(row("example_4/weight", 3), [0.2793, 0.42, 0.3007], atol=5e-5)
    second, third = [0.743, 0.1179, 0.1391], [0.8166, 0.1, 0.0834]
    weights = worked_examples.compute(worked_examples.examples()[2])["weights"]
    np.testing.assert_allclose(weights[1:], [second, third], atol=5e-5)
    for number, most in enumerate((2e-4, 7e-3, 5e-5, 5e-5, 1e-6), start=1):
        assert result[f"example_{number}/difference_from_by_hand"] <= most
    assert all(type(value) in (int, float, str) for value in result.values())


def test_the_figures_hold_the_weights(done):
    _, run_dir, _ = done
    names = sorted(path.name for path in (run_dir / "figures").iterdir())
    assert names == [f"example_{n}.{end}" for n in range(1, 6) for end in ("npz", "png")]
    for number, (_, weights, _) in enumerate(by_numpy(), start=1):
        with np.load(run_dir / "figures" / f"example_{number}.npz") as saved:
            np.testing.assert_allclose(saved["weights"], weights, atol=1e-6)
            assert saved["weights"].shape == (
                len(saved["target_tokens"]),
                saved["source_tokens"].size,
            )
    with np.load(run_dir / "figures" / "example_3.npz") as saved:
        assert list(saved["source_tokens"]) == list(saved["target_tokens"]) == ["cat", "sat", "mat"]


def test_what_a_student_reads(done):
    _, _, lines = done
    text = "\n".join(lines)
    for step in ("scores", "scaled scores", "weights", "context", "by hand", "tanh"):
        assert f"  {step} " in text
    assert "0.4512    0.3703    0.1785" in text and "-0.2640   -0.6959   -0.8281    0.5546" in text
    assert text.count("Example ") == 5 and text.count("  heatmap figures/example_") == 5
    assert max(len(line) for line in text.splitlines()) <= 90
    # "scaled scores" only where there is a scale
    assert text.count("scaled scores") == 2


def test_twice_the_same(done, tmp_path):
    result, run_dir, lines = done
    again: list[str] = []
    config = worked_examples.WorkedExamplesConfig()
    assert worked_examples.run(config, tmp_path, again.append) == result and again == lines
    for path in (run_dir / "figures").glob("*.png"):
        assert path.read_bytes() == (tmp_path / "figures" / path.name).read_bytes()


def test_config():
    from configs import worked_examples as config

    assert config.get_config() == config.get_config("quick")
    assert worked_examples.check(config.get_config()) == config.get_config()
    assert dataclasses.asdict(config.get_config()) == {"experiment": "worked_examples", "seed": 0}
    with pytest.raises(
        UserError, match="quik: no such variant, there is quick; did you mean 'quick'"
    ) as e:
        config.get_config("quik")
    assert "\n" not in str(e.value)
