"""The time a run has taken, over all the processes that worked on it."""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager


@dataclasses.dataclass
class Clock:
    """Counts from when it is made; what `totals` gives, another process can begin with."""

    seconds: float = 0.0  # all of training
    compile_seconds: float = 0.0  # of these
    validation_seconds: float = 0.0  # of these, too
    tokens: int = 0  # real target tokens trained on

    def __post_init__(self) -> None:
        self._since = time.perf_counter()

    def totals(self) -> dict[str, float]:
        """The fields as of now."""
        now = time.perf_counter()
        self.seconds += now - self._since
        self._since = now
        return dataclasses.asdict(self)

    @contextmanager
    def counting(self, field: str) -> Iterator[None]:
        """Adds the time spent within to `field` as well."""
        start = time.perf_counter()
        yield
        setattr(self, field, getattr(self, field) + time.perf_counter() - start)

    def training_seconds(self) -> float:
        """Without compilation and validation."""
        self.totals()
        return max(self.seconds - self.compile_seconds - self.validation_seconds, 1e-9)

    def tokens_per_second(self) -> float:
        return self.tokens / self.training_seconds()
