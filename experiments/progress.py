"""What is shown while a sweep runs, read from the run directories, whoever runs them.

On a terminal: a bar with the time left, and a line a running point. Elsewhere (a log file): a line
when a point ends, and nothing else.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments import runs
from experiments.sweep import Point

_EVERY = 1.0  # seconds between two looks
_LINES = 8  # running points that are shown


@contextlib.contextmanager
def shown(points: Sequence[Point]) -> Iterator[None]:
    """Within it the progress of the points is shown."""
    ended = {point.path for point in points if _ends(runs.status(point.path))}
    stop = threading.Event()
    target = _bar if sys.stdout.isatty() else _lines
    thread = threading.Thread(target=target, args=(points, ended, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def seconds_left(count: int, ended: int, before: int, seconds: float) -> float | None:
    """Of `count` points `ended` have, `before` of them more than `seconds` ago."""
    new = ended - before
    return seconds / new * (count - ended) if new else None


def clock(seconds: float | None) -> str:
    """'?', '45 s', '12 min' or '3.5 h'."""
    if seconds is None:
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _ends(status: str) -> bool:
    return status in ("done", "failed", "diverged")


def _lines(points: Sequence[Point], ended: set[Path], stop: threading.Event) -> None:
    before, start = len(ended), time.monotonic()
    last = False
    while not last:
        last = stop.wait(_EVERY)  # looks once more after the end
        for point in points:
            status = runs.status(point.path)
            if point.path in ended or not _ends(status):
                continue
            ended.add(point.path)
            left = seconds_left(len(points), len(ended), before, time.monotonic() - start)
            why = f" ({runs.reason(point.path)[:100]})" if status != "done" else ""
            tail = f"; {clock(left)} left" if len(ended) < len(points) else ""
            runs.log(f"{len(ended)}/{len(points)} {status}: {point.path.name}{why}{tail}")


def _bar(points: Sequence[Point], ended: set[Path], stop: threading.Event) -> None:
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    before, start = len(ended), time.monotonic()

    def look() -> Table:
        states = {point.path: runs.status(point.path) for point in points}
        count = sum(map(_ends, states.values()))
        bad = sum(status in ("failed", "diverged") for status in states.values())
        left = seconds_left(len(points), count, before, time.monotonic() - start)
        words = f"{count}/{len(points)}  {clock(left)} left" + (f"  {bad} failed" if bad else "")
        table = Table.grid(padding=(0, 1))
        table.add_row(ProgressBar(total=len(points), completed=count, width=40), Text(words))
        running = [path for path, status in states.items() if status == "running"]
        running = [path for path in running if runs.busy(path)]
        for path in running[:_LINES]:
            line = (path.name, _last(path))
            table.add_row(*(Text(part, overflow="ellipsis", no_wrap=True) for part in line))
        if len(running) > _LINES:
            table.add_row(Text(f"and {len(running) - _LINES} more"), Text(""))
        return table

    with Live(look(), refresh_per_second=2, transient=True) as live:
        while not stop.wait(_EVERY):
            live.update(look())


def _last(path: Path) -> str:
    """The last line that the run has said."""
    with contextlib.suppress(OSError, IndexError), open(path / "log.txt", "rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 1000))
        return file.read().decode(errors="replace").strip().splitlines()[-1][:80]
    return ""
