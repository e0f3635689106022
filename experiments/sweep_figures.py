"""Pictures of a sweep for papers, each with the numbers that it shows in a file beside it."""

from pathlib import Path

from experiments.report_data import Sweep
from experiments.statistics import Comparison


def write(folder: Path, sweep: Sweep, compared: dict[str, list[Comparison]]) -> None:
    """Draws nothing yet."""
