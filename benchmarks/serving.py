"""The overhead of the local server over the bare model and a bare web server.

    python -m benchmarks.serving [--parts echo model] [--output FILE.json]

All contestants take turns in each round; a ratio is the median over the rounds of the
ratios within a round. echo: half_plus_two over REST beside a bare Starlette JSON echo
on the same uvicorn. model: JPEG bytes for a Ti/16 at 224 in a closed loop, with and
without batching in the graph, beside calling the SavedModel from as many threads in a
process of its own. clients: the asyncio client in tasks beside the blocking one in
threads, with 3,000 numbers.

Over REST the load generator sends the same bytes by httpx2, over gRPC by our client. In
the echo part it uses most of a core, so that the ratios are closer to 1 than those of
the servers alone. The JSON holds `client_cpu`, the generator's share of a core.
"""

import argparse
import asyncio
import base64
import concurrent.futures
import contextlib
import itertools
import json
import os
import re
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import httpx2
import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.processes import Process, answer
from benchmarks.report import make_parser, show, write
from serving.client import AsyncGrpcClient, AsyncRestClient, RestClient, ServingError
from serving.load_generator import Load, Result, generate

if TYPE_CHECKING:
    import tensorflow as tf

IMAGES = 6
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


def over_network(
    connect: Callable[[], contextlib.AbstractAsyncContextManager[Any]],
    send: Callable[[Any, Any], Awaitable[object]],
    inputs: Sequence[Any],
) -> Contestant:
    """A server under the load generator: a client sends these inputs in turn."""

    async def measure(load: Load) -> Result:
        async with connect() as client:
            for each in inputs:  # the first requests may take long
                await send(client, each)
            turns = itertools.cycle(inputs)
            return await generate(lambda: send(client, next(turns)), load)

    def run(clients: int, seconds: float) -> Figures:
        load = Load(clients=clients, duration=seconds, warmup=0.3)
        result = asyncio.run(measure(load))
        found = figures(seconds, result.latencies, sum(result.errors.values()))
        return found | {
            "per_second": result.requests_per_second,
            "client_cpu": result.cpu,
        }

    return run


def over_rest(url: str, bodies: Sequence[bytes]) -> Contestant:
    """A server over HTTP, whose answers are not read."""

    async def send(http: httpx2.AsyncClient, body: bytes) -> None:
        reply = await http.post(url, content=body)
        if reply.status_code != 200:
            raise ServingError(f"HTTP {reply.status_code}: {reply.text[:200]}")

    return over_network(lambda: httpx2.AsyncClient(timeout=120), send, bodies)


def over_client(
    kind: type[AsyncGrpcClient | AsyncRestClient],
    address: str,
    model: str,
    inputs: Sequence[Any],
) -> Contestant:
    """A server under one of our asyncio clients."""
    connect = partial(kind, address, model, timeout=120)
    return over_network(connect, kind.predict, inputs)


def in_threads(
    call: Callable[[int], object], clients: int, seconds: float
) -> tuple[float, list[float]]:
    """Calls from so many threads, of the inputs number 0, 1, 2 ... of each.

    Returns:
        Seconds until the end of the last call, since all are counted, and of each.
    """
    begin = time.perf_counter()

    def loop(first: int) -> list[float]:
        latencies: list[float] = []
        while (start := time.perf_counter()) < begin + seconds:
            call(first + len(latencies))
            latencies.append(time.perf_counter() - start)
        return latencies

    with concurrent.futures.ThreadPoolExecutor(clients) as threads:
        latencies = list(itertools.chain(*threads.map(loop, range(clients))))
    return time.perf_counter() - begin, latencies


def over_blocking_client(url: str, model: str, inputs: dict[str, Any]) -> Contestant:
    """A server under our blocking client in as many threads."""

    def run(clients: int, seconds: float) -> Figures:
        with RestClient(url, model, timeout=120) as client:
            client.predict(inputs)
            measured = in_threads(lambda _: client.predict(inputs), clients, seconds)
            return figures(*measured)

    return run


def called_directly(process: Process) -> Contestant:
    """A process of `direct`."""
    return lambda clients, seconds: figures(*process.ask(clients, seconds))


def local_server(folder: Path, stack: contextlib.ExitStack) -> re.Match[str]:
    """The URL of REST and gRPC's address of `keras-vit serve` with a model."""
    process = Process(
        *("serving", "serve", "--port=0", "--rest_api_port=0"),
        f"--model_name={folder.name}",
        f"--model_base_path={folder}",
    )
    ready = r"REST (http://\S+)/v1/models, gRPC (\S+)"
    return stack.enter_context(process).find(ready)


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
    rows = []
    for (name, number), figures in seen.items():
        pairs = list(zip(figures, seen[reference, number], strict=True))
        row: dict[str, Any] = {"contestant": name, "clients": number}
        for key in figures[0]:
            row[key] = statistics.median(each[key] for each in figures)
        for ratio, key in (("throughput_ratio", "per_second"), ("p99_ratio", "p99_ms")):
            row[ratio] = statistics.median(a[key] / b[key] for a, b in pairs)
        rows.append(row)
    return rows


