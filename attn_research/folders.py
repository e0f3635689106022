"""A folder of Python files is a registry: one file, one entry, no list to keep up to date."""

import difflib
import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType


def load_folder(package: str, path: Iterable[str]) -> dict[str, ModuleType]:
    """Imports every public module of ``package``; the order is that of the names."""
    names = sorted(m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_"))
    return {name: importlib.import_module(f"{package}.{name}") for name in names}


def unknown(what: str, name: object, names: Iterable[str]) -> str:
    """The line that says ``name`` does not exist, and what does.

    >>> unknown("score", "aditive", ["additive", "dot"])
    "unknown score 'aditive': did you mean 'additive'? There are: 'additive', 'dot'"
    """
    names = list(names)
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    there_are = ", ".join(map(repr, names)) or "none"
    return f"unknown {what} {name!r}: {hint}There are: {there_are}"
