"""The pictures of benchmarks, from benchmarks/*.json: bars for each library.

A bar is the geometric mean over the cases of a panel, and a line reaches from the
smallest to the largest. The background is transparent and the text of a middle gray, so
that the same picture is readable on light and on dark pages.
"""

import io
import json
import pathlib
import re
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

BENCHMARKS = pathlib.Path(__file__).parent.parent / "benchmarks"
GRAY, COLORS = "#808080", ("#4a90d9", "#e0803a", "#3aa676", "#b06fc4", "#c9a227")
BAR = 0.15  # inches
Groups = dict[str, dict[str, list[float]]]  # bars, series, values
TIME = "time, that of keras-vit being 1: a longer bar is a slower library"


class Ratio(NamedTuple):
    """One figure of a picture."""

    panel: str
    bars: str  # the name beside a group of bars
    series: str  # the color of one of them
    value: float


def of_libraries(records: dict[str, Any]) -> Iterator[Ratio]:
    """Times of the peers to ours, of a file that `benchmarks.turns` wrote."""
    for processor, row in _peers(records):
        panel = row["dtype"] + (f", {row['gelu']} GELU" if "gelu" in row else "")
        yield Ratio(panel, row["library"], processor, row["time_to_ours"])


def of_lengths(records: dict[str, Any]) -> Iterator[Ratio]:
    """The same by number of pixels."""
    for processor, row in _peers(records):
        kind = "training step" if row.get("training") else "forward pass"
        panel, pixels = f"{row['library']}, {kind}, {row['dtype']}", row["pixels"]
        yield Ratio(panel, f"{pixels} pixels", processor, row["time_to_ours"])


def _peers(records: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Processors in short, and their rows of other libraries."""
    for processor, record in records.items():
        short = re.sub(r"\(R\)| Processor| (avx|amx)\S+", "", processor)
        for row in record["rows"]:
            if not row["library"].startswith("keras-vit"):
                yield short, row


def of_pipelines(record: dict[str, Any]) -> Iterator[Ratio]:
    """CPU time of Keras's layers for an image to ours."""
    speeds = {name: each["by_cpu_time"] for name, each in record["images"].items()}
    for name, speed in speeds.items():
        library, _, pipeline = name.partition(": ")
        if library == "Keras":
            ratio = speeds[f"ours: {pipeline}"] / speed
            yield Ratio("JPEG files to batches", pipeline, "Keras's layers", ratio)


def of_servers(record: dict[str, Any]) -> Iterator[Ratio]:
    """Answers per second to those of the reference, whose ratio is always 1."""
    for part, rows in record.items():
        others = {r["contestant"] for r in rows if r["throughput_ratio"] != 1}
        [reference] = {row["contestant"] for row in rows} - others
        for row in rows:
            if row["contestant"] in others:
                series = f"{row['clients']} client{'s' * (row['clients'] > 1)}"
                panel, ratio = f"{part}: to {reference}", row["throughput_ratio"]
                yield Ratio(panel, row["contestant"], series, ratio)


# By JSON file: what its bars are, what 1 is, and how long they are.
QUESTIONS = {
    "forward": (of_libraries, "keras-vit", TIME),
    "train_step": (of_libraries, "keras-vit", TIME),
    "attention": (of_lengths, "keras-vit", TIME),
    "data": (of_pipelines, "keras-vit", f"CPU {TIME}"),
    "serving": (of_servers, "reference", "answers per second, as a ratio"),
}


def picture(question: str) -> str:
    """The SVG image of a question."""
    read, reference, label = QUESTIONS[question]
    records = json.loads((BENCHMARKS / f"{question}.json").read_text("utf-8"))
    return drawing(list(read(records)), reference, label)


def drawing(ratios: list[Ratio], reference: str, label: str) -> str:
    """An SVG image of ratios.

    Args:
        reference: What has the ratio 1.
        label: What the ratios are.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    panels: dict[str, Groups] = {}
    for panel, bars, series, value in ratios:
        group = panels.setdefault(panel, {}).setdefault(bars, {})
        group.setdefault(series, []).append(value)
    colors = dict(zip(dict.fromkeys(r.series for r in ratios), COLORS, strict=False))
    sizes = [(len(colors) + 1) * len(panel) for panel in panels.values()]
    gray = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color")
    style: Any = dict.fromkeys((*gray, "ytick.color"), GRAY)
    style |= {"font.size": 8, "svg.hashsalt": "keras-vit", "svg.fonttype": "none"}
    with matplotlib.rc_context(style):
        # The legend has two columns: names of processors are long.
        height = BAR * sum(sizes) + 0.35 * len(panels) + 0.1 * len(colors) + 0.5
        figure = Figure((8, height), layout="constrained")
        shape: dict[str, Any] = {"nrows": len(panels), "height_ratios": sizes}
        axes = figure.subplots(**shape, sharex=True, squeeze=False)[:, 0]
        for axis, (title, groups) in zip(axes, panels.items(), strict=True):
            line = _draw(axis, groups, colors)
            axis.set_title(title, loc="left", fontsize=9)
        axes[-1].set_xlabel(label)
        line.set_label(reference)
        handles = [Patch(color=color, label=name) for name, color in colors.items()]
        legend = {"handles": [*handles, line], "ncols": 2, "frameon": False}
        figure.legend(**legend, loc="outside upper center")
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return file.getvalue()


def _draw(axis: Any, groups: Groups, colors: dict[str, str]) -> Any:
    """Draw the bars of one panel, from top to bottom; return the line at 1."""
    height = 1 / (len(colors) + 1)
    for place, group in enumerate(groups.values()):
        top = place - (len(group) - 1) * height / 2
        for number, (series, values) in enumerate(group.items()):
            mean, y = statistics.geometric_mean(values), top + number * height
            axis.barh(y, mean, height, color=colors[series])
            axis.plot([min(values), max(values)], [y, y], color=GRAY, linewidth=1)
            beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            axis.annotate(f"{mean:.2f}", (max(values), y), **beside, fontsize=7)
    axis.set_yticks(range(len(groups)), list(groups))
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    return axis.axvline(1, color=GRAY, linewidth=1, linestyle="--")
