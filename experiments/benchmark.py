"""How fast attention is here, and how much memory it takes, beside its peers on the same arrays.

    summary.csv     a row for each work, implementation, T and pass
    ratios.csv      what was aimed at, and what was reached
    figures/        time and memory against T
    points.jsonl    each (work, T) as it was measured; a run that was stopped goes on after them

`experiments/peers.py` says what is timed, `experiments/benchmark_report.py` what is made of it.
"""

import contextlib
import dataclasses
import json
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments import benchmark_report, peers, runs
from experiments.config import one_of
from experiments.errors import UserError

Log = Callable[[str], None]

LEAST_ROUNDS = 3


@dataclasses.dataclass
class BenchmarkConfig:
    experiment: str = "benchmark"
    seed: int = 0  # of the arrays, and of the order within a round
    works: tuple[str, ...] = peers.WORKS
    lengths: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8192)  # T = S
    heads: int = 8
    dim: int = 64  # features of a head
    repeats: int = 7  # rounds
    calls: int = 2  # timed ones in a round; 1024 / T times as many where T is shorter than 1024
    point_seconds: float = 60.0  # after these no further round, if there were three


def check(config: BenchmarkConfig) -> BenchmarkConfig:
    """The config as it is. UserError for what cannot run."""
    for field, values in (("works", config.works), ("lengths", config.lengths)):
        if not values or len(set(values)) < len(values):
            raise UserError(f"config.{field}={values}: at least one, and none of them twice")
    for work in config.works:
        one_of("config.works", work, peers.WORKS)
    numbers = {name: getattr(config, name) for name in ("heads", "dim", "repeats", "calls")}
    for name, value in {"lengths": min(config.lengths), **numbers}.items():
        if value < 1:
            raise UserError(f"config.{name}={value} is less than 1")
    return config


def run(config: BenchmarkConfig, run_dir: Path, log: Log) -> dict[str, float | int | str]:
    """Measures what is not yet in run_dir/points.jsonl, writes the files; returns, flat,

    WORK/T/PASS/IMPLEMENTATION_ms         milliseconds; PASS is forward or forward_backward
    WORK/T/PASS/IMPLEMENTATION_mb         10^6 bytes of temporary memory (JAX only)
    WORK/T/PASS/blocked_over_OTHER        how many times as fast as the other `blocked` is
    machine/products_g, /reciprocals_g    10^9 flop, and reciprocals, a second
    targets/met, /missed                  how many
    """
    absent = peers.missing()
    if absent:
        log(f"not installed, left out: {', '.join(absent)} (pip install -e '.[peers]')")
    points = _read(run_dir / "points.jsonl")
    done = {(point["work"], point["T"]) for point in points}
    with open(run_dir / "points.jsonl", "a", encoding="utf-8") as file:
        for T in config.lengths:
            for work in config.works:
                if (work, T) not in done:
                    point = measure(config, work, T)
                    file.write(json.dumps(point) + "\n")
                    file.flush()
                    points.append(point)
                    log(_line(point))
    rows = [row for point in points for row in point["rows"]]
    compared = benchmark_report.write(run_dir, rows, absent, log)
    return _result(points, rows, compared)


