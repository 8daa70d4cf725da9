"""How long does a process take until it can ask a server over REST?

    python -m benchmarks.client_start [--rounds 20] [--output FILE.json]

CPU time of fresh processes that import the HTTP library, the client, or both and more,
in turn, so that all meet the same load of the machine. The median of the rounds counts;
the ratios are to importing the HTTP library alone.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from rich.console import Console
from rich.progress import track
from rich.table import Table

STATEMENTS = {
    "import httpx2": "import httpx2",
    "import RestClient": "from serving.client import RestClient",
    "httpx2.Client()": "import httpx2; httpx2.Client()",
    "RestClient(...)": (
        "from serving.client import RestClient; RestClient('http://server', 'model')"
    ),
    "AsyncRestClient(...)": (
        "from serving.client import AsyncRestClient as Client; "
        "Client('http://server', 'model')"
    ),
    "GrpcClient(...)": (
        "from serving.client import GrpcClient as Client; "
        "Client('127.0.0.1:1', 'model').close()"
    ),
    "first answer": """
import httpx2
from serving.client import RestClient
text = '{"outputs": {"classes": [["a"]], "scores": [[1.0]], "class_ids": [[0]]}}'
transport = httpx2.MockTransport(lambda request: httpx2.Response(200, text=text))
RestClient("http://server", "model", transport=transport).classify([b"1"])
""",
}


def cpu_seconds(statement: str) -> float:
    """CPU seconds of a statement in a fresh process, the interpreter's start apart."""
    code = f"""
import time
start = time.process_time()
{statement}
print(time.process_time() - start)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def measure(rounds: int) -> dict[str, float]:
    """Median CPU seconds of each statement; the first round warms the disk's cache."""
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for round_ in track(range(rounds + 1), console=Console(stderr=True)):
        for name, statement in STATEMENTS.items():
            seconds = cpu_seconds(statement)
            if round_:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Prints a table of CPU times and their ratios; writes them if asked."""
    parser = argparse.ArgumentParser(description="Start-up of the client over REST.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE.json")
    args = parser.parse_args()
    medians = measure(args.rounds)
    table = Table("", "CPU ms", "httpx2 = 1")
    for name, seconds in medians.items():
        ratio = seconds / medians["import httpx2"]
        table.add_row(name, f"{seconds * 1000:.0f}", f"{ratio:.2f}")
    Console().print(table)
    if args.output:
        args.output.write_text(json.dumps(medians, indent=2) + "\n")


if __name__ == "__main__":
    main()
