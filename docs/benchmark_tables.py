"""The tables of benchmarks, from benchmarks/*.json and the scripts that wrote them."""

import ast
import json
import pathlib
import re
from typing import Any

from benchmark_pictures import BENCHMARKS, QUESTIONS
from markdown_table import table


def page() -> str:
    """One section for each JSON file: the script's docstring, picture and figures."""
    return "\n\n".join(map(_section, sorted(BENCHMARKS.glob("*.json")))) + "\n"


def _section(path: pathlib.Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.with_suffix(".py").read_text("utf-8")))
    if not docstring:
        raise ValueError(f"benchmarks/{path.stem}.py must have a docstring")
    first, _, rest = docstring.partition("\n")
    usage = re.search(r"^    python .*(?:\n    .*)*", rest, re.MULTILINE)
    about = rest.replace(usage[0], "") if usage else rest
    parts = [f"## {path.stem}", f"**{first}**"]
    if usage:
        command = "\n".join(line[4:] for line in usage[0].splitlines())
        parts += [f"```text\n{command}\n```"]
    parts += [about.strip()]
    if path.stem in QUESTIONS:
        parts += [f"![{first}](generated/benchmark_{path.stem}.svg)"]
    return "\n\n".join([*parts, *_tables("", json.loads(path.read_text("utf-8")))])


def _tables(title: str, value: Any) -> list[str]:
    """Lists of records and dictionaries as tables, single values as one line."""
    caption = [f"### {_words(title)}"] if title else []
    if isinstance(value, list):
        header = list(dict.fromkeys(key for row in value for key in row))
        rows = [[_figure(row.get(key)) for key in header] for row in value]
        return [*caption, table([_words(key) for key in header], rows)]
    inner = list(value.values())
    if inner and all(isinstance(each, dict) and _flat(each) for each in inner):
        records = [{"case": key, **row} for key, row in value.items()]
        return _tables(title, records)
    single = {k: v for k, v in value.items() if not isinstance(v, dict | list)}
    parts = caption
    if single:
        parts += ["; ".join(f"{_words(k)}: {_figure(v)}" for k, v in single.items())]
    for key, each in value.items():
        if isinstance(each, dict | list):
            parts += _tables("" if key == "rows" else key, each)
    return parts


def _flat(record: dict[str, Any]) -> bool:
    return not any(isinstance(value, dict | list) for value in record.values())


def _words(key: str) -> str:
    return key.replace("_", " ")


def _figure(value: Any) -> str:
    """Floating-point numbers with three significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
