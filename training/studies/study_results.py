"""The table of a study: in the terminal, as CSV, JSON and Markdown."""

import csv
import io
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from .. import storage
from ..errors import RecipeError
from .columns import COLUMNS, FIXED, Result, read_result
from .study import Run, Study

NOT_RUN = "not run"
MEAN = "mean"  # label of the lines that are means


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Args:
        name: The row's name.
        labels: The name of the value of each axis, and `group`; empty for a row that
            was only published.
        values: By column: the values of the finished runs, one for each seed.
        published: By column: the published value.
        missing: Names of the runs that are not finished.
    """

    name: str
    labels: dict[str, str]
    values: dict[str, list[float]]
    published: dict[str, float]
    missing: tuple[str, ...] = ()

    def mean(self, column: str) -> float | None:
        """The mean over the seeds; None where no run is finished."""
        values = self.values.get(column)
        return statistics.fmean(values) if values else None

    def deviation(self, column: str) -> float | None:
        """The standard deviation over the seeds; None of a single one."""
        values = self.values.get(column, [])
        return statistics.stdev(values) if len(values) > 1 else None

    @property
    def absence(self) -> str:
        """What stands for a value: a run without labels has no accuracy."""
        return "-" if any(self.values.values()) else NOT_RUN

    def text(self, column: str) -> str:
        """Mean and deviation as text, or why there is none."""
        mean, form = self.mean(column), COLUMNS[column].form
        if mean is None:
            return "" if self.values.get(column) is None else self.absence
        deviation = self.deviation(column)
        if deviation is None or column in FIXED:
            return f"{mean:{form}}"
        return f"{mean:{form}} ± {deviation:{form}}"

    def published_text(self, column: str) -> str:
        """The published value as text, or nothing."""
        value = self.published.get(column)
        return "" if value is None else f"{value:{COLUMNS[column].form}}"


def read_lines(study: Study, folder: Path) -> list[Line]:
    """The lines of the finished and the missing runs, then of the published rows."""
    published = study.published

    def published_of(name: str) -> dict[str, float]:
        return {c: rows[name] for c, rows in published.items() if name in rows}

    lines = []
    for row in study.rows:
        runs = [Run(row, seed) for seed in study.seeds]
        results = {run.name: read_result(run, folder) for run in runs}
        finished = [result for result in results.values() if result is not None]
        missing = tuple(name for name, result in results.items() if result is None)
        values = {column: _values(finished, column) for column in study.columns}
        lines.append(
            Line(row.name, dict(row.labels), values, published_of(row.name), missing)
        )
    if study.means is not None:
        for line in lines:
            line.labels[MEAN] = "no"
        lines += _means(lines, study.means, study.table.get("rows"))
    ours = {line.name for line in lines}
    others = dict.fromkeys(name for rows in published.values() for name in rows)
    lines += [Line(n, {}, {}, published_of(n)) for n in others if n not in ours]
    return lines


def _values(results: Sequence[Result], column: str) -> list[float]:
    values = (COLUMNS[column].value(result) for result in results)
    return [value for value in values if value is not None]


def _means(lines: Sequence[Line], key: str, axis: str | None) -> list[Line]:
    """Means over the rows of each value of an axis or group, and over all rows."""
    lines = [line for line in lines if key in line.labels]
    groups = dict.fromkeys(line.labels[key] for line in lines)
    parts = {
        group: [line for line in lines if line.labels[key] == group] for group in groups
    }
    return [
        *(_mean(f"mean of {group}", part, axis) for group, part in parts.items()),
        _mean("mean of all", lines, axis),
    ]


def _mean(name: str, lines: Sequence[Line], axis: str | None) -> Line:
    """The mean of each column, by seeds; of one that some row lacks there is none.

    It is in the table under its name on this axis, and where its rows are on others.
    """
    values = {
        column: [
            statistics.fmean(seeds)
            for seeds in zip(*(line.values[column] for line in lines), strict=False)
        ]
        for column in lines[0].values
        if not any(line.missing for line in lines)
    }
    published = {
        column: statistics.fmean(line.published[column] for line in lines)
        for column in lines[0].published
        if all(column in line.published for line in lines)
    }
    common = set.intersection(*(set(line.labels.items()) for line in lines))
    labels = {axis: dict(common).get(axis, name) for axis in lines[0].labels}
    missing: dict[str, list[float]] = {
        column: [] for column in lines[0].values if column not in values
    }
    if axis is not None:
        labels[axis] = name
    return Line(name, {**labels, MEAN: "yes"}, values | missing, published)


def write_results(study: Study, lines: Sequence[Line], folder: Path) -> None:
    """Write table.csv, table.json and table.md into the study's folder."""
    header, rows = _wide(study, lines)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows(_numbers(study, lines))
    storage.write_text(folder / "table.csv", buffer.getvalue())
    everything = [
        {
            "row": line.name,
            "labels": line.labels,
            "values": line.values,
            "published": line.published,
            "missing": line.missing,
        }
        for line in lines
    ]
    storage.write_text(
        folder / "table.json", json.dumps(everything, indent=1, ensure_ascii=False)
    )
    storage.write_text(folder / "table.md", _markdown(header, rows))


