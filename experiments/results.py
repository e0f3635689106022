"""What a finished run leaves: result.json, predictions, figures, and the table on the screen."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import figures, runs
from experiments.config import Config
from experiments.programs import Programs
from experiments.translate import translator

EXAMPLES = 4  # test sentences that are shown with their heatmaps


def write(
    path: Path,
    config: Config,
    programs: Programs,
    params: Any,
    numbers: dict[str, float],
    found: dict[str, Any],
    train_numbers: dict[str, Any],
    log: Callable[[str], None],
) -> dict[str, Any]:
    """`found` holds an Evaluation a split; returns what goes into result.json, flat."""
    result = {
        f"{split}/{name}": value
        for split, evaluation in found.items()
        for name, value in evaluation.summary.items()
    } | train_numbers
    task = programs.task
    test = task.splits["test"]
    lines = zip(test.source_text, test.target_text, found["test"].hypotheses, strict=True)
    rows = [
        json.dumps({"source": s, "reference": r, "hypothesis": h}, ensure_ascii=False)
        for s, r, h in lines
    ]
    runs.write_text(path / "test_predictions.jsonl", "\n".join(rows) + "\n")
    folder = path / "figures"
    folder.mkdir(exist_ok=True)
    longest = max(len(ids) for ids in task.splits["train"].source_ids)
    figures.accuracy_by_length(
        folder / "accuracy_by_length.png",
        found["test"].by_length,
        title=f"test, {config.task.name}, score {config.model.attention.score}",
        train_max_length=longest,
    )
    figures.learning_curves(folder / "learning_curves.png", runs.read_metrics(path))
    translate = translator(programs.greedy, params, numbers, task.source, task.target)
    log("\nexamples from test")
    for number, index in enumerate(_spread([len(ids) for ids in test.source_ids])):
        one = translate(test.source_text[index])
        log(f"  source     {test.source_text[index]}")
        log(f"  reference  {test.target_text[index]}")
        log(f"  output     {one.text}")
        if one.weights.shape[0]:
            name = folder / f"attention_{number}.png"
            figures.heatmap(name, one.weights, one.source_tokens, one.output_tokens)
            log(f"  heatmap    {name}")
        log("")
    log(table(found))
    return result


def by_step(rows: list[dict[str, float]], steps: int) -> dict[str, float]:
    """Exact match on validation on the way, at the last measurement by a quarter, half and three
    quarters of the steps: {"validation/exact_match@250": ...}."""
    name = "validation/exact_match"
    found = {}
    for part in (0.25, 0.5, 0.75):
        until = [row for row in rows if name in row and row["step"] <= part * steps]
        if until:
            found[f"{name}@{until[-1]['step']}"] = until[-1][name]
    return found


def _spread(lengths: list[int]) -> list[int]:
    """Indices of EXAMPLES sentences, from short to long, not more."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    count = min(EXAMPLES, len(order))
    return [order[(2 * k + 1) * len(order) // (2 * count)] for k in range(count)]


def table(found: dict[str, Any]) -> str:
    """The splits side by side, then test by source length, as text."""
    columns = ("exact_match", "token_accuracy", "bleu", "chrf")
    head = f"{'':<24}{'n':>7}" + "".join(f"{name:>16}" for name in columns)
    lines = [head]

    def row(label: str, n: int, values: dict[str, Any]) -> str:
        cells = "".join(
            f"{values[name]:>16.4f}" if name in columns[:2] else f"{values[name]:>16.2f}"
            for name in columns
        )
        return f"{label:<24}{n:>7}{cells}"

    for split, evaluation in found.items():
        lines.append(row(split, len(evaluation.hypotheses), evaluation.summary))
    for length in found["test"].by_length:
        span = f"  test, {length['length_low']}-{length['length_high']} source tokens"
        lines.append(row(span, length["n"], length))
    return "\n".join(lines)
