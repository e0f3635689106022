"""Peers against float64 NumPy, the timing against a clock that the test turns, what is written."""

import csv
import json

import jax
import numpy as np
import pytest

from attn_research import reference
from experiments import benchmark, benchmark_report, peers
from experiments.errors import UserError

NAMES = {
    "dot": ["blocked", "dense", "default", "jax_nn", "flax", "torch"],
    "dot_causal": ["blocked", "own_dot", "jax_nn", "torch"],
    "additive": ["blocked", "dense", "textbook", "keras", "torch"],
    "general": ["blocked", "own_dot"],
    "cosine": ["blocked", "own_dot"],
    "gaussian": ["blocked", "own_dot"],
    "function": ["blocked", "dense"],
}
SMALL = dict(heads=2, dim=4, repeats=1, calls=1)


def oracle(work, arrays):
    """float64 context [1, T, N, d]."""
    params, q, k, v = jax.tree.map(lambda x: np.asarray(x, np.float64), arrays)
    T, d = q.shape[1], q.shape[3]
    if work in ("general", "cosine", "gaussian"):  # ours alone: the library's own oracle
        return reference.attention(q, k, v, score=work, score_params=params)[0]
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    if work == "additive":
        q, k = q @ params["query"], k @ params["key"]
        logits = np.tanh(q[..., :, None, :] + k[..., None, :, :]) @ params["v"]
    elif work == "function":
        logits = np.maximum(q[..., :, None, :] + k[..., None, :, :], 0) @ params
    else:
        logits = q @ k.swapaxes(2, 3) / np.sqrt(d)
        if work == "dot_causal":
            logits = np.where(np.tril(np.ones((T, T), bool)), logits, -np.inf)
    exps = np.exp(logits - logits.max(-1, keepdims=True))
    return ((exps / exps.sum(-1, keepdims=True)) @ v).swapaxes(1, 2)


def numpy64(x):
    return np.asarray(x.numpy() if hasattr(x, "numpy") else x, np.float64)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's and Keras' own
@pytest.mark.parametrize("work", peers.WORKS)
def test_all_compute_the_same_and_its_gradient(work, seed, rng, quick_compile):
    arrays = peers.draw(work, 16, heads=2, dim=4, seed=seed)
    direction = jax.tree.map(lambda x: rng.standard_normal(x.shape), arrays)

    def loss(step, compared):
        moved = jax.tree.map(lambda x, u: np.float64(x) + step * u, arrays, direction)
        return (oracle(compared, moved) ** 2).sum()

    slopes = {w: (loss(1e-5, w) - loss(-1e-5, w)) / 2e-5 for w in {work, "dot"}}
    there = peers.implementations(work)
    absent = peers.missing()
    assert [each.name for each in there] == [name for name in NAMES[work] if name not in absent]
    for each in there:
        compared = "dot" if each.name == "own_dot" else work
        out = numpy64(peers.prepare(each, arrays, "forward").call())
        out = out.swapaxes(1, 2) if each.heads_first else out
        np.testing.assert_allclose(out, oracle(compared, arrays), atol=3e-6, err_msg=each.name)

        gradient = peers.prepare(each, arrays, "forward_backward").call()
        params, *rest = jax.tree.map(numpy64, gradient)
        rest = [x.swapaxes(1, 2) for x in rest] if each.heads_first else rest
        terms = jax.tree.map(lambda g, u: (g * u).sum(), (params, *rest), direction)
        slope = sum(jax.tree.leaves(terms))
        np.testing.assert_allclose(slope, slopes[compared], rtol=1e-3, atol=1e-3, err_msg=each.name)


def test_what_is_too_large_is_left_out():
    each = {i.name: i for work in ("dot", "additive") for i in peers.implementations(work)}
    plenty = 10**15

    def longest(name, memory=plenty):
        fits = [T for T in (128, 512, 1024, 4096, 8192) if each[name].fits(T, 8, 64, memory)]
        return max(fits)

    assert longest("blocked") == 8192 and longest("default") == 512
    assert longest("jax_nn") == 4096 and longest("textbook") == 1024
    # three copies of 8 x 4096 x 4096 x 4 bytes are 1.6e9, with 64 features at T = 1024 6.4e9
    assert longest("jax_nn", 3_300_000_000) == 4096 and longest("jax_nn", 3_200_000_000) == 1024
    assert (
        longest("textbook", 12_900_000_000) == 1024 and longest("textbook", 12_800_000_000) == 512
    )