def measure(config: BenchmarkConfig, work: str, T: int) -> dict[str, Any]:
    """All implementations of `work` at this T, both passes; the machine's rate is taken in the same
    rounds."""
    arrays = peers.draw(work, T, config.heads, config.dim, config.seed)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    there = peers.implementations(work)
    fitting = [each for each in there if each.fits(T, config.heads, config.dim, memory)]
    rows, rates = [], {}
    for passes in peers.PASSES:
        prepared = {each.name: peers.prepare(each, arrays, passes) for each in fitting}
        functions = {name: each.call for name, each in prepared.items()}
        made_of = peers.work_of(work, passes, T, config.heads, config.dim)
        if made_of:
            functions["machine"], amount = peers.rate(made_of[0])
        seconds = fair_times(
            functions,
            rounds=config.repeats,
            calls=config.calls * max(1, 1024 // T),
            seed=f"{config.seed} {work} {T} {passes}",
            most_seconds=config.point_seconds,
        )
        if made_of:
            rates[f"{made_of[0]}/{passes}"] = amount / seconds["machine"]
        for name, each in prepared.items():
            share = made_of and made_of[1] / seconds[name] / (amount / seconds["machine"])
            row = {"work": work, "implementation": name, "T": T, "pass": passes}
            row["milliseconds"] = 1e3 * seconds[name]
            row["temporary_megabytes"] = each.temporary_megabytes
            row["fraction_of_machine"] = share
            rows.append(row)
    left_out = [each.name for each in there if each not in fitting]
    return {"work": work, "T": T, "rows": rows, "rates": rates, "left_out": left_out}


def fair_times(
    functions: Mapping[str, Callable[[], Any]],
    rounds: int,
    calls: int,
    seed: int | str,
    most_seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Seconds that a call of each takes: the median, over rounds, of the fastest call in a round.

    A round goes through all of them in a fresh random order, so that a slow minute of the machine
    is slow for all. Each is called once untimed, as what ran before it may have thrown its memory
    out of the caches and the allocator, and then timed `calls` times. A function must return when
    its result is there. Once `most_seconds` are over, and three rounds, no further one begins.
    """
    order, shuffle = list(functions), random.Random(seed)
    fastest: dict[str, list[float]] = {name: [] for name in functions}
    begin = clock()
    for done in range(rounds):
        if done >= LEAST_ROUNDS and clock() - begin > most_seconds:
            break
        shuffle.shuffle(order)
        for name in order:
            function, seconds = functions[name], []
            function()
            for _ in range(calls):
                start = clock()
                function()
                seconds.append(clock() - start)
            fastest[name].append(min(seconds))
    return {name: statistics.median(seconds) for name, seconds in fastest.items()}


def _read(path: Path) -> list[dict[str, Any]]:
    """The points of a run that was stopped; a line cut short is dropped, from the file too."""
    points = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                points.append(json.loads(line))
        runs.write_text(path, "".join(json.dumps(point) + "\n" for point in points))
    return points


def _line(point: dict[str, Any]) -> str:
    """What was measured at this T, in milliseconds, forward and forward + backward."""
    times: dict[str, list[str]] = {}
    for row in point["rows"]:
        times.setdefault(row["implementation"], []).append(f"{row['milliseconds']:.3g}")
    shown = ", ".join(f"{name} {' + '.join(ms)}" for name, ms in times.items())
    out = f"; too large: {', '.join(point['left_out'])}" if point["left_out"] else ""
    return f"{point['work']} T={point['T']}: {shown} ms{out}"


def _result(
    points: list[dict[str, Any]], rows: list[dict[str, Any]], compared: list[dict[str, Any]]
) -> dict[str, float | int | str]:
    result: dict[str, float | int | str] = {}
    ours = {(r["work"], r["T"], r["pass"]): r for r in rows if r["implementation"] == "blocked"}
    for row in rows:
        place, name = (row["work"], row["T"], row["pass"]), row["implementation"]
        prefix = "/".join(map(str, place))
        result[f"{prefix}/{name}_ms"] = row["milliseconds"]
        if row["temporary_megabytes"] is not None:
            result[f"{prefix}/{name}_mb"] = row["temporary_megabytes"]
        if name != "blocked":
            ratio = row["milliseconds"] / ours[place]["milliseconds"]
            result[f"{prefix}/blocked_over_{name}"] = ratio
    for kind in ("products", "reciprocals"):
        found = [r for p in points for key, r in p["rates"].items() if key.startswith(kind)]
        if found:
            result[f"machine/{kind}_g"] = statistics.median(found)
    for name, met in (("met", "yes"), ("missed", "no")):
        result[f"targets/{name}"] = sum(row["met"] == met for row in compared)
    return result
