"""Prepared data: TFDS builders whose files are array_record, written once and read through
`as_data_source`. Imported when a task is loaded, not before: TensorFlow Datasets is slow to import.

A data set lies in `<data_dir>/<task>/<options>/<version>/`. TFDS writes to a directory beside it
and renames that at the end, so what is there is complete. Processes that want the same set wait for
one another at a lock that the system takes from a process which dies.
"""

import contextlib
import fcntl
import io
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from experiments.config import TaskConfig
from experiments.errors import UserError
from experiments.tasks._pairs import Log, Texts

FORMAT = "array_record"


def data_dir(config: TaskConfig) -> Path:
    """Where prepared data lie: the config's directory, $TFDS_DATA_DIR, or TFDS's own place."""
    place = config.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(place).expanduser()


class _Pairs(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """Sentence pairs in the order in which they were drawn."""

    texts: Mapping[str, Texts]

    def _info(self) -> Any:
        text = tfds.features.Text()
        return tfds.core.DatasetInfo(
            builder=self,
            description="Sentence pairs of the task in the builder's name.",
            features=tfds.features.FeaturesDict({"source": text, "target": text}),
            supervised_keys=("source", "target"),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> Any:
        return {split: self._generate_examples(split) for split in self.texts}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, str]]]:
        for i, (source, target) in enumerate(self.texts[split]):
            yield i, {"source": source, "target": target}


def prepared(
    name: str,
    options: str,
    version: str,
    place: Path,
    draw: Callable[[], Mapping[str, Texts]],
    log: Log,
) -> Path:
    """The directory of the data set, which `draw` fills if it is not there yet. Raises `UserError`
    if it cannot be written."""
    directory = place / name / options / version
    if complete(directory):
        return directory
    with writing(place):
        directory.parent.mkdir(parents=True, exist_ok=True)
        with locked(directory.parent / ".lock", log):
            if not complete(directory):
                log(f"preparing {name} in {directory} (once)")
                start = time.perf_counter()
                for left in directory.parent.glob("incomplete.*"):  # by a process that was killed
                    shutil.rmtree(left, ignore_errors=True)
                texts = draw()
                _write(name, options, version, place, texts)
                sizes = ", ".join(f"{len(pairs):,} {split}" for split, pairs in texts.items())
                log(f"prepared {sizes} pairs in {time.perf_counter() - start:.1f} s")
    return directory


def complete(directory: Path) -> bool:
    return (directory / "dataset_info.json").exists()


def _write(name: str, options: str, version: str, place: Path, texts: Mapping[str, Texts]) -> None:
    members = {"name": name, "VERSION": tfds.core.Version(version), "texts": texts}
    cls = type("Pairs", (_Pairs,), members, skip_registration=True)
    with quiet():
        builder = cls(
            config=tfds.core.BuilderConfig(name=options), data_dir=str(place), file_format=FORMAT
        )
        builder.download_and_prepare()


def texts(directory: Path) -> dict[str, Texts]:
    """Every split of a data set that `prepared` wrote, in its order."""
    try:
        with quiet():
            sources = tfds.builder_from_directory(str(directory)).as_data_source()
            return {split: _decoded(rows) for split, rows in sources.items()}
    except Exception as error:  # whatever array_record, protobuf or the disk says
        raise UserError(
            f"the prepared data in {directory} cannot be read ({error}): delete that directory, "
            "and they are prepared again"
        ) from error


def _decoded(rows: Any) -> Texts:
    examples = rows.__getitems__(range(len(rows)))
    return Texts([e["source"].decode() for e in examples], [e["target"].decode() for e in examples])


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Says in one line that nothing can be written in `place`, where that is so."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"prepared data cannot be written in {place} ({reason}): set task.data_dir or "
            "$TFDS_DATA_DIR to a directory that can be written"
        ) from error


@contextlib.contextmanager
def locked(path: Path, log: Log) -> Iterator[None]:
    """Holds the lock file `path`, which another process may hold first."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"waiting for another process that prepares {path.parent}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps TFDS's bars, banners and notices off the terminal."""
    loggers = [logging.getLogger(name) for name in ("absl", "urllib3")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
