"""The schema of a run: typed dataclasses, checked before anything compiles.

A config file's `get_config(variant)` returns a `Config`; `--config.a.b=v` overrides a field. `None`
means "as the task or the model has it by itself"; `check` says, in one line, what cannot work.
"""

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any

from experiments.errors import UserError

CELLS = ("rnn", "gru", "lstm")
QUERIES = ("previous", "current")
DECAYS = ("none", "cosine", "linear")
SCALES = ("default", "none", "rsqrt_dim", "inverse_dim")


@dataclasses.dataclass
class TaskConfig:
    """The data. Every field after `data_dir` is an option that some tasks have and others do not;
    `None` is the task's own default (stated in its file), and setting one it does not have is an
    error."""

    name: str = "number_words"  # a module of experiments/tasks
    tfds: str = (
        ""  # a TFDS translation set by name, "set/source_to_target": takes the place of name
    )
    data_dir: str | None = (
        None  # where prepared data lie; None: $TFDS_DATA_DIR, ~/tensorflow_datasets
    )
    train_examples: int | None = None
    eval_examples: int | None = None  # in validation, and again in test
    max_number: int | None = None  # numbers below this
    max_terms: int | None = None  # numbers in one sentence, at most
    vocabulary_size: int | None = None  # symbols of a generated task, or BPE pieces
    max_length: int | None = None  # source and target tokens in training, at most


@dataclasses.dataclass
class AttentionConfig:
    score: str = "additive"  # a name in attn_research.SCORES, or "none": one fixed context vector
    scale: str = "default"  # of the score itself; or none, rsqrt_dim, inverse_dim, a number
    query: str = "previous"  # s_{i-1} (Bahdanau), or "current": s_i (Luong)
    normalizer: str = "softmax"  # a name in attn_research.NORMALIZERS
    dim: int | None = (
        None  # of the space a score projects to (projected_dot, additive ...); None: its default
    )
    num_heads: int = 1
    input_feeding: bool = False  # the attentional vector is fed to the next step (query="current")


@dataclasses.dataclass
class ModelConfig:
    kind: str = "rnn_seq2seq"  # a module of experiments/models
    cell: str = "gru"  # rnn, gru, lstm
    hidden_size: int = 128  # width of the decoder's state
    encoder_size: int | None = None  # width of one encoder direction; None: hidden_size
    bidirectional: bool = False
    num_layers: int = 1  # of the encoder, and of the decoder
    embedding_size: int = 64
    embedding_stddev: float = 1.0  # of the initial embeddings
    dropout: float = 0.0
    attention: AttentionConfig = dataclasses.field(default_factory=AttentionConfig)

    @property
    def encoder_width(self) -> int:
        """Features of an encoder state h_j: the directions side by side."""
        return (self.encoder_size or self.hidden_size) * (2 if self.bidirectional else 1)


@dataclasses.dataclass
class OptimConfig:
    """AdamW (Loshchilov & Hutter 2019) after clipping by global norm."""

    learning_rate: float = 3e-3  # at its peak
    warmup_steps: int = 0  # linear from 0
    decay: str = "none"  # from the peak to 0 at train.steps: none, cosine, linear
    weight_decay: float = 0.0
    clip_norm: float = 1.0


@dataclasses.dataclass
class TrainConfig:
    steps: int = 1000
    batch_size: int = 128  # sentences, over all devices
    log_every: int = 50
    eval_every: int = 200  # steps between evaluations of the validation split, and checkpoints


@dataclasses.dataclass
class DecodeConfig:
    beam_size: int = 1  # 1 is greedy
    max_length: int | None = None  # tokens at most, <eos> counted; None: the longest target + half


@dataclasses.dataclass
class Config:
    experiment: str = "train"  # the module of experiments/ that runs it
    seed: int = 0
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    optim: OptimConfig = dataclasses.field(default_factory=OptimConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    decode: DecodeConfig = dataclasses.field(default_factory=DecodeConfig)


def one_of(field: str, value: str, names: Iterable[str]) -> None:
    """Raises unless `value` is among `names`, with the nearest of them."""
    names = tuple(names)
    if value not in names:
        raise UserError(
            f"{field}={value!r} is not one of {', '.join(names)}{nearest(value, names)}"
        )


def nearest(value: str, names: Iterable[str]) -> str:
    """'; did you mean ...?', or nothing where no name is near."""
    close = difflib.get_close_matches(str(value), list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def no_variant(file: str, variant: str, there: Iterable[str] = ("quick",)) -> None:
    """Raises for a config file that was asked for a variant it does not have."""
    name, there = file.rpartition("/")[2], tuple(there)
    raise UserError(
        f"--config={name}:{variant}: no such variant, there is {', '.join(there)}"
        f"{nearest(variant, there)}"
    )


def fields(config: Any, prefix: str = "") -> dict[str, Any]:
    """The config as flat {'model.attention.score': 'additive', ...}, in the order of the schema."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            flat |= fields(value, f"{prefix}{field.name}.")
        else:
            flat[prefix + field.name] = value
    return flat


def replaced(config: Any, values: dict[str, Any]) -> Any:
    """A copy of the config with the fields of `values`, named as by `fields`, set."""
    inside: dict[str, dict[str, Any]] = {}
    own = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        if rest:
            inside.setdefault(head, {})[rest] = value
        else:
            own[head] = value
    groups = {head: replaced(getattr(config, head), rest) for head, rest in inside.items()}
    return dataclasses.replace(config, **own, **groups)
