"""Run directories as a sweep leaves them, made up in milliseconds: nothing is trained."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from experiments import runs, sweep
from experiments.config import Config

SOURCES = (
    "the <b>dog</b> $x$ <eos>",
    "<script>alert(1)</script> & </script> <eos>",
    "one two three four five six seven eight nine ten <eos>",
    "two two two <eos>",
)


def make(
    folder: Path,
    rng: np.random.Generator,
    overrides: list[dict],
    *,
    steps: int = 400,
    log_every: int = 20,
    heads: int = 1,
    commit: str = "0123abc",
) -> list[sweep.Point]:
    """A finished run for each override, better for a larger hidden_size."""
    points = []
    for override in overrides:
        base = Config()
        base.train.steps = steps
        config = sweep.with_overrides(base, override)
        changed = runs.changes(base, config)
        path = runs.directory(folder.parent, folder.name, "", changed, config)
        points.append(sweep.Point(config, path))
        _run(path, config, rng, log_every, heads, commit)
    return points


def _run(path, config, rng, log_every, heads, commit):
    (path / "figures").mkdir(parents=True)
    runs.write_json(path / "config.json", dataclasses.asdict(config))
    env = {
        "command": ["launch.py", "--config=configs/fake.py", "--sweep"],
        "started": "2025-03-04T05:06:07+0000",
        "python": "3.11.2",
        "platform": "Linux-6.1-x86_64",
        "cpus": 2,
        "devices": ["cpu: cpu"],
        "versions": {"jax": "0.10.2", "flax": "0.12.1"},
        "git_commit": commit,
        "git_diff": "",
    }
    runs.write_json(path / "env.json", env)
    good = np.log2(config.model.hidden_size) / 12 + 0.2 * rng.uniform()
    steps = np.arange(log_every, config.train.steps + 1, log_every)
    lines = []
    for step in steps.tolist():
        loss = float(
            0.05 + 4 * np.exp(-3 * good * step / config.train.steps) * rng.uniform(0.9, 1.1)
        )
        lines.append({"step": step, "train/gradient_norm": 0.5, "train/loss": loss})
        if step % (5 * log_every) == 0:
            exact = float(good * step / config.train.steps)
            validation = {"validation/loss": 1.2 * loss, "validation/exact_match": exact}
            lines.append({"step": step, **validation})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = {
        "validation/loss": float(1.2 * loss),
        "test/loss": float(1.3 * loss),
        "test/exact_match": float(good),
        "test/token_accuracy": float(np.sqrt(good)),
        "test/bleu": float(100 * good**2),
        "test/bleu_signature": "nrefs:1|case:mixed",
        "test/chrf": float(100 * good),
        "train/steps": config.train.steps,
        "train/seconds": float(rng.uniform(10, 20)),
    }
    runs.write_json(path / "result.json", result)
    rows = ["length_low,length_high,n,exact_match,bleu,bleu_signature"]
    rows += [f"{k},{k + 4},{20 - k},{good / k**0.5},{90 * good / k},x|y" for k in (1, 6, 11)]
    (path / "figures" / "accuracy_by_length.csv").write_text("\n".join(rows) + "\n")
    if config.model.attention.score != "none":
        for number, source in enumerate(SOURCES):
            attention(path / "figures" / f"attention_{number}.npz", rng, source.split(), heads)
    runs.set_status(path, "done")


def attention(path, rng, source, heads=1):
    """The output is the source without its first word."""
    target = source[1:]
    weights = rng.dirichlet(np.full(len(source), 0.3), size=(heads, len(target)))
    arrays = {"source_tokens": np.array(source), "target_tokens": np.array(target)}
    np.savez(path, weights=weights.astype(np.float32), **arrays)


def undo(point: sweep.Point, status: str, reason: str = "") -> None:
    """A run that is not done: no result; "missing": nothing at all."""
    (point.path / "result.json").unlink()
    runs.set_status(point.path, status)
    if reason:
        (point.path / "error.txt").write_text(f"{reason}\n\nTraceback ...\n")
    if status == "missing":
        for file in sorted(point.path.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        point.path.rmdir()
