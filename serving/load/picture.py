"""Results as a picture: latency, throughput, errors and batches over the load."""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from ..client.files import write_whole
from .report import load_name
from .results import Result


def draw(results: Sequence[Result], title: str, path: Path) -> None:
    """Draws all loads into one PNG.

    Args:
        results: one for each load.
        title: of the picture.
        path: of the file.
    """
    panels = [_percentiles, _distribution, _throughput, _errors]
    if any(result.server.batches for result in results):
        panels.append(_batches)
    columns = (len(panels) + 1) // 2
    figure, axes = pyplot.subplots(
        2, columns, figsize=(5.6 * columns, 8), layout="constrained"
    )
    for axis, panel in zip(axes.T.flat, panels, strict=False):
        panel(axis, results)
    for axis in axes.T.flat[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(title)
    write(figure, path)


def write(figure: Figure, path: Path) -> None:
    """Writes a figure as a PNG, and forgets it.

    Args:
        figure: of pyplot.
        path: of the file.
    """
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    pyplot.close(figure)
    write_whole(path, content.getbuffer())


def _percentiles(axis: Axes, results: Sequence[Result]) -> None:
    """One line for each percentile."""
    for name in results[0].percentiles():
        values = [1000 * result.percentiles()[name] for result in results]
        axis.plot(range(len(results)), values, marker="o", label=name)
    axis.set(title="Latency", ylabel="ms")
    logarithmic(axis, "y")
    axis.legend(ncols=2, fontsize="small")
    _name_loads(axis, results)


def _distribution(axis: Axes, results: Sequence[Result]) -> None:
    """The share of the requests that took longer: tails stay visible."""
    for result in results:
        count = len(result.latencies)
        slower = 1 - np.arange(count) / max(count, 1)
        axis.step(
            1000 * result.latencies, slower, where="post", label=load_name(result.load)
        )
    axis.set(title="Share of requests slower than", xlabel="ms", ylabel="share")
    logarithmic(axis, "x", "y")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def _throughput(axis: Axes, results: Sequence[Result]) -> None:
    """Answers per second; in an open loop beside what was asked for."""
    positions = range(len(results))
    values = [result.throughput for result in results]
    axis.plot(positions, values, marker="o", label="answered")
    rates = [result.load.rate for result in results if result.load.rate is not None]
    if rates:
        axis.plot(positions, rates, "--", color="grey", label="asked for")
        axis.legend(fontsize="small")
    axis.set(title="Throughput", ylabel="requests per second")
    axis.set_ylim(bottom=0)
    _name_loads(axis, results)


def _errors(axis: Axes, results: Sequence[Result]) -> None:
    """Stacked bars by code."""
    codes = sorted({code for result in results for code in result.errors})
    bottom = np.zeros(len(results))
    for code in codes:
        shares = np.array([_share(result, code) for result in results])
        axis.bar(range(len(results)), shares, 0.6, bottom=bottom, label=code)
        bottom += shares
    axis.set(title="Errors" if codes else "Errors: none", ylabel="% of requests")
    if codes:
        axis.legend(fontsize="small")
    else:
        axis.set_ylim(0, 1)
    _name_loads(axis, results)


def _share(result: Result, code: str) -> float:
    return 100 * result.errors.get(code, 0) / max(result.requests, 1)


def _batches(axis: Axes, results: Sequence[Result]) -> None:
    """How many images ran in batches of each size."""
    sizes = sorted({size for result in results for size in result.server.batches})
    bottom = np.zeros(len(results))
    for size in sizes:
        shares = np.array([_batch_share(result, size) for result in results])
        axis.bar(range(len(results)), shares, 0.6, bottom=bottom, label=f"{size}")
        bottom += shares
    axis.set(title="Batches by size", ylabel="% of batches")
    axis.legend(fontsize="small", title="images")
    _name_loads(axis, results)


def _batch_share(result: Result, size: int) -> float:
    total = sum(result.server.batches.values())
    return 100 * result.server.batches.get(size, 0) / total if total else 0.0


def logarithmic(axes: Axes, *names: str) -> None:
    """Makes "x" or "y" logarithmic, with numbers as one says them: 1, 2, 5, 10, ..."""
    for name in names:
        axis = axes.xaxis if name == "x" else axes.yaxis
        if not np.isfinite(axis.get_minpos()):
            continue  # nothing is drawn, since nothing was answered
        axes.set(**{f"{name}scale": "log"})
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())


def _name_loads(axis: Axes, results: Sequence[Result]) -> None:
    loads = [result.load for result in results]
    axis.set_xticks(range(len(loads)))
    if any(load.rate is not None for load in loads):
        axis.set_xticklabels([f"{load.rate:g}" for load in loads])
        axis.set_xlabel("arrivals per second (open loop)")
    else:
        axis.set_xticklabels([str(load.clients) for load in loads])
        axis.set_xlabel("clients (closed loop)")
    axis.set_xlim(-0.5, len(loads) - 0.5)
    axis.grid(axis="y", alpha=0.3)
