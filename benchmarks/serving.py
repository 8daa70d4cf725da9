"""The overhead of the local server over the bare model and a bare web server.

    python -m benchmarks.serving [--parts echo model clients] [--output FILE.json]

All contestants take turns in each round; a ratio is the median over the rounds of the
ratios within a round. echo: half_plus_two over REST beside a bare Starlette JSON echo
on the same uvicorn. model: JPEG bytes for a Ti/16 at 224 in a closed loop, with and
without batching in the graph, beside calling the SavedModel from as many threads in a
process of its own, and beside a web server that calls `model.predict`. clients: the
asyncio client in tasks beside the blocking one in threads, on the bare echo.

The load generator uses our own asyncio clients, which cost about 1 ms of CPU per
request over REST: in the echo part that is most of a request, so that its ratios are
closer to 1 than those of the servers alone. The JSON holds `client_cpu`, the share of a
core that the generator used.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import serving_models
from benchmarks.server_process import server_process
from serving.client import AsyncGrpcClient, AsyncRestClient, RestClient, ServingError
from serving.client.async_client import AsyncClient
from serving.client.protocol import Call, Target
from serving.client.rest_protocol import RestProtocol, RestReply, RestRequest
from serving.load import Load, Result, generate

# A contestant runs a round with a number of clients, for a number of seconds.
Figures = dict[str, float]
Contestant = Callable[[int, float], Figures]


def figures(seconds: float, latencies: Any, errors: int = 0) -> Figures:
    """Answers per second and percentiles in milliseconds."""
    p50, p99 = np.percentile(latencies, [50, 99]) * 1000
    return {
        "per_second": len(latencies) / seconds,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "errors": errors,
    }


def over_network(connect: Callable[[], AsyncClient], calls: list[Call]) -> Contestant:
    """A server under the load generator, which uses our own clients."""

    async def measure(load: Load) -> Result:
        async with connect() as client:
            for call in calls:  # the first requests may take long
                await client.ask_once(call)
            turns = itertools.cycle(calls)
            return await generate(lambda: client.ask_once(next(turns)), load)

    def run(clients: int, seconds: float) -> Figures:
        load = Load(clients=clients, duration=seconds, warmup=0.3)
        result = asyncio.run(measure(load))
        found = figures(seconds, result.latencies, sum(result.errors.values()))
        return found | {
            "per_second": result.requests_per_second,
            "client_cpu": result.cpu,
        }

    return run


def over_rest(url: str, calls: list[Call]) -> Contestant:
    """A server over HTTP."""
    return over_network(lambda: AsyncRestClient(url, "model", timeout=120), calls)


def in_threads(url: str, call: Call) -> Contestant:
    """A server over HTTP, under the blocking client in as many threads."""

    def run(clients: int, seconds: float) -> Figures:
        with (
            RestClient(url, "model", timeout=120) as client,
            concurrent.futures.ThreadPoolExecutor(clients) as threads,
        ):
            end, cpu = time.perf_counter() + seconds, time.process_time()

            def ask(_: int) -> list[float]:
                latencies = []
                while (start := time.perf_counter()) < end:
                    client.ask_once(call)
                    latencies.append(time.perf_counter() - start)
                return latencies

            parts = list(threads.map(ask, range(clients)))
            found = figures(seconds, [each for part in parts for each in part])
            return found | {"client_cpu": (time.process_time() - cpu) / seconds}

    return run


def post(path: str, body: bytes) -> Call:
    """A POST of any path, whose answer is not read."""
    return Call(RestRequest("POST", path, body), check_status)


def check_status(reply: RestReply) -> None:
    """Raise for every status but 200."""
    if reply.status != 200:
        raise ServingError(f"HTTP {reply.status}: {reply.content[:200]!r}")


class Peer:
    """A process of benchmarks.serving_peers, for the duration of a block."""

    def __init__(self, *arguments: str):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serving_peers", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first_line = self.read_line()

    def read_line(self) -> str:
        """Read the next line of its output."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def run(self, clients: int, seconds: float) -> Figures:
        """Run a round of `serving_peers.direct`."""
        assert self._process.stdin is not None
        print(clients, seconds, file=self._process.stdin, flush=True)
        answer = json.loads(self.read_line())
        return figures(answer["seconds"], answer["latencies"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.terminate()
        self._process.wait()


def take_turns(
    contestants: dict[str, Contestant],
    reference: str,
    clients: list[int],
    rounds: int,
    seconds: float,
) -> list[dict[str, Any]]:
    """Measure medians over the rounds, after a warm-up round.

    Ratios are computed within a round, under the same load of the machine; every second
    round is in the reverse order, as it matters who comes after whom.
    """
    seen: dict[tuple[str, int], list[Figures]] = {}
    turns = [
        (round_, number, name)
        for round_ in range(rounds + 1)
        for number in clients
        for name in list(contestants)[:: 1 if round_ % 2 else -1]
    ]
    for turn, number, name in track(turns, "rounds", console=Console(stderr=True)):
        found = contestants[name](number, seconds)
        if turn:
            seen.setdefault((name, number), []).append(found)
    return [
        _row(name, number, found, seen[reference, number])
        for (name, number), found in seen.items()
    ]


def _row(
    name: str, clients: int, found: list[Figures], reference: list[Figures]
) -> dict[str, Any]:
    row: dict[str, Any] = {"contestant": name, "clients": clients}
    for key in found[0]:
        row[key] = statistics.median(figures[key] for figures in found)
    for ratio, key in (("throughput_ratio", "per_second"), ("p99_ratio", "p99_ms")):
        pairs = zip(found, reference, strict=True)
        row[ratio] = statistics.median(a[key] / b[key] for a, b in pairs)
    return row


def echo_part(folder: Path, stack: contextlib.ExitStack) -> dict[str, Contestant]:
    """half_plus_two, and a JSON echo of the same body."""
    serving_models.half_plus_two(folder / "half_plus_two")
    server = stack.enter_context(_local_server(folder, "half_plus_two"))
    echo = stack.enter_context(Peer("echo"))
    body = b'{"instances": [1.0, 2.0, 5.0]}'
    predict = post("/v1/models/half_plus_two:predict", body)
    echo_url = f"http://127.0.0.1:{echo.first_line}"
    return {
        "local server": over_rest(server.rest, [predict]),
        "Starlette echo": over_rest(echo_url, [post("/echo", body)]),
    }


def model_part(folder: Path, stack: contextlib.ExitStack) -> dict[str, Contestant]:
    """Ti/16 over both transports and called directly, with and without batching."""
    from serving.client.grpc_protocol import GrpcProtocol

    images = serving_models.write_jpegs(folder)
    inputs = [{"image_bytes": [image.read_bytes()]} for image in images]
    found: dict[str, Contestant] = {}
    for batching in ("graph", "none"):
        name = f"vit_{batching}"
        serving_models.export(serving_models.vit(), folder / name, batching)
        server = stack.enter_context(_local_server(folder, name))
        rest = predict_calls(RestProtocol(Target(name)), inputs, check_status)
        grpc = predict_calls(GrpcProtocol(Target(name)), inputs, lambda reply: None)
        connect = functools.partial(AsyncGrpcClient, server.grpc, "model", timeout=120)
        version = str(folder / name / "1")
        label = f"batching {batching}"
        found[f"REST, {label}"] = over_rest(server.rest, rest)
        found[f"gRPC, {label}"] = over_network(connect, grpc)
        for way in ("function", "session"):
            peer = stack.enter_context(Peer("direct", way, version, *map(str, images)))
            found[f"{way}, {label}"] = peer.run
    keras = stack.enter_context(Peer("keras"))
    found["Starlette, model.predict"] = over_rest(
        f"http://127.0.0.1:{keras.first_line}",
        [post("/predict", call.request.content) for call in rest],
    )
    return found


def clients_part(folder: Path, stack: contextlib.ExitStack) -> dict[str, Contestant]:
    """Both clients over REST, with a body of 40 kB."""
    echo = stack.enter_context(Peer("echo"))
    call = post("/echo", json.dumps({"image": "a" * 40_000}).encode())
    url = f"http://127.0.0.1:{echo.first_line}"
    return {
        "AsyncRestClient": over_rest(url, [call]),
        "RestClient": in_threads(url, call),
    }


def predict_calls(
    protocol: Any, inputs: list[Any], read: Callable[[Any], Any]
) -> list[Call]:
    """Calls of serving_default whose answers are checked by `read` alone."""
    calls = [protocol.predict("serving_default", values, {}) for values in inputs]
    return [Call(call.request, read) for call in calls]


def _local_server(folder: Path, name: str):
    return server_process(
        folder / f"{name}.log",
        f"--model_name={name}",
        f"--model_base_path={folder / name}",
    )


# Part: its contestants, and the reference of the ratios.
PARTS = {
    "echo": (echo_part, "Starlette echo"),
    "model": (model_part, "session, batching graph"),
    "clients": (clients_part, "RestClient"),
}


def show(part: str, rows: list[dict[str, Any]]) -> None:
    """Print the table of one part."""
    table = Table(
        title=f"{part}; ratios to {PARTS[part][1]}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )
    table.add_column("contestant", no_wrap=True)
    for name in ("clients", "per s", "ratio", "p50 ms", "p99 ms", "ratio", "errors"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["contestant"],
            str(row["clients"]),
            f"{row['per_second']:.1f}",
            f"{row['throughput_ratio']:.2f}",
            f"{row['p50_ms']:.1f}",
            f"{row['p99_ms']:.1f}",
            f"{row['p99_ratio']:.2f}",
            f"{row['errors']:.0f}",
        )
    Console().print(table)


def main() -> None:
    """Measure, print the tables, and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = list(PARTS)
    parser.add_argument("--parts", nargs="+", choices=names, default=names)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--output", default="benchmarks/serving.json")
    arguments = parser.parse_args()
    found = {}
    for part in arguments.parts:
        build, reference = PARTS[part]
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            with Console(stderr=True).status(f"{part}: models and servers"):
                contestants = build(Path(folder), stack)
            found[part] = take_turns(
                contestants,
                reference,
                arguments.clients,
                arguments.rounds,
                arguments.seconds,
            )
        show(part, found[part])
    with open(arguments.output, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
