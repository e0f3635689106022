"""The resolved config of every config file and sweep point: python -m tests.golden writes them all.

A changed default changes a file of tests/golden/, and so shows in review.
"""

import importlib
import json
from pathlib import Path
from typing import Any

from experiments import command_line, sweep
from experiments.config import fields

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("[a-z]*.py"))
VARIANTS = ("", "quick")


def resolved(name: str, variant: str) -> dict[str, Any]:
    """{"config": all fields, "sweep": what each point has otherwise, by its run's name}."""
    file = str(ROOT / "configs" / f"{name}.py")
    module = command_line.load_module(file)
    config = module.get_config(variant)
    experiment = importlib.import_module(f"experiments.{config.experiment}")
    base = fields(experiment.check(config))
    found: dict[str, Any] = {"config": base}
    if hasattr(module, "sweep"):
        points = sweep.points(module, file, variant, config, Path(), experiment)
        found["sweep"] = {
            point.path.name: {
                field: value
                for field, value in fields(point.config).items()
                if value != base[field]
            }
            for point in points
        }
    return found


def file_of(name: str, variant: str) -> Path:
    return FOLDER / f"{name}{'_' if variant else ''}{variant}.json"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in NAMES:
        for variant in VARIANTS:
            text = json.dumps(resolved(name, variant), indent=1, ensure_ascii=False)
            file_of(name, variant).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
