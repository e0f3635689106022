"""Attention small enough to do by hand: every step printed, the weights drawn. Nothing is trained.

Five examples, each computed by the library and set beside what pencil and paper give: scaled dot
product, a decoder state that looks at three encoder states, self-attention with projections, the
additive score, and scores alone. Read the print-out with the formula at its head.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attn_research as ar
from experiments import figures

Log = Callable[[str], None]


@dataclasses.dataclass
class WorkedExamplesConfig:
    experiment: str = "worked_examples"
    seed: int = 0  # draws nothing: example 3 has numpy's seed 0, as it was worked by hand


@dataclasses.dataclass(frozen=True)
class Example:
    """One attention: query [T, Dq], key [S, Dk], value [S, Dv], and how it was worked by hand."""

    title: str
    formula: str
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    targets: list[str]  # T names of queries
    sources: list[str]  # S names of keys
    options: dict[str, Any]  # of ar.attend
    by_hand: dict[str, Any]  # scores, weights, context (its first rows): whichever was worked out
    given: dict[str, np.ndarray]  # what the head of the print-out shows
    note: str = ""


def check(config: WorkedExamplesConfig) -> WorkedExamplesConfig:
    """The config as it is: there is nothing in it that cannot run."""
    return config


def run(config: WorkedExamplesConfig, run_dir: Path, log: Log) -> dict[str, float | int | str]:
    """Prints the examples and draws run_dir/figures/example_N.png; returns, flat, for each one

    example_N/weight_0 ...               weights of the first query
    example_N/context_0 ...              and its context
    example_N/difference_from_by_hand    the largest; what is worked by hand is rounded
    """
    result: dict[str, float | int | str] = {}
    with jax.default_matmul_precision("highest"):  # accelerators would round to 3 digits
        for number, example in enumerate(examples(), start=1):
            steps = compute(example)
            difference = max(
                float(np.abs(steps[name][: len(hand)] - hand).max())
                for name, hand in ((name, np.array(h)) for name, h in example.by_hand.items())
            )
            _show(number, example, steps, difference, log)
            path = figures.heatmap(
                run_dir / "figures" / f"example_{number}",
                steps["weights"],
                example.sources,
                example.targets,
                title=example.title,
            )
            log(f"  heatmap {path.relative_to(run_dir)}\n")
            for name, short in (("weights", "weight"), ("context", "context")):
                for i, value in enumerate(steps[name][0]):
                    result[f"example_{number}/{short}_{i}"] = float(value)
            result[f"example_{number}/difference_from_by_hand"] = difference
    return result


def compute(example: Example) -> dict[str, np.ndarray]:
    """scores, scaled scores, weights (each [T, S]) and context [T, Dv], float32, by the library.

    The library gives weights and the log of their denominator, lse: a scaled score is
    log(weight) + lse, and a score is the same with the scale 1.
    """
    query, key, value = (
        jnp.asarray(x, jnp.float32) for x in (example.query, example.key, example.value)
    )

    given = dict(example.options)
    given["score_params"] = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float32), given.get("score_params")
    )

    def scores(**options: Any) -> jax.Array:
        _, lse = ar.attend_with_lse(query, key, value, **options)
        return jnp.log(ar.attention_weights(query, key, **options)) + lse.reshape(-1, 1)

    steps = {
        "scores": scores(**given | {"scale": "none"}),
        "scaled scores": scores(**given),
        "weights": ar.attention_weights(query, key, **given),
        "context": ar.attend(query, key, value, **given),
    }
    return {name: np.asarray(step) for name, step in steps.items()}


def examples() -> list[Example]:
    states = np.array([[0.31, -0.12], [0.68, 0.24], [0.52, 0.71]])
    decoder = np.array([[0.45, 0.80]])
    return [
        _scaled_dot(),
        _decoder(decoder, states),
        _cat(),
        _additive(decoder, states),
        _product(),
    ]


def _scaled_dot() -> Example:
    query, identity = np.array([[2.0, 0, 1], [0, 2, 1]]), np.eye(3)
    weights = [[0.533, 0.168, 0.299], [0.168, 0.533, 0.299]]
    return Example(
        title="scaled dot product",
        formula="weights = softmax(Q K^T / sqrt(d)), context = weights V, d = 3",
        query=query,
        key=identity,
        value=identity,
        targets=["q1", "q2"],
        sources=["k1", "k2", "k3"],
        options={"score": "dot"},
        by_hand={"scores": query, "weights": weights, "context": weights},
        given={"Q": query, "K = V": identity},
    )


def _decoder(decoder: np.ndarray, states: np.ndarray) -> Example:
    return Example(
        title="a decoder looks at three encoder states",
        formula="weights = softmax(s . h_j), context = sum_j weight_j h_j; no scale",
        query=decoder,
        key=states,
        value=states,
        targets=["s"],
        sources=["h1", "h2", "h3"],
        options={"score": "dot", "scale": "none"},
        by_hand={
            "scores": [[0.04, 0.50, 0.80]],
            "weights": [[0.21, 0.33, 0.46]],
            "context": [[0.53, 0.38]],
        },
        given={"s": decoder, "h": states},
        note="the third weight is 0.453; by hand it was rounded up, so that the three sum to 1",
    )


def _cat() -> Example:
    words = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]])
    random = np.random.RandomState(0)
    w_q, w_k, w_v = (np.round(random.randn(4, 4) * 0.5, 2) for _ in range(3))
    return Example(
        title="self-attention of three words",
        formula="Q = X W_Q, K = X W_K, V = X W_V; weights = softmax(Q K^T / sqrt(d)), d = 4",
        query=words @ w_q,
        key=words @ w_k,
        value=words @ w_v,
        targets=["cat", "sat", "mat"],
        sources=["cat", "sat", "mat"],
        options={"score": "dot"},
        by_hand={
            "weights": [
                [0.4512, 0.3703, 0.1785],
                [0.7430, 0.1179, 0.1391],
                [0.8166, 0.1000, 0.0834],
            ],
            "context": [[-0.2640, -0.6959, -0.8281, 0.5546]],
        },
        given={"X": words, "W_Q": w_q, "W_K": w_k, "W_V": w_v}
        | {"Q": words @ w_q, "K": words @ w_k, "V": words @ w_v},
    )


def _additive(decoder: np.ndarray, states: np.ndarray) -> Example:
    w_1 = np.array([[1.0, -0.5], [0.2, 1.0]])
    w_2 = np.array([[1.0, 0.5], [-1.0, 1.0]])
    v = np.array([1.0, -1.0])
    return Example(
        title="additive score",
        formula="score_j = v . tanh(W_1 s + W_2 h_j), no bias, no scale; weights = softmax(score)",
        query=decoder,
        key=states,
        value=states,
        targets=["s"],
        sources=["h1", "h2", "h3"],
        # The library multiplies from the right, s W: its matrices are [in, out], ours transposed.
        options={"score": "additive", "score_params": {"query": w_1.T, "key": w_2.T, "v": v}},
        # W_1 s = [.05, .89]; W_2 h_j = [.25, -.43], [.8, -.44], [.875, .19]
        # tanh of the sums = [.2913, .4301], [.6911, .4219], [.7283, .7932]
        by_hand={
            "scores": [[-0.1388, 0.2692, -0.0649]],
            "weights": [[0.2793, 0.4200, 0.3007]],
        },
        given={
            "v": v[None],
            "W_1 s": decoder @ w_1.T,
            "W_2 h": states @ w_2.T,
            "tanh": np.tanh(decoder @ w_1.T + states @ w_2.T),
        },
    )


def _product() -> Example:
    query, key = np.array([[2.0, 1]]), np.array([[2.0, 1], [0, 3], [1, 1]])
    return Example(
        title="the product alone",
        formula="scores = Q K^T; V = K, no scale",
        query=query,
        key=key,
        value=key,
        targets=["q"],
        sources=["k1", "k2", "k3"],
        options={"score": "dot", "scale": "none"},
        by_hand={"scores": [[5, 3, 3]]},
        given={"Q": query, "K": key},
    )


def _show(
    number: int, example: Example, steps: dict[str, np.ndarray], difference: float, log: Log
) -> None:
    log(f"Example {number}: {example.title}")
    log(f"  {example.formula}\n")
    for name, array in example.given.items():
        _table(name, array, [""] * len(array), None, log)
    log("")
    for name, array in steps.items():
        if name == "scaled scores" and np.allclose(array, steps["scores"]):
            continue  # the scale is 1
        _table(name, array, example.targets, None if name == "context" else example.sources, log)
        for i, row in enumerate(example.by_hand.get(name, [])):
            log(_line("  by hand" if i == 0 else "", example.targets[i], [f"{x:g}" for x in row]))
    log(f"  largest difference from what was worked by hand: {difference:.4f}")
    if example.note:
        log(f"  ({example.note})")


def _table(
    name: str, array: np.ndarray, rows: list[str], columns: list[str] | None, log: Log
) -> None:
    """A matrix with its name, row names and, if it has them, column names, in aligned columns."""
    if columns:
        log(_line(name, "", columns))
    for i, row in enumerate(array):
        log(_line(name if i == 0 and not columns else "", rows[i], row))


def _line(name: str, row: str, cells: Any) -> str:
    shown = [cell if isinstance(cell, str) else f"{cell:.4f}" for cell in cells]
    return f"  {name:<14}{row:>4}" + "".join(f"{cell:>10}" for cell in shown)
