"""What a run says: latency percentiles, throughput, errors by code."""

import collections
import dataclasses
import math

import numpy as np

from .generator import Load, Run
from .senders import OK
from .server_metrics import NOT_TOLD, ServerSide

# Of 1000 requests.
PERCENTILES = {
    "p50": 500,
    "p90": 900,
    "p95": 950,
    "p99": 990,
    "p99.9": 999,
    "max": 1000,
}


@dataclasses.dataclass(frozen=True)
class Result:
    """One load and what came of it; the warm-up is left out.

    Attributes:
        load: what was asked for.
        seconds: length of the window.
        requests: requests whose moment is in the window.
        latencies: seconds of those that were answered OK, sorted, float64.
        throughput: answers OK per second that came within the window.
        errors: requests by code that is not OK.
        texts: an example of what the server said, by code.
        late: seconds between a request's moment and its sending, 99th percentile.
        cpu_share: of one core, used by the generator.
        server: what the server counted, the warm-up included.
    """

    load: Load
    seconds: float
    requests: int
    latencies: np.ndarray
    throughput: float
    errors: dict[str, int]
    texts: dict[str, str]
    late: float
    cpu_share: float
    server: ServerSide

    def percentiles(self) -> dict[str, float]:
        """Seconds by name, `p50` to `p99.9` and `max`; NaN where nothing was answered.

        No interpolation: each is a latency that was seen.
        """
        count = len(self.latencies)
        # The smallest that so many of 1000 do not exceed; in integers, since 0.999 is
        # no float.
        ranks = {name: -(-count * part // 1000) for name, part in PERCENTILES.items()}
        return {
            name: float(self.latencies[rank - 1]) if count else math.nan
            for name, rank in ranks.items()
        }


def summarize(run: Run, server: ServerSide = NOT_TOLD) -> Result:
    """The result of a run.

    Args:
        run: of `generate`.
        server: what the server counted meanwhile.
    """
    window = [s for s in run.samples if run.begin <= s.intended]
    answered = [s for s in window if s.code == OK]
    latencies = np.sort([s.finished - s.intended for s in answered])
    late = [s.sent - s.intended for s in window]
    within = sum(
        s.code == OK and run.begin <= s.finished <= run.end for s in run.samples
    )
    seconds = run.end - run.begin
    return Result(
        load=run.load,
        seconds=seconds,
        requests=len(window),
        latencies=latencies,
        throughput=within / seconds,
        errors=dict(collections.Counter(s.code for s in window if s.code != OK)),
        texts={code: _excerpt(text) for code, text in run.texts.items()},
        late=float(np.percentile(late, 99)) if late else 0.0,
        cpu_share=run.cpu_share,
        server=server,
    )


def _excerpt(text: bytes) -> str:
    return text.decode("utf-8", "replace").strip()[:200]
