"""The figure of a study: panels of lines, bars, a heat map or curves, from its table.

A panel is a dictionary of the study's YAML:

    kind: lines      x, y, by      a line for each value of `by` (an axis or `group`);
                                   x is an axis of numbers, or a column
    kind: bars       y             a bar for each row, beside it the published value;
                                   y may be a list
    kind: heatmap    x, y, value   two axes
    kind: curves     y             validation loss or accuracy over the epochs

`where` keeps the rows of some of an axis's values: {stage: fine-tuned}. `title`, and of
lines `log` (x) and `log_y`, are optional.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from keras_vit.analysis import figures

from ..errors import RecipeError
from ..reporting.pictures import save
from .columns import COLUMNS, read_history
from .study import JOINT, Study
from .study_results import MEAN, NOT_RUN, Line, missing_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

PANEL = (5.6, 4.2)  # inches
MOST_ACROSS = 2
MANY = 2000  # times, from which on a logarithmic scale has few labels
MARKERS = "osD^vP*X<>"
KEYS = {
    "lines": {"x", "by", "log", "log_y"},
    "bars": set(),
    "heatmap": {"x", "value"},
    "curves": set(),
}
COMMON = {"kind", "y", "title", "where"}
Panel: TypeAlias = dict[str, Any]


def check_figure(study: Study) -> None:
    """Raise RecipeError where a panel asks for what the study does not have."""
    axes = {*study.axes, MEAN, *(key for row in study.rows for key in row.labels)}
    known = {*axes, *study.columns, "loss"}
    for panel in study.figure:
        kind = str(panel.get("kind"))
        keys = COMMON | KEYS.get(kind, set())
        if kind not in KEYS or not set(panel) <= keys or "y" not in panel:
            raise RecipeError(
                f"{study.name}: a panel of the `figure` must have `kind` ("
                f"{', '.join(KEYS)}), `y` and of {kind} at most "
                f"{', '.join(sorted(keys))}. Received: {panel}"
            )
        values = [panel.get(key) for key in ("x", "by", "value")]
        for value in (*values, *_columns(panel), *panel.get("where", ())):
            if value is not None and value not in known:
                raise RecipeError(
                    f"{study.name}: a panel of the `figure` must have axes and columns "
                    f"of the study: {', '.join(sorted(known))}. Received: {value!r}"
                )


def _columns(panel: Panel) -> list[str]:
    return panel["y"] if isinstance(panel["y"], list) else [panel["y"]]


def draw_figure(study: Study, lines: Sequence[Line], folder: Path) -> None:
    """Draw figure.png in the study's folder; what is not run is named in it."""
    if not study.figure:
        return
    across = min(MOST_ACROSS, len(study.figure))
    down = math.ceil(len(study.figure) / across)
    figure = figures.figure(PANEL[0] * across, PANEL[1] * down)
    axes = figure.subplots(down, across, squeeze=False)
    for axis in axes.flat[len(study.figure) :]:
        axis.axis("off")
    for axis, panel in zip(axes.flat, study.figure, strict=False):
        chosen = [line for line in lines if _is_in(line, panel.get("where", {}))]
        KINDS[panel["kind"]](axis, study, panel, chosen, folder)
        if "title" in panel:
            axis.set_title(panel["title"])
    figure.suptitle(study.title + (" (small form)" if study.small else ""))
    if missing := missing_runs(lines):
        shown = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
        text = f"{len(missing)} runs {NOT_RUN}: {shown}"
        figure.supxlabel(text, fontsize=8, color="firebrick")
    save(figure, folder / "figure.png")


def _is_in(line: Line, where: Mapping[str, Any]) -> bool:
    return all(line.labels.get(axis) == str(value) for axis, value in where.items())


def _lines(
    axis: "Axes", study: Study, panel: Panel, lines: Sequence[Line], folder: Path
) -> None:
    """A line for each group, over an axis's numbers or a column."""
    by, x, y = panel.get("by"), panel["x"], panel["y"]
    ours = [line for line in lines if line.labels]
    groups = dict.fromkeys(group for line in ours for group in _groups(line, by))
    for number, group in enumerate(groups):
        chosen = [line for line in ours if group in _groups(line, by)]
        drawn = [
            (place, mean, line)
            for line in chosen
            if (place := _place(line, x)) is not None
            and (mean := line.mean(y)) is not None
        ]
        drawn.sort(key=lambda point: point[0])
        # A finished run may have no value, such as a ResNet no number of tokens.
        missing = sum(line.absence == NOT_RUN for line in chosen)
        if not drawn and not missing:
            continue
        axis.errorbar(
            [place for place, _, _ in drawn],
            [mean for _, mean, _ in drawn],
            yerr=_spreads([line for _, _, line in drawn], y),
            color=f"C{number % 10}",
            marker=MARKERS[number % len(MARKERS)],
            markersize=5,
            capsize=2,
            label=group + (f" ({missing} {NOT_RUN})" if missing else ""),
        )
    axis.set(xlabel=_title(x), ylabel=_title(y))
    for key, side, scale in (
        ("log", axis.xaxis, axis.set_xscale),
        ("log_y", axis.yaxis, axis.set_yscale),
    ):
        if panel.get(key):
            scale("log")
            _label_logarithmic(side)
    if panel.get("log") and x in study.axes:
        places = sorted({place for line in ours if (place := _place(line, x))})
        axis.set_xticks(places, [f"{place:g}" for place in places])
    axis.grid(alpha=0.3, which="both")
    if by is not None:
        axis.legend(fontsize=8)


