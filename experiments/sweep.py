"""Sweeps: what a config file's `sweep(variant)` is made of, and the points that come of it.

A sweep is a list of overrides, {"field": value, ...} each, put together by a small algebra:

    def sweep(variant=""):
        scores = {"model.attention.score": ["additive", "projected_dot"]}
        return product(scores, {"model.attention.scale": ["none", "rsqrt_dim"]}, seeds(3))

Whatever takes sweeps takes fields with their values, {"field": [value, ...], ...}, too. The first
point says what the others are compared with; `seed` is what repeats a point.
"""

import dataclasses
import itertools
import typing
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any

from experiments import command_line, runs
from experiments.config import fields, replaced
from experiments.errors import UserError, described

Overrides = dict[str, Any]
Sweep = Mapping[str, Any] | Iterable[Overrides]  # the mapping: field -> its values


def seeds(count: int, first: int = 0) -> list[Overrides]:
    """`count` seeds.

    >>> seeds(2)
    [{'seed': 0}, {'seed': 1}]
    """
    if not isinstance(count, int) or not isinstance(first, int):
        raise UserError(f"seeds({count!r}, {first!r}) takes whole numbers")
    return [{"seed": seed} for seed in range(first, first + count)]


def product(*sweeps: Sweep) -> list[Overrides]:
    """Every combination; the last varies fastest.

    >>> product({"a": [1, 2], "b": ["x", "y"]})
    [{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 2, 'b': 'x'}, {'a': 2, 'b': 'y'}]
    >>> product({"a": [1, 2]}, seeds(1))
    [{'a': 1, 'seed': 0}, {'a': 2, 'seed': 0}]
    """
    return [_merged(parts) for parts in itertools.product(*_parts(sweeps))]


def zip_(*sweeps: Sweep) -> list[Overrides]:
    """First with first, second with second; all have one length.

    >>> zip_({"a": [1, 2], "b": ["x", "y"]})
    [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}]
    """
    parts = _parts(sweeps)
    lengths = [len(part) for part in parts]
    if len(set(lengths)) > 1:
        raise UserError(f"zip_ takes sweeps of one length: these have {lengths}")
    return [_merged(some) for some in zip(*parts, strict=True)]


def chain(*sweeps: Sweep) -> list[Overrides]:
    """One after the other.

    >>> chain({"a": [1], "b": ["x"]}, seeds(1))
    [{'a': 1}, {'b': 'x'}, {'seed': 0}]
    """
    return list(itertools.chain(*_parts(sweeps)))


def one_at_a_time(baseline: Overrides, *sweeps: Sweep) -> list[Overrides]:
    """The baseline, then the baseline with each of the other overrides in turn.

    >>> one_at_a_time({"a": 1, "b": "x"}, {"a": [1, 2], "b": ["y"]})
    [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'x'}, {'a': 1, 'b': 'y'}]
    """
    changed = [baseline | one for one in chain(*sweeps)]
    return [baseline, *(one for one in changed if one != baseline)]


def _parts(sweeps: Iterable[Sweep]) -> list[list[Overrides]]:
    """A list of overrides a sweep, or a field."""
    parts: list[list[Overrides]] = []
    for sweep in sweeps:
        if isinstance(sweep, Mapping):
            parts += [[{field: one} for one in _values(field, v)] for field, v in sweep.items()]
        else:
            parts.append(_overrides(sweep))
    return parts


def _values(field: str, values: Any) -> list[Any]:
    values = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
        raise UserError(f"{field}: a sweep takes a list of values, [{values!r}, ...]")
    return list(values)


def _overrides(found: Any) -> list[Overrides]:
    """A list of overrides; UserError for anything else."""
    if not isinstance(found, str | bytes | Mapping) and isinstance(found, Iterable):
        found = list(found)
        if all(isinstance(one, dict) and all(isinstance(k, str) for k in one) for one in found):
            return found
    raise UserError(
        f'{found!r:.80} is no list of overrides, [{{"field": value}}, ...]; product({{"field": '
        "[value, ...]}) makes one"
    )


