"""Results as a table and as JSON."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ..client.files import write_whole
from .generator import Load
from .results import Result

# Above, the generator's own speed is part of what is measured.
_BUSY = 0.85


def load_name(load: Load) -> str:
    """How a load is called: `8 clients`, `40/s`."""
    if load.rate is not None:
        return f"{load.rate:g}/s"
    return f"{load.clients} client{'s' if load.clients != 1 else ''}"


def show(results: Sequence[Result], title: str, console: Console) -> None:
    """Prints one row for each load, then what to know about them.

    Args:
        results: one for each load.
        title: of the table.
        console: where.
    """
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0, 0, 1),  # to fit 80 columns
    )
    table.add_column("load", no_wrap=True)
    names = ["sent", "per s", *results[0].percentiles(), "server", "errors", "CPU"]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        table.add_row(*_cells(result))
    console.print(table)
    console.print(
        "Latencies in ms from the moment when a request should be sent; server: mean "
        "by its own clock; CPU: of the generator, of one core.",
        style="dim",
    )
    for line in _remarks(results):
        console.print(line, highlight=False)


def _cells(result: Result) -> list[str]:
    errors = sum(result.errors.values())
    server = result.server.latency
    return [
        load_name(result.load),
        str(result.requests),
        f"{result.throughput:.1f}",
        *(_milliseconds(value) for value in result.percentiles().values()),
        "" if server is None else _milliseconds(server),
        f"[red]{errors}[/red]" if errors else "0",
        f"{result.cpu_share:.0%}",
    ]


def _milliseconds(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    return f"{1000 * seconds:.{1 if seconds < 0.1 else 0}f}"


def _remarks(results: Sequence[Result]) -> list[str]:
    lines = []
    for result in results:
        name = load_name(result.load)
        for code, count in sorted(result.errors.items()):
            text = result.texts.get(code, "").partition("\n")[0]
            lines.append(f"{name}: {count} x {code}{f' ({text})' if text else ''}")
        if result.cpu_share > _BUSY:
            lines.append(
                f"{name}: the generator used {result.cpu_share:.0%} of a core: the "
                "server may be faster than this"
            )
        if result.load.rate is not None and result.late > 0.005:
            lines.append(
                f"{name}: 1 % of the requests were sent more than "
                f"{_milliseconds(result.late)} ms late (this wait is in their latency)"
            )
        if result.server.batches:
            sizes = ", ".join(
                f"{n} x {size}" for size, n in result.server.batches.items()
            )
            lines.append(f"{name}: batches (number x size): {sizes}")
    return lines


def write_json(results: Sequence[Result], settings: dict[str, Any], path: Path) -> None:
    """Writes the results; latencies in milliseconds, null where nothing was answered.

    Args:
        results: one for each load.
        settings: what they have in common.
        path: of the file.
    """
    rows = [_row(result, settings["images_per_request"]) for result in results]
    text = json.dumps({**settings, "results": rows}, indent=1, allow_nan=False)
    write_whole(path, f"{text}\n".encode())


def _row(result: Result, images: int) -> dict[str, Any]:
    server = result.server.latency
    percentiles = {
        name: None if math.isnan(value) else round(1000 * value, 4)
        for name, value in result.percentiles().items()
    }
    return {
        "clients": result.load.clients,
        "rate": result.load.rate,
        "seconds": round(result.seconds, 6),
        "requests": result.requests,
        "requests_per_second": round(result.throughput, 3),
        "images_per_second": round(result.throughput * images, 3),
        "latency_ms": percentiles,
        "server_latency_ms": None if server is None else round(1000 * server, 4),
        "errors": result.errors,
        "error_texts": result.texts,
        "sent_late_ms_p99": round(1000 * result.late, 4),
        "client_cpu_share": round(result.cpu_share, 3),
        "batches": result.server.batches,
    }