def _numbers(study: Study, lines: Sequence[Line]) -> Iterator[list[object]]:
    """A heading and a row of numbers for each line: mean, deviation, published."""
    kinds = ("", " deviation", " published")
    yield ["row", *(f"{c}{kind}" for c in study.columns for kind in kinds)]
    for line in lines:
        cells: list[object] = [line.name]
        for column in study.columns:
            cells += [line.mean(column), line.deviation(column)]
            cells.append(line.published.get(column))
        yield ["" if cell is None else cell for cell in cells]


def _wide(study: Study, lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: one line a row, or two axes against each other."""
    if study.table:
        return _crossed(study, lines)
    header = ["row"]
    for column in study.columns:
        header.append(COLUMNS[column].title)
        if column in study.published:
            header.append("published")
    rows = []
    for line in lines:
        cells = [line.name]
        for column in study.columns:
            cells.append(line.text(column))
            if column in study.published:
                cells.append(line.published_text(column))
        rows.append(cells)
    return header, rows


def _crossed(study: Study, lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """The first column by two axes; "ours (published)" in each cell."""
    column = study.columns[0]
    down, across = study.table["rows"], study.table["columns"]
    ours = [line for line in lines if line.labels]
    names = list(dict.fromkeys(line.labels[across] for line in ours))
    cells: dict[str, dict[str, str]] = {}
    for line in ours:
        published = line.published_text(column)
        text = line.text(column) + (f" ({published})" if published else "")
        cells.setdefault(line.labels[down], {})[line.labels[across]] = text
    for line in lines:
        if not line.labels:  # published only, COLUMN-ROW
            name, _, row = line.name.rpartition("-")
            cells.setdefault(row, {})[name] = f"({line.published_text(column)})"
            names += [name] if name not in names else []
    header = [f"{COLUMNS[column].title} (published)", *names]
    return header, [[row, *(by.get(n, "") for n in names)] for row, by in cells.items()]


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def print_results(study: Study, lines: Sequence[Line]) -> None:
    """Print the table, with what is not run."""
    header, rows = _wide(study, lines)
    table = Table(title=study.title, box=SIMPLE, padding=(0, 1))
    for number, title in enumerate(header):
        table.add_column(title, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def missing_runs(lines: Sequence[Line]) -> list[str]:
    """The names of all runs that are not finished."""
    return [name for line in lines for name in line.missing]


def check_table(study: Study) -> None:
    """Raise RecipeError where the table's rows and columns are not two axes."""
    for key, axis in study.table.items():
        if key not in ("rows", "columns") or axis not in study.axes:
            raise RecipeError(
                f"{study.name}: `table` must have rows and columns, two of the axes "
                f"{', '.join(study.axes)}. Received: {dict(study.table)}"
            )
