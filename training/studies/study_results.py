"""The table of a study: in the terminal, as CSV, JSON and Markdown."""

import csv
import io
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from .. import storage
from ..errors import RecipeError
from .columns import COLUMNS, FIXED, read_result
from .study import Run, Study

NOT_RUN = "not run"
MEAN = "mean"  # label of the lines that are means


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    name: str  # the row's
    labels: dict[str, str]  # those of the row; empty where it was only published
    values: dict[str, list[float]]  # by column: of the finished runs, one a seed
    published: dict[str, float]  # by column
    missing: tuple[str, ...] = ()  # names of the runs that are not finished

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
    published: dict[str, dict[str, float]] = {row.name: {} for row in study.rows}
    for column, rows in study.published.items():
        for name, value in rows.items():
            published.setdefault(name, {})[column] = value
    lines = []
    for row in study.rows:
        runs = [Run(row, seed) for seed in study.seeds]
        results = {run.name: read_result(run, folder) for run in runs}
        finished = [result for result in results.values() if result is not None]
        missing = tuple(name for name, result in results.items() if result is None)
        values = {
            column: [v for r in finished if (v := COLUMNS[column].value(r)) is not None]
            for column in study.columns
        }
        own = published.pop(row.name)
        lines.append(Line(row.name, dict(row.labels), values, own, missing))
    if study.means is not None:
        for line in lines:
            line.labels[MEAN] = "no"
        lines += _means(lines, study.means, study.table.get("rows"))
    return lines + [Line(name, {}, {}, each) for name, each in published.items()]


def _means(lines: Sequence[Line], key: str, axis: str | None) -> list[Line]:
    """Means over the rows of each value of an axis or group, and over all rows."""
    lines = [line for line in lines if key in line.labels]
    groups = dict.fromkeys(line.labels[key] for line in lines)
    parts = {
        f"mean of {g}": [li for li in lines if li.labels[key] == g] for g in groups
    }
    parts["mean of all"] = lines
    return [_mean(name, part, axis) for name, part in parts.items()]


def _mean(name: str, lines: Sequence[Line], axis: str | None) -> Line:
    """The mean of each column, by seeds; of one that some row lacks there is none.

    It is in the table under its name on this axis, and where its rows are on others.
    """
    incomplete = any(line.missing for line in lines)
    values = {
        column: [
            statistics.fmean(seeds)
            for seeds in zip(*(line.values[column] for line in lines), strict=False)
            if not incomplete
        ]
        for column in lines[0].values
    }
    published = {
        column: statistics.fmean(line.published[column] for line in lines)
        for column in lines[0].published
        if all(column in line.published for line in lines)
    }
    common = dict(set.intersection(*(set(line.labels.items()) for line in lines)))
    labels = {key: common.get(key, name) for key in lines[0].labels}
    own = {} if axis is None else {axis: name}
    return Line(name, {**labels, **own, MEAN: "yes"}, values, published)


def write_results(study: Study, lines: Sequence[Line], folder: Path) -> None:
    """Write table.csv, table.json and table.md into the study's folder."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows(_numbers(study, lines))
    everything = [{"row": line.name, **asdict(line)} for line in lines]
    for each in everything:
        del each["name"]
    text = json.dumps(everything, indent=1, ensure_ascii=False)
    header, rows = _wide(study, lines)
    markdown = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    storage.write_text(folder / "table.csv", buffer.getvalue())
    storage.write_text(folder / "table.json", text)
    table = "".join(f"| {' | '.join(row)} |\n" for row in markdown)
    storage.write_text(folder / "table.md", f"{study.heading}\n\n{table}")


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
    header, rows = ["row"], [[line.name] for line in lines]
    for column in study.columns:
        published = column in study.published
        header += [COLUMNS[column].title, *["published"] * published]
        for row, line in zip(rows, lines, strict=True):
            row += [line.text(column), *[line.published_text(column)] * published]
    return header, rows


def _crossed(study: Study, lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """The first column by two axes; "ours (published)" in each cell."""
    column = study.columns[0]
    cells: dict[str, dict[str, str]] = {}
    names: dict[str, None] = {}
    for line in lines:
        if line.labels:
            row, name = (line.labels[study.table[key]] for key in ("rows", "columns"))
        else:  # published only, COLUMN-ROW
            name, _, row = line.name.rpartition("-")
        published = line.published_text(column)
        words = (line.text(column), f"({published})" if published else "")
        cells.setdefault(row, {})[name] = " ".join(filter(None, words))
        names[name] = None
    header = [f"{COLUMNS[column].title} (published)", *names]
    return header, [[row, *(by.get(n, "") for n in names)] for row, by in cells.items()]


def print_results(study: Study, lines: Sequence[Line]) -> None:
    """Print the table, with what is not run."""
    header, rows = _wide(study, lines)
    table = Table(title=study.heading, box=SIMPLE, padding=(0, 1))
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
