"""Any translation set of TensorFlow Datasets by its name, `--config.task.tfds=set/pair`, such as
ted_hrlr_translate/pt_to_en, in the direction of the set's supervised keys.

The set's own splits are kept, but what they share is taken out: a validation sentence that is also
in test, and a training sentence that is in either. A validation or test split that the set has not
got, or that has no sentence of its own, is taken from training: `eval_examples` sentences, or a
tenth of it if that is less, which the text alone decides, whatever the order of the files.
"""

import contextlib
import hashlib
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.config import TaskConfig, nearest
from experiments.errors import UserError
from experiments.tasks import _pieces
from experiments.tasks._pairs import SPLITS, Definition, Log, Options, Texts, squeeze

RETRIES = 2  # of a download, in place of TFDS's ten: where there is no network that takes minutes

Pair = tuple[str, str]


def clean(text: str) -> str:
    """Composed letters, single spaces."""
    return squeeze(unicodedata.normalize("NFC", text))


def _builder(config: TaskConfig) -> Any:
    """The TFDS builder of a set of sentence pairs. Raises `UserError` where there is no such."""
    from experiments.tasks import _storage

    with _storage.quiet():
        import tensorflow_datasets as tfds
        import tensorflow_datasets.translate as sets

        name, _, pair = config.tfds.partition("/")
        classes = [cls for cls in vars(sets).values() if isinstance(cls, type)]
        known = [cls.name for cls in classes if hasattr(cls, "name")]
        try:
            cls = tfds.builder_cls(name)
        except (tfds.core.DatasetNotFoundError, ValueError) as error:
            raise UserError(
                f"task.tfds={config.tfds!r}: TFDS has no set {name!r}{nearest(name, known)}"
            ) from error
        pairs = list(cls.builder_configs)
        if pairs and pair not in pairs:
            near = nearest(pair, pairs)
            some = ", ".join(pairs[:8]) + (", ..." if len(pairs) > 8 else "")
            raise UserError(f"task.tfds={config.tfds!r}: {name!r} has the pairs {some}{near}")
        place = str(_storage.data_dir(config))
        try:
            builder = tfds.builder(config.tfds, data_dir=place, file_format=_storage.FORMAT)
            keys, features = builder.info.supervised_keys, builder.info.features
        except (ValueError, AttributeError, ImportError) as error:
            raise UserError(f"task.tfds={config.tfds!r} in {place}: {_line(error)}") from error
        texts = [isinstance(features[key], tfds.features.Text) for key in keys or ()]
        if len(texts) != 2 or not all(texts):
            raise UserError(
                f"task.tfds={config.tfds!r} is not a set of sentence pairs; such are "
                "ted_hrlr_translate/pt_to_en, para_crawl/enfr, wmt14_translate/fr-en"
            )
        return builder


def _line(error: BaseException) -> str:
    """The first line of what an error says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def check(options: Options, config: TaskConfig) -> None:
    _builder(config)


def read(config: TaskConfig, log: Log) -> tuple[Mapping[str, Texts], Path]:
    """The set's texts, downloaded and prepared where they are not on disk. Raises `UserError` where
    that cannot be done."""
    from experiments.tasks import _storage

    builder = _builder(config)
    directory = _storage.data_dir(config) / builder.info.full_name
    if not _storage.complete(directory):
        with _storage.writing(directory.parent):
            directory.parent.mkdir(parents=True, exist_ok=True)
            with _storage.locked(directory.parent / ".lock", log):
                _download(builder, config, log)
    found = _pairs(builder, config)
    if "train" not in found:
        raise UserError(f"task.tfds={config.tfds!r} has no training split: {', '.join(found)}")
    splits = disjoint(found, config.eval_examples or 0)
    splits["train"] = splits["train"][: config.train_examples]
    return {split: Texts.of(splits[split]) for split in SPLITS}, directory


def _pairs(builder: Any, config: TaskConfig) -> dict[str, list[Pair]]:
    """What each split on disk has, without pairs that are empty on a side."""
    from experiments.tasks import _storage

    source, target = builder.info.supervised_keys
    found = {}
    try:
        with _storage.quiet():
            for split in [s for s in SPLITS if s in builder.info.splits] or SPLITS:
                rows = _rows(builder.as_data_source(split=split))
                pairs = ((_text(e[source]), _text(e[target])) for e in rows)
                found[split] = [pair for pair in pairs if all(pair)]
    except Exception as error:  # files of another format, or damaged ones
        raise UserError(
            f"the TFDS set {config.tfds} in {builder.data_dir} cannot be read: {_line(error)}"
        ) from error
    return found


def _text(value: bytes | str) -> str:
    return clean(value.decode() if isinstance(value, bytes) else value)


def _rows(source: Any) -> list[Any]:
    try:
        return source.__getitems__(range(len(source)))
    except TypeError:  # tfds.testing.mock_data has single rows only
        return list(source)


def _download(builder: Any, config: TaskConfig, log: Log) -> None:
    from experiments.tasks import _storage

    place = _storage.data_dir(config)
    log(f"downloading {config.tfds} into {place} (once)")
    try:
        with _storage.quiet(), _few_retries():
            builder.download_and_prepare()
    except Exception as error:  # no network, a moved file, a missing package, a full disk
        reason = "no connection" if isinstance(error, OSError) else _line(error)
        raise UserError(
            f"the TFDS set {config.tfds} is not in {place}, and it cannot be had from here "
            f"({reason}): prepare it where there is a network, with file_format='array_record', "
            "and copy its folder there, or set task.data_dir to where it lies"
        ) from error


@contextlib.contextmanager
def _few_retries() -> Iterator[None]:
    from tensorflow_datasets.core.download import downloader

    before = getattr(downloader, "MAX_RETRIES", None)
    downloader.MAX_RETRIES = RETRIES
    try:
        yield
    finally:
        downloader.MAX_RETRIES = before


def disjoint(found: Mapping[str, list[Pair]], held_out: int) -> dict[str, list[Pair]]:
    """Three splits without a common source sentence, from those there are; see the module."""
    train = sorted(found["train"], key=lambda pair: hashlib.sha256(pair[0].encode()).digest())
    sources = {source for source, _ in train}
    splits: dict[str, list[Pair]] = {}
    taken: set[str] = set()
    for split in "test", "validation":
        pairs = [pair for pair in found.get(split, []) if pair[0] not in taken]
        if all(source in sources for source, _ in pairs):
            free = list(dict.fromkeys(source for source, _ in train if source not in taken))
            chosen = set(free[: min(held_out, max(1, len(free) // 10))])
            pairs = [pair for pair in train if pair[0] in chosen]
        splits[split] = pairs
        taken |= {source for source, _ in pairs}
    splits["train"] = [pair for pair in train if pair[0] not in taken]
    return splits


TASK = Definition(
    defaults={
        "train_examples": None,  # all there are
        "eval_examples": 1000,  # only where a split is taken from training
        "vocabulary_size": 8000,
        "max_length": 60,
    },
    read=read,
    vocabularies=_pieces.vocabularies,
    clean=clean,
    check=check,
    drop_long=True,
)
