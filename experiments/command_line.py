"""The command line of launch.py: a mistake on it is a UserError, one line, before work begins."""

import importlib.util
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import flags

import experiments
from experiments.config import fields, nearest
from experiments.errors import UserError, described


def parse(argv: list[str]) -> list[str]:
    """absl's flags parser with the mistakes that users make said plainly."""
    file, variant = _config_argument(argv)
    if file:
        known = list(fields(load_config(file, variant)))
        for argument in argv[1:]:
            match = re.match(r"--?(?:no)?config\.([^=]+)", argument)
            if match and match[1] not in known:
                raise UserError(f"--config.{match[1]}: no such field{field_hint(match[1], known)}")
    try:
        rest = flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as error:
        names = [name for name in flags.FLAGS if not name.startswith("config.")]
        raise UserError(
            f"--{error.flagname}: no such flag{nearest(error.flagname, names)}"
        ) from None
    except flags.Error as error:
        raise UserError(" ".join(str(error).split())) from None
    if not flags.FLAGS["workdir"].value:
        raise UserError("--workdir= is empty; name a directory")
    if not flags.FLAGS["config"].value:
        raise UserError(f"--config is missing; there are {', '.join(_config_files())}")
    if rest[1:]:
        raise UserError(f"{rest[1]!r} is not a flag (flags begin with --)")
    return rest


def check_flags() -> None:
    """Flags of a sweep say so when there is none, and the other way round."""
    given = {name: flags.FLAGS[name].value for name in flags.FLAGS if flags.FLAGS[name].present}
    if flags.FLAGS["sweep"].value:
        if given.get("mode") == "translate":
            raise UserError("--mode=translate is of one run; leave out --sweep")
        if given.get("slurm") and given.get("executor") != "slurm":
            raise UserError("--slurm is of --executor=slurm")
        if given.get("executor") == "slurm" and "processes" in given:
            raise UserError("--processes is of --executor=local")
        return
    for name in ("dry_run", "retry_failed", "executor", "processes", "slurm"):
        if name in given:
            raise UserError(f"--{name} is of a sweep; add --sweep")


def experiment(name: str) -> ModuleType:
    """The module of experiments/ that runs it: one with `check(config)` and `run(config, ...)`."""
    names = [module.name for module in pkgutil.iter_modules(experiments.__path__)]
    if name in names:
        module = importlib.import_module(f"experiments.{name}")
        if hasattr(module, "check") and hasattr(module, "run"):
            return module
    others = [other for other in names if other != name]
    raise UserError(
        f"config.experiment={name!r} is not a module of experiments/ with check and run"
        f"{nearest(name, others)}"
    )


def load_config(file: str, variant: str) -> Any:
    """What the config file's get_config gives for this variant."""
    module = load_module(file)
    try:
        return module.get_config(variant)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"get_config({variant!r}) of {file}: {described(error)}") from None


def load_module(file: str) -> ModuleType:
    """The config file, which has a get_config."""
    path = Path(file)
    if not path.is_file():
        raise UserError(f"--config={file}: no such file{nearest(file, _config_files())}")
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    try:
        if spec is None or spec.loader is None:
            raise ImportError("not a Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _ = module.get_config
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"--config={file} cannot be read: {described(error)}") from None
    return module


def _config_files() -> list[str]:
    return sorted(str(path) for path in Path("configs").glob("[a-z]*.py"))


def _config_argument(argv: list[str]) -> tuple[str, str]:
    """(file, variant) of --config, which absl takes as --config=X, -config=X or --config X."""
    value = ""
    for argument, after in zip(argv[1:], [*argv[2:], ""], strict=False):
        if argument in ("--config", "-config"):
            value = after
        elif argument.startswith(("--config=", "-config=")):
            value = argument.partition("=")[2]
    file, _, variant = value.partition(":")
    return file, variant


def field_hint(name: str, known: list[str]) -> str:
    """The nearest field: by its whole path, or by its last part."""
    groups = {field.rpartition(".")[0] for field in known}
    if name in groups:
        inside = [field for field in known if field.startswith(name + ".")]
        return f" but a group of fields: {', '.join(inside)}"
    hint = nearest(name, known)
    if not hint:
        last = {field.rpartition(".")[2]: field for field in known}
        hint = nearest(name.rpartition(".")[2], last)
        for short, field in last.items():
            hint = hint.replace(repr(short), repr(field))
    return hint or f"; there are {', '.join(known)}"