def echo_part(folder: Path, stack: contextlib.ExitStack) -> dict[str, Contestant]:
    """half_plus_two, and a JSON echo of the same body."""
    half_plus_two(folder / "half_plus_two")
    server = local_server(folder / "half_plus_two", stack)
    echo = stack.enter_context(Process(*PEER, "echo")).find(r"^(\d+)$")
    body = [b'{"instances": [1.0, 2.0, 5.0]}']
    return {
        "local server": over_rest(f"{server[1]}/v1/models/half_plus_two:predict", body),
        "Starlette echo": over_rest(f"http://127.0.0.1:{echo[1]}/echo", body),
    }


def half_plus_two(folder: Path) -> None:
    """Write TensorFlow Serving's smallest model, y = 0.5 x + 2, as version 1."""
    import tensorflow as tf

    module = tf.Module()
    module.half = tf.Variable(0.5)
    module.two = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def serve(x: "tf.Tensor") -> "dict[str, tf.Tensor]":
        return {"y": module.half * x + module.two}

    tf.saved_model.save(module, str(folder / "1"), signatures=serve)


def model_part(folder: Path, stack: contextlib.ExitStack) -> dict[str, Contestant]:
    """Ti/16 over both transports and called directly, with and without batching."""
    import keras

    import keras_vit
    from benchmarks.data import jpegs
    from serving.export.options import ExportOptions
    from serving.export.signatures import save

    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer.from_variant("Ti/16", classes=1000)
    images = jpegs().numpy()[:IMAGES]
    paths = [folder / f"{number}.jpg" for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        path.write_bytes(image)
    encoded = [{"b64": base64.b64encode(image).decode()} for image in images]
    inputs = [{"image_bytes": [image]} for image in images]
    bodies = [json.dumps({"inputs": {"image_bytes": [b]}}).encode() for b in encoded]
    found: dict[str, Contestant] = {}
    for batching in ("graph", "none"):
        name, label = f"vit_{batching}", f"batching {batching}"
        options = ExportOptions(batching=batching)
        save(model, folder / name / "1", options)
        server = local_server(folder / name, stack)
        url = f"{server[1]}/v1/models/{name}:predict"
        found[f"REST, {label}"] = over_rest(url, bodies)
        found[f"gRPC, {label}"] = over_client(AsyncGrpcClient, server[2], name, inputs)
        words = ("direct", str(folder / name / "1"), *map(str, paths))
        process = stack.enter_context(Process(*PEER, *words))
        found[f"session, {label}"] = called_directly(process)
    return found


def clients_part(folder: Path, stack: contextlib.ExitStack) -> dict[str, Contestant]:
    """Both clients over REST, for half_plus_two of 3,000 numbers."""
    name = "half_plus_two"
    half_plus_two(folder / name)
    url, inputs = local_server(folder / name, stack)[1], [0.5] * 3000
    return {
        "AsyncRestClient": over_client(AsyncRestClient, url, name, [{"x": inputs}]),
        "RestClient": over_blocking_client(url, name, {"x": inputs}),
    }


# Part: its contestants, and the reference of the ratios.
PARTS = {
    "echo": (echo_part, "Starlette echo"),
    "model": (model_part, "session, batching graph"),
    "clients": (clients_part, "RestClient"),
}


def echo() -> None:
    """Serve POST /echo, the minimum cost of the same HTTP server, on a free port."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def answer(request: Request) -> JSONResponse:
        return JSONResponse(await request.json())

    app = Starlette(routes=[Route("/echo", answer, methods=["POST"])])
    bound = socket.create_server(("127.0.0.1", 0))
    print(bound.getsockname()[1], flush=True)
    off: dict[str, Any] = dict.fromkeys(("access_log", "server_header"), False)
    config = uvicorn.Config(app, http="h11", ws="none", log_level="warning", **off)
    uvicorn.Server(config).run([bound])


def direct(saved_model: str, *images: str) -> None:
    """Call `serving_default` from threads, a round for each request."""
    call = _session(saved_model)
    contents = [Path(image).read_bytes() for image in images]
    for content in contents:
        call(content)
    answer(partial(in_threads, lambda number: call(contents[number % len(contents)])))


def _session(saved_model: str) -> Callable[[bytes], Any]:
    """Load into a session, as TensorFlow Serving does."""
    import tensorflow as tf

    graph = tf.Graph()
    session: Any = tf.compat.v1.Session(graph=graph)
    with graph.as_default():
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], saved_model)
    signature = meta_graph.signature_def["serving_default"]
    fetches = [info.name for info in signature.outputs.values()]
    run = session.make_callable(fetches, [signature.inputs["image_bytes"].name])
    return lambda content: run(np.array([content], dtype=object))


PEERS: dict[str, Callable[..., None]] = {"echo": echo, "direct": direct}
PEER = ("benchmarks.serving", "--peer")


def main() -> None:
    """Measure, print the tables, and write the JSON file."""
    parser = make_parser(__doc__, "serving", rounds=5)
    names = list(PARTS)
    parser.add_argument("--parts", nargs="+", choices=names, default=names)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--peer", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        PEERS[options.peer[0]](*options.peer[1:])
        return
    found = {}
    for part in options.parts:
        build, reference = PARTS[part]
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            with Console(stderr=True).status(f"{part}: models and servers"):
                contestants = build(Path(folder), stack)
            turns = (options.clients, options.rounds, options.seconds)
            found[part] = take_turns(contestants, reference, *turns)
        show(found[part], f"{part}; ratios to {reference}")
    write(found, options.output)


if __name__ == "__main__":
    main()
