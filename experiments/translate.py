"""Translation of sentences by a trained run, with the attention weights of each."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import decode, figures, tasks, train
from experiments.checkpoint import Checkpoints
from experiments.config import Config, ModelConfig
from experiments.errors import UserError
from experiments.vocabulary import EOS, PAD, UNK, load_vocabulary


class Translation(NamedTuple):
    source_tokens: list[str]  # S labels, <eos> last
    output_tokens: list[str]  # T labels, <eos> last unless it was cut off
    text: str  # detokenized
    weights: np.ndarray  # [N, T, S] float32, a head each; N = 0 without attention


@functools.partial(jax.jit, static_argnames=("model", "config", "max_length"))
def _greedy(
    model: Any, params: Any, config: "Frozen", source: Any, length: Any, max_length: int
) -> decode.Decoded:
    return decode.greedy(model, params, config.value, source, length, max_length)


class Frozen:
    """A config as a static argument: equal by what it says."""

    def __init__(self, value: ModelConfig) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(repr(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frozen) and repr(self.value) == repr(other.value)


def translate(
    model: Any,
    params: Any,
    config: Config,
    source: Any,
    target: Any,
    sentences: Sequence[str],
    max_length: int,
) -> list[Translation]:
    """Greedy translations of `sentences`, clean as the task's are, by vocabularies source, target."""
    found = []
    for sentence in sentences:
        ids = [*source.encode(sentence), EOS]
        width = -(-len(ids) // 16) * 16  # few shapes to compile for
        padded = np.full((1, width), PAD, np.int32)
        padded[0, : len(ids)] = ids
        length = np.array([len(ids)], np.int32)
        out = jax.device_get(
            _greedy(model, params, Frozen(config.model), padded, length, max_length)
        )
        tokens = out.tokens[0, : out.length[0]].tolist()
        weights = out.weights[0, :, : len(tokens), : len(ids)]
        labels = source.tokens(ids), target.tokens(tokens)
        found.append(Translation(*labels, target.decode(tokens), weights))
    return found


def run(config: Config, path: Path, lines: Sequence[str], log: Callable[[str], None]) -> None:
    """Prints the translation of each line; heatmaps go to figures/translate/ of the run `path`."""
    if not (path / "checkpoints").exists() or not (path / "source_vocabulary.json").exists():
        raise UserError(
            f"--mode=translate: {path} has no trained model; train it first with the same command "
            "without --mode"
        )
    source = load_vocabulary(path / "source_vocabulary.json")
    target = load_vocabulary(path / "target_vocabulary.json")
    model = train.load_model(config)
    state = train.initial_state(model, config, source.size, target.size)
    checkpoints = Checkpoints(path / "checkpoints", log)
    _, state = checkpoints.best(state)
    checkpoints.close()
    clean = tasks.cleaner(config.task)
    longest = config.decode.max_length or 256
    folder = path / "figures" / "translate"
    folder.mkdir(parents=True, exist_ok=True)
    for number, line in enumerate(lines, 1):
        sentence = clean(line)
        unknown = [
            token
            for token, i in zip(
                source.tokens(source.encode(sentence)), source.encode(sentence), strict=True
            )
            if i == UNK
        ]
        if unknown:
            log(f"not in the vocabulary: {' '.join(unknown)}")
        found = translate(model, state.params, config, source, target, [sentence], longest)[0]
        print(found.text, flush=True)
        if found.weights.shape[0]:
            name = folder / f"{number:03d}.png"
            figures.heatmap(name, found.weights, found.source_tokens, found.output_tokens)
            log(f"  heatmap: {name}")
