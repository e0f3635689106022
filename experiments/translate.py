"""Translation of sentences by a trained run, with the attention weights of each."""

import io
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import decode, figures, programs, runs, tasks, traced, train
from experiments.checkpoint import Checkpoints
from experiments.config import Config
from experiments.errors import UserError
from experiments.vocabulary import EOS, PAD, Vocabulary, load_vocabulary

LONGEST = 256  # output tokens, where decode.max_length says nothing and the data are not at hand


class Translation(NamedTuple):
    source_tokens: list[str]  # S labels, <eos> last
    output_tokens: list[str]  # T labels, <eos> last unless it was cut off
    text: str  # detokenized
    weights: np.ndarray  # [N, T, S] float32, a head each; N = 0 without attention


def translator(
    greedy: Callable[..., decode.Decoded],
    params: Any,
    numbers: Any,
    source: Vocabulary,
    target: Vocabulary,
) -> Callable[[str], Translation]:
    """The function from a sentence, clean as the task's own are, to its translation; `greedy` is
    that of programs.py, `numbers` those of traced.py."""

    def translate(sentence: str) -> Translation:
        ids = [*source.encode(sentence), EOS]
        width = -(-len(ids) // 16) * 16  # few shapes to compile for
        row = np.array([ids + [PAD] * (width - len(ids))], np.int32)
        out = jax.device_get(greedy(params, numbers, row, np.array([len(ids)], np.int32)))
        tokens = out.tokens[0, : out.length[0]].tolist()
        weights = out.weights[0, :, : len(tokens), : len(ids)]
        return Translation(
            source.tokens(ids), target.tokens(tokens), target.decode(tokens), weights
        )

    return translate


def run(config: Config, path: Path, lines: Iterable[str] | None) -> None:
    """Prints the translation of each line, a line each; heatmaps go to figures/translate/ of the
    run directory `path`, and what there is to say about a sentence to standard error."""

    def log(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if not (path / "checkpoints").exists() or not (path / "source_vocabulary.json").exists():
        raise UserError(
            f"--mode=translate: {path} has no trained model; train it first with the same command "
            "without --mode"
        )
    if lines is None:
        raise UserError("--mode=translate reads sentences from standard input, which is closed")
    if isinstance(lines, io.TextIOWrapper):
        lines.reconfigure(encoding="utf-8", errors="replace")
    with runs.locked(path):  # a run that is being trained is left alone
        _run(config, path, lines, log)


def _run(config: Config, path: Path, lines: Iterable[str], log: Callable[[str], None]) -> None:
    source = load_vocabulary(path / "source_vocabulary.json")
    target = load_vocabulary(path / "target_vocabulary.json")
    model = train.load_model(config)
    checkpoints = Checkpoints(path / "checkpoints", log)
    _, state = checkpoints.best(train.initial_state(model, config, source.size, target.size))
    checkpoints.close()
    longest = config.decode.max_length or LONGEST
    greedy = programs.greedy(model, config, longest)
    numbers = traced.numbers(model, config)
    translate = translator(greedy, state.params, numbers, source, target)
    clean = tasks.cleaner(config.task)
    folder = path / "figures" / "translate"
    for number, line in enumerate(lines, 1):
        sentence = clean(line)
        if not sentence:
            print(flush=True)
            continue
        unknown = source.unknown(sentence)
        if unknown:
            log(f"not in the vocabulary: {' '.join(unknown)}")
        found = translate(sentence)
        print(found.text, flush=True)
        if found.weights.shape[0]:
            name = folder / f"{number:03d}.png"
            figures.heatmap(name, found.weights, found.source_tokens, found.output_tokens)
            log(f"heatmap: {name}")
