"""Writes what a sweep came to, from its run directories, at any time, into the sweep's directory:

summary.csv      a row a run
statistics.csv   a row a metric and condition: mean, interval, difference to the baseline, tests
report.html      both and the plots, in one file that opens without a network
report.md        the table of conditions, to be kept beside text
figures/         for papers: PNG, PDF and the numbers in each as CSV
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments import report_data, report_html, report_markdown, runs, summary, sweep_figures
from experiments.report_data import Sweep
from experiments.statistics import Comparison
from experiments.sweep import Point


def write(
    folder: Path, points: Sequence[Point], command: Sequence[str], log: Callable[[str], None]
) -> None:
    """Writes all of them. `command` is the one that runs the sweep; nothing need be done yet."""
    folder.mkdir(parents=True, exist_ok=True)
    when = time.strftime("%Y-%m-%d %H:%M:%S %z")
    table = summary.rows(points)
    summary.write(folder / summary.FILE, table)
    sweep = report_data.group(points, table)
    compared = {metric: sweep.compare(metric) for metric in sweep.metrics}
    summary.write(folder / "statistics.csv", statistic_rows(sweep, compared))
    curves = report_data.curves(sweep)
    runs.write_text(
        folder / "report.html", report_html.page(folder, sweep, compared, curves, command, when)
    )
    runs.write_text(folder / "report.md", report_markdown.table(sweep, compared))
    sweep_figures.write(folder / "figures", sweep, compared, curves)
    log(report_html.counts(sweep))


def statistic_rows(sweep: Sweep, compared: dict[str, list[Comparison]]) -> list[summary.Row]:
    """The rows of statistics.csv; one that has no metric where no run is done."""
    names = [field.name for field in dataclasses.fields(Comparison)]
    found = compared or {"": [Comparison(0)] * len(sweep.members)}
    return [
        {"metric": metric}
        | dict(zip(sweep.factors, values, strict=True))
        | {"runs": len(members)}
        | {name: getattr(one, name) for name in names}
        for metric, comparisons in found.items()
        for values, members, one in zip(sweep.values, sweep.members, comparisons, strict=True)
    ]
