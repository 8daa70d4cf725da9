"""What the server itself counts, read from its page of metrics before and after."""

import re
from typing import NamedTuple

from .senders import OK, RestRequest, RestSender

PATH = "/monitoring/prometheus/metrics"

# TensorFlow's batch operation counts the batches it runs by their size, with padding.
_BATCHES = ":tensorflow:serving:batching:processed_batch_size_v2"
_LATENCY = ":tensorflow:serving:request_latency"

_LINE = re.compile(r"^([^\s{#]+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Counts = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class ServerSide(NamedTuple):
    """What a server counted between two looks.

    Attributes:
        batches: batches by size, smallest first; {} where it does not tell.
        latency: mean seconds of the model's successful requests, or None.
    """

    batches: dict[int, int]
    latency: float | None


NOT_TOLD = ServerSide({}, None)


async def read_counts(sender: RestSender, path: str = PATH) -> Counts:
    """The counters on the page; {} where there is none.

    Args:
        sender: of the server.
        path: of the page.
    """
    reply = await sender.ask(RestRequest("GET", path), timeout=5.0)
    if reply.code != OK:
        return {}
    return {
        (name, tuple(sorted(_LABEL.findall(labels)))): float(value)
        for name, labels, value in _LINE.findall(reply.body.decode("utf-8", "replace"))
    }


def difference(before: Counts, after: Counts, model: str) -> ServerSide:
    """What happened between two looks at the page.

    Args:
        before: the first look.
        after: the second one.
        model: whose latency is wanted.
    """
    batches: dict[int, int] = {}
    total = {"_sum": 0.0, "_count": 0.0}
    for (name, labels), value in after.items():
        grown = value - before.get((name, labels), 0.0)
        told = dict(labels)
        if name == _BATCHES and grown:
            size = int(told["batch_size"])
            batches[size] = batches.get(size, 0) + int(grown)
        part = name.removeprefix(_LATENCY)
        # Without an API it is the latency of GETs.
        if part in total and told["model_name"] == model and told.get("API"):
            total[part] += grown
    latency = total["_sum"] / total["_count"] / 1e6 if total["_count"] else None
    return ServerSide(dict(sorted(batches.items())), latency)
