"""Libraries that take turns, each in a process of its own, whose memory is its own.

`compare` starts a process for each library (`peer_models`), and lets them run one after
the other for some rounds. The best round counts.
"""

import contextlib
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.peer_models import KINDS, Case
from benchmarks.processes import Process
from benchmarks.report import machine, make_parser, processor, show, spread, write
from keras_vit.costs import model_costs
from keras_vit.specs import parse_variant

CASE_KEYS = ("threads", "variant", "dtype", "pixels", "batch")


def compare(
    doc: str,
    name: str,
    rounds: int,
    quick: str,
    contests: Callable[[bool], Iterable[tuple[Case, Sequence[str]]]],
) -> None:
    """Measure cases in several libraries, print a table and write a JSON file.

    In the file each processor has figures of its own. What was measured before of other
    cases, with the same versions, stays. Each row has the ratio of a peer's time to
    ours, above 1 where keras-vit is faster, and its spread over the rounds.

    Args:
        doc: What the benchmark is.
        name: Of the JSON file.
        rounds: How often each library has its turn, after a first one that compiles.
        quick: What `--quick` leaves.
        contests: What is measured, `--quick` or not, and the names in
            `peer_models.LIBRARIES` that take part, keras-vit first.

    Raises:
        RuntimeError: A process failed; its output is above.
    """
    parser = make_parser(doc, name, rounds)
    parser.add_argument("--quick", action="store_true", help=quick)
    options = parser.parse_args()
    shown: list[dict[str, Any]] = []
    slow_half = not any("bf16" in word for word in processor().split())
    for case, names in contests(options.quick):
        print(*case, file=sys.stderr)
        if slow_half and case.dtype == "bfloat16":
            print("  not supported by this processor", file=sys.stderr)
            continue
        # CPU time holds still on a shared machine, but not with several threads.
        clock = "cpu_seconds" if case.threads == 1 else "seconds"
        answers = _measure(names, case, options.rounds)
        seconds = {name: [each[clock] for each in answers[name]] for name in names}
        ours = seconds[names[0]]
        rows = [
            {
                "variant": case.variant,
                "pixels": case.image_size,
                "batch": case.batch,
                "dtype": case.dtype,
                "threads": case.threads,
                "library": name,
                "gflop_per_second": round(flops_of(case) / min(taken) / 1e9, 1),
                "time_to_ours": round(min(taken) / min(ours), 3),
                "spread": spread(taken, ours),
                "memory_mb": answers[name][-1]["memory_mb"],
            }
            | ({"training": case.training} if case.training else {})
            | ({"gelu": case.gelu} if case.gelu != "own" else {})
            for name, taken in seconds.items()
        ]
        record(rows, pathlib.Path(options.output))
        shown += rows
    show(shown)


def record(rows: Sequence[dict[str, Any]], file: pathlib.Path) -> None:
    """Write the figures of one case to a file, beside those of others."""
    records = json.loads(file.read_text("utf-8")) if file.exists() else {}
    here, old = machine(), records.get(processor(), {})
    kept = old["rows"] if old.get("machine") == here else []
    kept = [row for row in kept if _case_of(row) != _case_of(rows[0])]
    rows = sorted([*kept, *rows], key=_case_of)
    records[processor()] = {"machine": here, "rows": rows}
    write(records, str(file))


def _case_of(row: dict[str, Any]) -> tuple[Any, ...]:
    kind = (row.get("training", False), row.get("gelu", "own"))
    return *kind, *(row[key] for key in CASE_KEYS)


def flops_of(case: Case) -> float:
    """FLOPs of a forward pass or training step in closed form."""
    kind = KINDS.get(case.variant)
    spec, patch_size = parse_variant(kind.size if kind else case.variant)
    costs = model_costs(spec, patch_size, image_size=case.image_size)
    return costs.flops * case.batch * (3 if case.training else 1)


def _measure(
    names: Iterable[str], case: Case, rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Each library's `cpu_seconds`, `seconds` and `memory_mb`, one row a round.

    The last is how far the process has grown at most since it imported its library.
    """
    with contextlib.ExitStack() as stack:
        processes = {}
        for name in names:
            words = ("benchmarks.peer_models", name, json.dumps(case))
            process = Process(*words, CUDA_VISIBLE_DEVICES="-1")
            processes[name] = stack.enter_context(process)
        for process in processes.values():  # builds and compiles
            process.ask()
        answers: dict[str, list[dict[str, Any]]] = {name: [] for name in processes}
        for _ in range(rounds):
            for name, process in processes.items():
                answers[name].append(process.ask())
    return answers
