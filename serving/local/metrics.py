"""Counters and histograms under TensorFlow Serving's names, and the Prometheus page.

Own text, since Prometheus's client library renames counters (`_total`) and refuses
names that begin with a colon.
"""

import bisect
import threading

REQUEST_COUNT = ":tensorflow:serving:request_count"
REQUEST_LATENCY = ":tensorflow:serving:request_latency"
RUNTIME_LATENCY = ":tensorflow:serving:runtime_latency"
LOAD_ATTEMPTS = ":tensorflow:cc:saved_model:load_attempt_count"
WARMUP_LATENCY = ":tensorflow:serving:model_warmup_latency"

# Microseconds.
_BOUNDS = [10 * 1.8**step for step in range(33)]
_Labels = tuple[tuple[str, str], ...]


class Metrics:
    """What a server counts; any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, dict[_Labels, int]] = {}
        self._histograms: dict[str, dict[_Labels, _Histogram]] = {}

    def count(self, name: str, **labels: str) -> None:
        """Adds 1 to a counter."""
        with self._lock:
            cells = self._counters.setdefault(name, {})
            key = tuple(labels.items())
            cells[key] = cells.get(key, 0) + 1

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Adds a duration to a histogram of microseconds."""
        with self._lock:
            cells = self._histograms.setdefault(name, {})
            cells.setdefault(tuple(labels.items()), _Histogram()).add(seconds * 1e6)

    def page(self) -> str:
        """Everything in Prometheus's text format."""
        lines = []
        with self._lock:
            for name, counters in sorted(self._counters.items()):
                lines.append(f"# TYPE {name} counter")
                for labels, value in counters.items():
                    lines.append(f"{name}{_braces(labels)} {value}")
            for name, histograms in sorted(self._histograms.items()):
                lines.append(f"# TYPE {name} histogram")
                for labels, histogram in histograms.items():
                    lines.extend(histogram.lines(name, labels))
        return "".join(f"{line}\n" for line in lines)


class _Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(_BOUNDS, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: _Labels) -> list[str]:
        below, lines = 0, []
        bounds = [f"{bound:g}" for bound in _BOUNDS] + ["+Inf"]
        for bound, count in zip(bounds, self.counts, strict=True):
            below += count
            lines.append(f"{name}_bucket{_braces((*labels, ('le', bound)))} {below}")
        lines.append(f"{name}_sum{_braces(labels)} {self.sum:g}")
        lines.append(f"{name}_count{_braces(labels)} {below}")
        return lines


def _braces(labels: _Labels) -> str:
    pairs = ",".join(f'{key}="{_escape(value)}"' for key, value in labels)
    return f"{{{pairs}}}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