def test_how_much_work_it_is():
    kind, gflop = peers.work_of("dot", "forward", 2, heads=1, dim=1)
    assert (kind, round(gflop * 1e9)) == ("products", 16)  # 4 pairs, 2 products of 2 flop
    assert round(peers.work_of("dot", "forward_backward", 2, 1, 1)[1] * 1e9) == 56
    assert round(peers.work_of("dot_causal", "forward", 2, 1, 1)[1] * 1e9) == 12  # 3 pairs
    kind, count = peers.work_of("additive", "forward_backward", 3, heads=2, dim=5)
    assert (kind, round(count * 1e9)) == ("reciprocals", 180)
    assert peers.work_of("function", "forward", 2, 1, 1) is None


class Clock:
    """Stands still but while a function runs, which takes the next of its seconds."""

    def __init__(self):
        self.now, self.called = 0.0, []

    def __call__(self):
        return self.now

    def function(self, name, *seconds):
        left = list(seconds)

        def call():
            self.called.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


def test_fair_times_is_the_median_of_the_fastest_without_the_first_of_a_round():
    clock = Clock()
    # a round: untimed, and two timed ones
    functions = {
        "a": clock.function("a", *(9, 5, 7), *(1, 8, 6), *(9, 4, 30)),  # 5, 6, 4
        "b": clock.function("b", 2),
    }
    found = benchmark.fair_times(functions, rounds=3, calls=2, seed=0, clock=clock)
    assert found == {"a": 5, "b": 2}
    assert sorted(clock.called) == ["a"] * 9 + ["b"] * 9


def test_fair_times_goes_round_in_a_fresh_order_that_the_seed_repeats():
    def orders(seed):
        clock = Clock()
        functions = {name: clock.function(name, 1) for name in "abcd"}
        benchmark.fair_times(functions, rounds=20, calls=1, seed=seed, clock=clock)
        called = "".join(clock.called[::2])
        assert clock.called[::2] == clock.called[1::2]
        rounds = [called[i : i + 4] for i in range(0, 80, 4)]
        assert all(sorted(each) == list("abcd") for each in rounds)
        return rounds

    assert orders(1) == orders(1) != orders(2)
    assert len(set(orders(1))) > 5


def test_fair_times_ends_early_but_not_before_three_rounds():
    for most, rounds in ((0, 3), (20, 6), (1000, 7)):
        clock = Clock()
        functions = {"a": clock.function("a", 2)}  # 4 seconds a round
        benchmark.fair_times(functions, 7, calls=1, seed=0, most_seconds=most, clock=clock)
        assert len(clock.called) == 2 * rounds


def row(work, name, T, passes, ms, mb=None):
    values = (work, name, T, passes, ms, mb, None)
    return dict(zip(benchmark_report.COLUMNS, values, strict=True))


def test_ratios_of_made_up_times():
    both = [
        (work, name, T, passes, ms * (1 if passes == "forward" else 3), mb)
        for work, name, T, ms, mb in [
            ("dot", "blocked", 4096, 10, 2.0),
            ("dot", "jax_nn", 4096, 40, 100.0),
            ("dot", "blocked", 8192, 40, 4.0),
            ("additive", "blocked", 512, 10, 1.0),
            ("additive", "blocked", 1024, 40, 3.0),
            ("additive", "textbook", 512, 200, 50.0),
            ("additive", "textbook", 1024, 360, 200.0),
        ]
        for passes in peers.PASSES
    ]
    compared = benchmark_report.compare([row(*each) for each in both], absent=["keras"])
    found = {
        (r["work"], r["T"], r["against"], r["quantity"], r["pass"]): (r["reached"], r["met"])
        for r in compared
    }
    assert len(found) == len(compared) == 2 * len(benchmark_report.TARGETS)
    forward, backward = peers.PASSES
    assert found["dot", "4096", "jax_nn", "time", forward] == (4.0, "yes")  # the bound itself
    assert found["dot", "4096", "jax_nn", "time", backward] == (4.0, "yes")
    assert found["dot", "4096", "jax_nn", "memory", forward] == (0.02, "yes")
    assert found["dot", "8192", "half_T", "memory", forward] == (2.0, "yes")
    assert found["dot", "4096", "torch", "time", forward] == (None, "not measured")
    # the worse of the two lengths: 20 and 9 times
    reached, met = found["additive", "512 1024", "textbook", "time", forward]
    assert (round(reached, 9), met) == (9, "no")
    reached, met = found["additive", "512 1024", "textbook", "time", backward]
    assert (round(reached, 9), met) == (9, "yes")
    assert found["additive", "1024", "textbook", "memory", forward] == (0.015, "no")
    assert found["additive", "512 1024", "keras", "time", forward] == (None, "not installed")

    lines = benchmark_report.table(compared)
    assert max(map(len, lines)) <= 100
    (line,) = [line for line in lines if "time, textbook" in line]
    assert line.split() == "additive T=512 1024 time, textbook 9 >= 10 no 9 >= 6 yes".split()
    assert lines[-1] == "14 targets are about works or lengths not measured here"