def _label_logarithmic(side: "Axis") -> None:
    """Label 1, 2 and 5 of each decade, of many decades only 1."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = side.get_view_interval()
    side.set_major_locator(LogLocator(subs=(1,) if high > MANY * low else (1, 2, 5)))
    side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    side.set_minor_formatter(NullFormatter())


def _groups(line: Line, by: str | None) -> list[str]:
    """The drawn lines that a row belongs to."""
    return line.labels.get(by or "", "").split(JOINT)


def _spreads(lines: Sequence[Line], column: str) -> list[float]:
    """Halves of error bars; none (NaN) for a single seed."""
    deviations = (line.deviation(column) for line in lines)
    return [math.nan if each is None else each for each in deviations]


def _place(line: Line, x: str) -> float | None:
    """Where a line's point is: the number in an axis's label, or a column's mean."""
    if x in COLUMNS:
        return line.mean(x)
    try:
        return float(line.labels[x].rstrip("%"))
    except ValueError:
        raise RecipeError(
            f"`x` of a panel of lines must be an axis of numbers, or a column. "
            f"Received: {x!r} with {line.labels[x]!r}"
        ) from None


def _bars(
    axis: "Axes", study: Study, panel: Panel, lines: Sequence[Line], folder: Path
) -> None:
    """Bars of the rows, in groups of columns; published values as black marks."""
    columns = _columns(panel)
    names = [line.name for line in lines]
    places, width = np.arange(len(lines)), 0.8 / len(columns)
    for number, column in enumerate(columns):
        shift = (number - (len(columns) - 1) / 2) * width
        means = [line.mean(column) for line in lines]
        axis.bar(
            places + shift,
            [mean or 0.0 for mean in means],
            width,
            yerr=_spreads(lines, column),
            capsize=2,
            label=_title(column),
        )
        for place, line, mean in zip(places + shift, lines, means, strict=True):
            published = line.published.get(column)
            if published is not None:
                ends = (place - width / 2, place + width / 2)
                axis.plot(ends, (published, published), "k", linewidth=2)
            if mean is None and line.labels:
                axis.text(place, 0, line.absence, rotation=90, ha="center", va="bottom")
    marked = any(column in line.published for line in lines for column in columns)
    if marked:
        label = "published, of the paper's data" if study.small else "published"
        axis.plot([], [], "k", linewidth=2, label=label)
    axis.set_xticks(places, names, rotation=30, ha="right", fontsize=8)
    axis.set_ylim(*_limits(lines, columns))
    axis.grid(alpha=0.3, axis="y")
    if len(columns) > 1 or marked:  # above the bars, which can be anywhere below
        axis.legend(fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    if len(columns) == 1:
        axis.set_ylabel(_title(columns[0]))


def _limits(
    lines: Sequence[Line], columns: Sequence[str]
) -> tuple[float | None, float | None]:
    """From zero, unless all values are close to the largest."""
    values = [v for li in lines for c in columns for v in li.values.get(c, ())]
    values += [li.published[c] for li in lines for c in columns if c in li.published]
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low < 0.75 * high or not values:
        return 0.0, None
    margin = 0.25 * (high - low) or 0.05 * high
    return low - 2 * margin, high + margin


def _heatmap(
    axis: "Axes", study: Study, panel: Panel, lines: Sequence[Line], folder: Path
) -> None:
    """Two axes against each other; what is not run is white, with a cross."""
    cells = {
        (li.labels[panel["y"]], li.labels[panel["x"]]): li for li in lines if li.labels
    }
    down, across = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    column = panel["value"]
    means = {cell: line.mean(column) for cell, line in cells.items()}
    values = np.array([[means.get((d, a)) for a in across] for d in down], "float64")
    image = axis.imshow(values, aspect="auto")
    for cell, value in np.ndenumerate(values):
        text, color = f"{value:{COLUMNS[column].form}}", "white"
        if math.isnan(value):
            text, color = "x", "firebrick"
        axis.text(cell[1], cell[0], text, ha="center", va="center", color=color)
    axis.set_xticks(range(len(across)), across, rotation=30, ha="right")
    axis.set_yticks(range(len(down)), down)
    axis.set(xlabel=panel["x"], ylabel=panel["y"])
    axis.figure.colorbar(image, ax=axis, label=_title(column))


def _curves(
    axis: "Axes", study: Study, panel: Panel, lines: Sequence[Line], folder: Path
) -> None:
    """Validation loss or accuracy over the epochs, of the first seed of each row."""
    key = f"val_{panel['y']}"
    for number, line in enumerate(line for line in lines if line.labels):
        history = read_history(folder / f"{line.name}-seed{study.seeds[0]}")
        shown = [row for row in history if key in row]
        axis.plot(
            [row["epoch"] for row in shown],
            [row[key] for row in shown],
            marker=MARKERS[number % len(MARKERS)],
            label=line.name + ("" if shown else f" ({NOT_RUN})"),
        )
    axis.set(xlabel="epoch", ylabel=f"validation {panel['y']}")
    axis.locator_params(axis="x", integer=True)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


KINDS: dict[str, Callable[..., None]] = {
    "lines": _lines,
    "bars": _bars,
    "heatmap": _heatmap,
    "curves": _curves,
}


def _title(name: str) -> str:
    return COLUMNS[name].title if name in COLUMNS else name
