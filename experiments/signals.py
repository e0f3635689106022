"""SIGTERM and Ctrl-C: how they stop a run."""

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class Stopped(BaseException):
    """SIGTERM or Ctrl-C came; the same command goes on from what is saved. No Exception, so that
    nothing on the way takes it for a failure of its own."""


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Within it SIGTERM and Ctrl-C raise Stopped (the training loop has a gentler way)."""
    came: list[int] = []

    def stop(number: int, frame: Any) -> None:
        if number != signal.SIGALRM:
            came.append(number)
        if _drops_exceptions(frame):
            signal.setitimer(signal.ITIMER_REAL, 0.02)  # SIGALRM: a little later
            return
        raise Stopped(f"stopped by {signal.Signals(came[0] if came else number).name}")

    with handling(stop, (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)):
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _drops_exceptions(frame: Any) -> bool:
    """Whether Python is in a callback whose exceptions it prints and forgets."""
    while frame is not None:
        if frame.f_code.co_name in ("_xla_gc_callback", "__del__"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def handling(
    handler: Callable[[int, Any], None],
    numbers: Sequence[int] = (signal.SIGTERM, signal.SIGINT),
) -> Iterator[None]:
    """Within it `handler` gets these signals."""
    old = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)
