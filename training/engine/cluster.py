"""The workers of a run, as the environment variable `TF_CONFIG` describes them."""

import json
import sys
from typing import Any, NamedTuple

from ..errors import RecipeError


class Cluster(NamedTuple):
    """This worker's number, from 0, and the addresses of all."""

    worker: int
    addresses: tuple[str, ...]


def parse_cluster(tf_config: str | None) -> Cluster:
    """Read the value of `TF_CONFIG`.

    Raises:
        RecipeError: It is missing or malformed.
    """
    try:
        config: Any = json.loads(tf_config or "")
        workers, task = config["cluster"]["worker"], config["task"]
        well_formed = (
            config["cluster"].keys() == {"worker"}
            and isinstance(workers, list)
            and all(map(_is_address, workers))
            and len(set(workers)) == len(workers)
            and task["type"] == "worker"
            and type(task["index"]) is int
            and 0 <= task["index"] < len(workers)
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        well_formed = False
    if not well_formed:
        raise RecipeError(
            "the environment variable TF_CONFIG must be JSON such as "
            '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, '
            '"task": {"type": "worker", "index": 0}}, with only workers, each with its '
            f"own address, and the index of one of them. Received: {tf_config!r}"
        )
    return Cluster(task["index"], tuple(workers))


def print_waiting(index: int, count: int) -> None:
    """Say on standard error that this worker waits until all have started."""
    print(f"worker {index} of {count}: waiting for the others", file=sys.stderr)


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 2**16
