"""What a soak proves: faults, memory, and the figures as a table and as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from ..client.files import write_whole
from .senders import RestRequest
from .soak import Asked, Record

MEBIBYTE = 2**20
# In the first minutes every path has to be taken and every thread to be started: a
# quarter is left out, and a short soak tells nothing about memory.
_WARM_UP = 0.25
_SHORTEST = 600.0
# Allowed between the first and the last third of the rest.
_GROWTH_SHARE = 0.05
_GROWTH_BYTES = 32 * MEBIBYTE
_EXAMPLES = 10


class Growth(NamedTuple):
    """The server's resident memory, in bytes.

    A second version and garbage come and go: what stays is what memory falls back to,
    the 10th percentile of a time.

    Attributes:
        first: over the first third of the time after the warm-up.
        last: over its last third.
        limit: of `last - first`.
        per_hour: slope of the straight line through all of it.
    """

    first: float
    last: float
    limit: float
    per_hour: float

    @property
    def flat(self) -> bool:
        """Whether the growth is within the limit."""
        return self.last - self.first <= self.limit


def growth(memory: Sequence[tuple[float, int]]) -> Growth | None:
    """How memory grew; None if it was not measured for ten minutes.

    Args:
        memory: times in seconds and bytes.
    """
    if not memory or memory[-1][0] - memory[0][0] < _SHORTEST:
        return None
    times, sizes = np.array(memory, dtype=np.float64).T
    begin = times[0] + _WARM_UP * (times[-1] - times[0])
    times, sizes = times[times >= begin], sizes[times >= begin]
    third = (times[-1] - times[0]) / 3
    first = float(np.percentile(sizes[times <= times[0] + third], 10))
    last = float(np.percentile(sizes[times >= times[-1] - third], 10))
    per_hour = float(np.polyfit(times / 3600, sizes, 1)[0])
    return Growth(first, last, _GROWTH_SHARE * first + _GROWTH_BYTES, per_hour)


def complaints(record: Record, swaps_wanted: bool) -> list[str]:
    """What went wrong, one line for each kind; empty if nothing did.

    Args:
        record: of the soak.
        swaps_wanted: whether versions were to be swapped.
    """
    lines = list(record.faults)
    wrong: dict[str, list[str]] = {}
    for asked in record.asked:
        if asked.fault:
            wrong.setdefault(asked.case.name, []).append(asked.fault)
    for name, faults in wrong.items():
        lines.append(f"{name}: {len(faults)} x, such as {faults[0]}")
    if swaps_wanted and not record.swaps:
        lines.append("no version was swapped")
    grown = growth(record.memory)
    if grown and not grown.flat:
        lines.append(
            f"memory grew by {_megabytes(grown.last - grown.first)} MB, more than "
            f"{_megabytes(grown.limit)} MB"
        )
    return lines


def show(record: Record, found: Sequence[str], console: Console) -> None:
    """Prints the table, and what went wrong.

    Args:
        record: of the soak.
        found: the complaints.
        console: where.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("requests", no_wrap=True)
    for name in ("sent", "per s", "at fault", "p50 ms", "p99 ms", "max ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows(record):
        table.add_row(
            row["requests"],
            str(row["sent"]),
            f"{row['per_second']:.1f}",
            str(row["at_fault"]),
            *(f"{row[key]:.1f}" for key in ("p50_ms", "p99_ms", "max_ms")),
        )
    console.print(table)
    console.print(f"{record.seconds / 60:.1f} minutes, {len(record.swaps)} swaps")
    if grown := growth(record.memory):
        console.print(
            f"memory: falls back to {_megabytes(grown.first)} MB at first, to "
            f"{_megabytes(grown.last)} MB at last"
        )
    else:
        console.print("memory: not judged in less than 10 minutes")
    for line in found[:_EXAMPLES]:
        console.print(f"[red]fault[/red] {line}", highlight=False)
    console.print("[red]failed[/red]" if found else "[green]passed[/green]")


def rows(record: Record) -> list[dict[str, Any]]:
    """Figures of good and bad requests over both transports."""
    groups: dict[str, list[Asked]] = {}
    for asked in record.asked:
        transport = "REST" if isinstance(asked.case.request, RestRequest) else "gRPC"
        kind = "good" if asked.case.good else "bad"
        groups.setdefault(f"{kind}, {transport}", []).append(asked)
    return [_row(name, group, record.seconds) for name, group in groups.items()]


def _row(name: str, group: Sequence[Asked], seconds: float) -> dict[str, Any]:
    took = [1000 * asked.seconds for asked in group]
    p50, p99, most = np.percentile(took, [50, 99, 100], method="inverted_cdf")
    return {
        "requests": name,
        "sent": len(group),
        "per_second": len(group) / seconds,
        "at_fault": sum(bool(asked.fault) for asked in group),
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "max_ms": float(most),
    }


def write_json(record: Record, found: Sequence[str], path: Path) -> None:
    """Writes the figures, the complaints, and memory in bytes over time.

    Args:
        record: of the soak.
        found: the complaints.
        path: of the file.
    """
    grown = growth(record.memory)
    report = {
        "passed": not found,
        "complaints": list(found),
        "seconds": record.seconds,
        "requests": rows(record),
        "swaps": record.swaps,
        "memory_growth": grown and grown._asdict(),
        "memory": record.memory,
    }
    write_whole(path, f"{json.dumps(report, indent=1)}\n".encode())


def _megabytes(size: float) -> str:
    return f"{size / MEBIBYTE:.0f}"