def test_a_run_writes_all_goes_on_where_it_was_stopped_and_says_what_is_missing(
    tmp_path, monkeypatch, quick_compile
):
    monkeypatch.setattr(peers, "missing", lambda: ["torch", "keras"])
    works, lengths = ("dot", "additive", "function"), (8, 16)
    config = benchmark.BenchmarkConfig(works=works, lengths=lengths, **SMALL)
    first = benchmark.measure(config, "dot", 8)
    whole = json.dumps(first | {"rows": [r | {"milliseconds": 4.5} for r in first["rows"]]})
    (tmp_path / "points.jsonl").write_text(whole + "\n" + whole[: len(whole) // 2])  # killed here

    lines: list[str] = []
    result = benchmark.run(config, tmp_path, lines.append)
    assert lines[0] == "not installed, left out: torch, keras (pip install -e '.[peers]')"
    assert [line.split(":")[0] for line in lines[1:6]] == [
        "additive T=8",
        "function T=8",
        "dot T=16",
        "additive T=16",
        "function T=16",
    ]
    points = [json.loads(line) for line in (tmp_path / "points.jsonl").read_text().splitlines()]
    assert [(p["work"], p["T"]) for p in points] == [(w, T) for T in lengths for w in works]

    with open(tmp_path / "summary.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == benchmark_report.COLUMNS
    names = {work: [n for n in NAMES[work] if n not in ("torch", "keras")] for work in works}
    expected = {
        (work, name, str(T), passes)
        for work in works
        for name in names[work]
        for T in lengths
        for passes in peers.PASSES
    }
    found = {(r["work"], r["implementation"], r["T"], r["pass"]): r for r in rows}
    assert set(found) == expected and len(rows) == len(expected)
    for (work, *_), r in found.items():
        assert float(r["milliseconds"]) > 0 and float(r["temporary_megabytes"]) >= 0
        assert (r["fraction_of_machine"] == "") == (work == "function")
    assert found["dot", "blocked", "8", "forward"]["milliseconds"] == "4.5"  # not measured again

    assert result["dot/8/forward/blocked_ms"] == 4.5
    assert result["dot/8/forward_backward/blocked_over_flax"] == 1
    for kind in ("products", "reciprocals"):
        assert result[f"machine/{kind}_g"] > 0
    assert all(type(value) in (int, float, str) for value in result.values())
    with open(tmp_path / "ratios.csv", newline="") as file:
        ratios = list(csv.DictReader(file))
    assert len(ratios) == 2 * len(benchmark_report.TARGETS)
    assert {r["met"] for r in ratios} == {"not measured", "not installed"}
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "memory.csv",
        "memory.png",
        "time.csv",
        "time.png",
    ]


def test_peers_are_left_out_where_they_are_not_installed(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    assert peers.missing() == ["torch", "keras"]
    assert [each.name for each in peers.implementations("additive")] == NAMES["additive"][:3]


@pytest.mark.parametrize(
    "field, value, says",
    [
        ("works", ("dot", "aditive"), "did you mean 'additive'"),
        ("works", (), "config.works=()"),
        ("lengths", (8, 8), "none of them twice"),
        ("lengths", (8, 0), "config.lengths=0 is less than 1"),
        ("repeats", 0, "config.repeats=0 is less than 1"),
    ],
)
def test_mistakes_in_the_config(field, value, says):
    with pytest.raises(UserError) as error:
        benchmark.check(benchmark.BenchmarkConfig(**{field: value}))
    assert says in str(error.value) and "\n" not in str(error.value)
