"""How long does a process take until it can ask a server over REST?

    python -m benchmarks.client_start [--rounds 20] [--output FILE.json]

CPU time of fresh processes that import the HTTP library, the client, or both and more,
in turn, so that all meet the same load of the machine. The median of the rounds counts;
the ratios are to importing the HTTP library alone.
"""

import statistics
import subprocess
import sys

from rich.console import Console
from rich.progress import track

from benchmarks.report import make_parser, show, write

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
    """Measures, prints a table of CPU times and their ratios, and writes them."""
    options = make_parser(__doc__, "client_start", rounds=20).parse_args()
    medians = measure(options.rounds)
    first = medians["import httpx2"]
    rows = [
        {"what": name, "cpu_ms": 1000 * seconds, "ratio": seconds / first}
        for name, seconds in medians.items()
    ]
    show(rows)
    write(rows, options.output)


if __name__ == "__main__":
    main()
