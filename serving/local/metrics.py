"""Counters and histograms under TensorFlow Serving's names, and the Prometheus page.

prometheus_client cannot write the page: it renames counters (`_total`) and refuses
names that begin with a colon. Metrics that TensorFlow counts internally, such as the
sizes of the batches that a graph makes, are missing: Python cannot read them.
"""

import bisect
import re
import threading
import time
from collections.abc import Collection, Sequence

# Microseconds; 33 bounds from 10 to about 20 minutes.
_LATENCY = [10 * 1.8**step for step in range(33)]
_RUN_TIME = [1000 * 2.0**step for step in range(20)]
_EXAMPLES = [2.0**step for step in range(15)]
# Combinations of label values in a metric. A request may name any model: what comes
# beyond them is counted under empty values.
_COMBINATIONS = 1000
_LABEL_LENGTH = 256


def microseconds_since(begin: int) -> int:
    """Microseconds since `begin`, from `time.perf_counter_ns`."""
    return (time.perf_counter_ns() - begin) // 1000


class Counter:
    """A counter for each combination of label values.

    Args:
        name: TensorFlow Serving's name, `/tensorflow/serving/...`.
        *labels: names of the labels.
    """

    kind = "counter"

    def __init__(self, name: str, *labels: str) -> None:
        self.name = name
        self._labels = labels
        self._lock = threading.Lock()
        self._values: dict[tuple[str, ...], int] = {}

    def add(self, amount: int, *values: str) -> None:
        """Add to the counter of these label values."""
        with self._lock:
            values = _bounded(values, self._values)
            self._values[values] = self._values.get(values, 0) + amount

    def lines(self, page_name: str) -> list[str]:
        """The lines of the Prometheus page."""
        with self._lock:
            cells = sorted(self._values.items())
        return [
            f"{page_name}{{{_pairs(self._labels, values)}}} {number}"
            for values, number in cells
        ]


class Histogram:
    """A histogram for each combination of label values.

    Args:
        bounds: upper bounds of the buckets, ascending; `+Inf` follows.
    """

    kind = "histogram"

    def __init__(self, name: str, bounds: Sequence[float], *labels: str) -> None:
        self.name = name
        self._bounds = bounds
        self._labels = labels
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def add(self, value: float, *values: str) -> None:
        """Count a value under these label values."""
        # As in TensorFlow, a value that equals a bound is above it.
        bucket = bisect.bisect_right(self._bounds, value)
        with self._lock:
            values = _bounded(values, self._counts)
            if values not in self._counts:
                self._counts[values] = [0] * (len(self._bounds) + 1)
                self._sums[values] = 0
            self._counts[values][bucket] += 1
            self._sums[values] += value

    def lines(self, page_name: str) -> list[str]:
        """The lines of the Prometheus page, with cumulative buckets."""
        with self._lock:
            cells = [
                (values, list(counts), self._sums[values])
                for values, counts in sorted(self._counts.items())
            ]
        bounds = [f"{bound:g}" for bound in self._bounds] + ["+Inf"]
        lines = []
        for values, counts, total in cells:
            pairs = _pairs(self._labels, values)
            below = 0
            for bound, count in zip(bounds, counts, strict=True):
                below += count
                start = f"{pairs}," if pairs else ""
                lines.append(f'{page_name}_bucket{{{start}le="{bound}"}} {below}')
            lines.append(f"{page_name}_sum{{{pairs}}} {total}")
            lines.append(f"{page_name}_count{{{pairs}}} {below}")
        return lines


class Metrics:
    """The metrics of a server; durations are in microseconds.

    `API` and `entrypoint` are those of TensorFlow Serving: `predict` over REST,
    `Predict` over GRPC, empty for status and metadata.
    """

    def __init__(self) -> None:
        serving, core = "/tensorflow/serving", "/tensorflow/core"
        saved_model = "/tensorflow/cc/saved_model"
        self.request_count = Counter(f"{serving}/request_count", "model_name", "status")
        self.request_latency = Histogram(
            f"{serving}/request_latency", _LATENCY, "model_name", "API", "entrypoint"
        )
        self.runtime_latency = Histogram(
            f"{serving}/runtime_latency", _LATENCY, "model_name", "API", "runtime"
        )
        self.example_counts = Histogram(
            f"{serving}/request_example_counts", _EXAMPLES, "model"
        )
        self.example_count_total = Counter(
            f"{serving}/request_example_count_total", "model"
        )
        self.warmup_latency = Histogram(
            f"{serving}/model_warmup_latency", _LATENCY, "model_path", "status"
        )
        self.warmup_records = Counter(
            f"{serving}/model_warmup_records_read", "model_path"
        )
        self.load_attempts = Counter(
            f"{saved_model}/load_attempt_count", "model_path", "status"
        )
        self.load_latency = Counter(f"{saved_model}/load_latency", "model_path")
        self.graph_runs = Counter(f"{core}/graph_runs")
        self.graph_run_time = Counter(f"{core}/graph_run_time_usecs")
        self.graph_run_times = Histogram(
            f"{core}/graph_run_time_usecs_histogram", _RUN_TIME
        )

    def page(self) -> str:
        """All metrics in Prometheus's text format, as TensorFlow Serving writes it."""
        lines = []
        for metric in sorted(vars(self).values(), key=lambda metric: metric.name):
            page_name = re.sub(r"[^a-zA-Z0-9_]", ":", metric.name)
            lines.append(f"# TYPE {page_name} {metric.kind}")
            lines.extend(metric.lines(page_name))
        return "".join(f"{line}\n" for line in lines)


def _bounded(
    values: tuple[str, ...], present: Collection[tuple[str, ...]]
) -> tuple[str, ...]:
    """The label values, cut, or empty ones where there are many already."""
    values = tuple(value[:_LABEL_LENGTH] for value in values)
    has_room = values in present or len(present) < _COMBINATIONS
    return values if has_room else ("",) * len(values)


def _pairs(names: Sequence[str], values: Sequence[str]) -> str:
    return ",".join(
        f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True)
    )


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
