"""What benchmarks have in common: flags, a table of rows, a JSON file."""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

PACKAGES = (
    *("tensorflow", "keras", "keras-hub"),
    *("torch", "timm", "transformers", "onnxruntime"),
)


def make_parser(
    doc: str, name: str, rounds: int | None = None
) -> argparse.ArgumentParser:
    """The parser of a benchmark's flags.

    Args:
        rounds: How often its contestants have a turn, by default.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--output", default=f"benchmarks/{name}.json")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def write(record: object, output: str) -> None:
    """Write a JSON file."""
    pathlib.Path(output).write_text(json.dumps(record, indent=1), "utf-8")


def show(rows: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """Print rows as a table, whose columns are all their keys."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(title=title)
    for column in columns:
        number = any(isinstance(row.get(column), int | float) for row in rows)
        side: Any = "right" if number else "left"
        table.add_column(column.replace("_", " "), justify=side)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value)


def spread(ones: Sequence[float], others: Sequence[float]) -> float | None:
    """How far the ratios of several rounds are apart, as a share of them."""
    if len(ones) < 2:
        return None
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    return round((max(ratios) - min(ratios)) / min(ratios), 3)


def machine(packages: Iterable[str] = PACKAGES) -> dict[str, Any]:
    """Processor and versions, for the file of figures."""
    installed = {each.name: each.version for each in importlib.metadata.distributions()}
    versions = {name: installed[name] for name in packages if name in installed}
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "versions": ", ".join(f"{name} {value}" for name, value in versions.items()),
    }


def processor() -> str:
    """The processor, its instructions for bfloat16, and whether oneDNN is off."""
    on = os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0"
    return _model() + ("" if on else " without oneDNN")


def _model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        fields = {key.strip(): value.strip() for key, value in fields.items()}
        useful = [flag for flag in fields["flags"].split() if "bf16" in flag]
        model = f"family {fields['cpu family']} model {fields['model']}"
        return " ".join([fields["model name"], model, *useful])
    except (OSError, KeyError):
        return platform.processor()
