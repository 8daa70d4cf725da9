"""Which rows got slower than the figures that are checked in?

    python -m benchmarks.comparison

Of what was measured on this processor since the last commit, compares each row's ratio
with that of the commit, and ends with the status 1 if one got slower by more than its
noise. The noise is what the ratio differs by from round to round, in both measurements
together. CPU time is shown beside it and decides nothing: what else a machine does
changes that of all libraries, and much less the ratio of two that took turns.
"""

import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.report import processor, show

FOLDER = pathlib.Path(__file__).parent
QUESTIONS = ("forward", "train_step", "attention", "data")


class Figure(NamedTuple):
    """A row of a file of figures."""

    ratio: float  # of a peer's time to ours, or of ours to that of one of its options
    speed: float  # GFLOP/s or images/s of CPU time
    spread: float | None  # of the ratio over the rounds, if there were several


def figures(record: Mapping[str, Any], processor: str) -> dict[str, Figure]:
    """The figures of a processor in a JSON file, by what was measured."""
    if "ratios" in record:  # of `benchmarks.data`
        here = record.get("machine", {}).get("processor") == processor
        ratios, images = record["ratios"] if here else {}, record["images"]
        return {
            name: Figure(
                row["by_cpu_time"],
                images[f"ours: {name.partition(': ')[2]}"]["by_cpu_time"],
                row["spread"],
            )
            for name, row in ratios.items()
        }
    found = {}
    for row in record.get(processor, {"rows": []})["rows"]:
        ratio, library = row["time_to_ours"], row["library"]
        ratio = 1 / ratio if library.startswith("keras-vit") else ratio
        kind = "training" if row.get("training") else "forward"
        kind += f", {row['gelu']} GELU" if "gelu" in row else ""
        case = (row["variant"], f"{row['pixels']} px", f"batch {row['batch']}")
        name = ", ".join((kind, *case, row["dtype"], f"{row['threads']} threads"))
        speed, spread = row["gflop_per_second"], row.get("spread")
        found[f"{name}: {library}"] = Figure(ratio, speed, spread)
    return found


def compare(
    before: Mapping[str, Figure], now: Mapping[str, Figure]
) -> list[dict[str, Any]]:
    """A row for each figure that was measured again, changes as shares of one."""
    rows = []
    for name, new in now.items():
        old = before.get(name, new)
        if old == new:
            continue
        known = [each.spread for each in (old, new) if each.spread is not None]
        noise = 2 * statistics.mean(known) if known else None
        change = new.ratio / old.ratio - 1
        rows.append(
            {
                "row": name,
                "checked_in": old.ratio,
                "now": new.ratio,
                "change": round(change, 3),
                "noise": None if noise is None else round(noise, 3),
                "cpu_time": round(old.speed / new.speed - 1, 3),
                "slower": noise is not None and change < -noise,
            }
        )
    return rows


def checked_in(question: str) -> dict[str, Any]:
    """A JSON file of the last commit; empty where there was none."""
    command = ["git", "show", f"HEAD:./{question}.json"]
    shown = subprocess.run(command, cwd=FOLDER, capture_output=True, check=False)
    found: dict[str, Any] = json.loads(shown.stdout or "{}")
    return found


def main() -> int:
    """Prints the table, and the rows that got slower; 1 if there are any."""
    rows = []
    for question in QUESTIONS:
        record = json.loads((FOLDER / f"{question}.json").read_text("utf-8"))
        sides = (figures(each, processor()) for each in (checked_in(question), record))
        before, now = sides
        if now and not before:
            print(f"{question}: no figures of this processor are checked in")
        rows += compare(before, now)
    show(rows, "Ratios, above 1 where keras-vit is faster")
    slower = [row["row"] for row in rows if row["slower"]]
    print(f"{len(slower)} of {len(rows)} rows got slower by more than their noise")
    print(*(f"  {name}" for name in slower), sep="\n", end="\n" if slower else "")
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())