def _merged(parts: Iterable[Overrides]) -> Overrides:
    out: Overrides = {}
    for part in parts:
        twice = out.keys() & part.keys()
        if twice:
            raise UserError(f"a sweep sets {sorted(twice)[0]} twice in one point")
        out |= part
    return out


@dataclasses.dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    config: Any  # resolved
    path: Path  # its run directory


def points(
    module: ModuleType, file: str, variant: str, base: Any, workdir: Path, experiment: Any
) -> list[Point]:
    """All points of the config file's sweep, `base` being its config with what the command line
    changed. Every one is checked: a UserError names the first that cannot run. Points that come to
    the same run are one."""
    if not hasattr(module, "sweep"):
        raise UserError(f"--sweep: {file} has no sweep(variant) beside get_config(variant)")
    default = module.get_config(variant)
    given = {name for name, value in fields(base).items() if value != fields(default)[name]}
    found: dict[Path, Point] = {}
    try:
        overrides = _overrides(module.sweep(variant))
    except UserError as error:
        raise UserError(f"sweep({variant!r}) of {file}: {error}") from None
    except Exception as error:
        raise UserError(f"sweep({variant!r}) of {file}: {described(error)}") from None
    for number, override in enumerate(overrides, start=1):
        try:
            twice = sorted(given & override.keys())
            if twice:
                raise UserError(f"--config.{twice[0]} is given, and the sweep sets it as well")
            asked = with_overrides(base, override)
            config = experiment.check(asked)
        except UserError as error:
            raise UserError(f"point {number} of {len(overrides)}, {override}: {error}") from None
        changed = runs.changes(default, asked)
        path = runs.directory(workdir, Path(file).stem, variant, changed, config)
        found.setdefault(path, Point(config, path))
    if not found:
        raise UserError(f"--sweep: sweep({variant!r}) of {file} has no points")
    if len(found) < len(overrides):
        runs.log(f"{len(overrides) - len(found)} of {len(overrides)} points repeat others")
    return list(found.values())


def with_overrides(config: Any, override: Overrides) -> Any:
    """The config with these fields. UserError for a field that is not there or another type."""
    known = fields(config)
    values = {}
    for name, value in override.items():
        if name not in known:
            raise UserError(f"{name}: no such field{command_line.field_hint(name, list(known))}")
        if name in runs.NOT_RESULT:
            raise UserError(
                f"{name} changes no result, so it cannot be swept; give it as --config.{name}"
            )
        values[name] = _as_type(name, value, _annotation(config, name))
    return replaced(config, values)


def _annotation(config: Any, name: str) -> tuple[Any, ...]:
    """The types that the field may have."""
    *groups, field = name.split(".")
    for group in groups:
        config = getattr(config, group)
    annotation = typing.get_type_hints(type(config))[field]
    return typing.get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)


def _as_type(name: str, value: Any, types: tuple[Any, ...]) -> Any:
    """The value as the command line would give it: an int in a float's place is a float, and a
    number in a word's place (a scale) is its word."""
    value = value.item() if hasattr(value, "item") else value  # of NumPy
    if type(value) in types:
        return value
    if value is not None and not isinstance(value, bool):
        if float in types and isinstance(value, int):
            return float(value)
        if str in types and isinstance(value, int | float):
            return str(value)
    words = " or ".join("None" if one is NoneType else one.__name__ for one in types)
    raise UserError(f"{name}={value!r} is of type {type(value).__name__}: it takes {words}")


def varying(points: Sequence[Point]) -> list[str]:
    """The fields that are not the same in all points, in the order of the schema."""
    flat = [fields(point.config) for point in points]
    return [
        name
        for name in flat[0]
        if name not in runs.NOT_RESULT and any(one.get(name) != flat[0][name] for one in flat)
    ]
