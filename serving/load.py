"""`keras-vit load`: latency and throughput of a served model under load.

Requests go through the project's asyncio clients, encoded once and never sent again
after an error. The clients' own cost is in the latencies: about 1 ms per request.
"""

import argparse
import asyncio
import io
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from keras_vit.common.activity import activity
from keras_vit.common.atomic_files import write_bytes
from keras_vit.common.command_line import (
    CommandError,
    UsageError,
    positive_integer,
    positive_number,
)

from .client.async_client import AsyncClient
from .client.image_encoding import upright
from .client.protocol import Call
from .client.responses import TensorInfo
from .client_commands.arguments import connect, make_parser, server_errors
from .client_commands.image_files import image_paths
from .load_generator import Load, Result, generate

SWEEP = "1,2,4,8,16,32"
PERCENTILES = (50, 90, 99)
# Above this share of a core, the generator itself limits what is measured.
BUSY = 0.85


def main(argv: list[str]) -> int:
    """Measure a model on a running server; 1 if some load had no successful answer."""
    parser = _parser()
    args = parser.parse_args(argv)
    _check_outputs(args)
    with server_errors(args):
        results = asyncio.run(_measure(args))
    title = (
        f"{args.model} {args.signature} over {'REST' if args.rest else 'gRPC'}, "
        f"images per request: {args.images_per_request}"
    )
    show(results, title, args.images_per_request)
    if args.json:
        _write_json(results, args)
    if args.out:
        write_bytes(args.out, picture(results, title))
    return int(any(not len(result.latencies) for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("load", "Measure latency and throughput of a served model.")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="file or folder")
    parser.add_argument(
        "--signature",
        default="serving_default",
        metavar="NAME",
        help="one that takes image bytes or pixels (serving_default)",
    )
    parser.add_argument(
        "--images_per_request",
        type=positive_integer,
        default=1,
        metavar="N",
        help="images in each request (1)",
    )
    loop = parser.add_mutually_exclusive_group()
    loop.add_argument(
        "--clients",
        type=_list_of(positive_integer),
        default=SWEEP,
        metavar="N,...",
        help=f"closed loop: clients, each with one request in flight ({SWEEP})",
    )
    loop.add_argument(
        "--rate",
        type=_list_of(positive_number),
        metavar="R,...",
        help="open loop: Poisson arrivals per second",
    )
    parser.add_argument(
        "--duration",
        type=positive_number,
        default=10.0,
        help="seconds measured for each load (10)",
    )
    parser.add_argument(
        "--warmup",
        type=positive_number,
        default=2.0,
        help="seconds of the load before that, not measured (2)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="draw the figures")
    return parser


def _list_of(convert: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [convert(part) for part in text.split(",")]


def _check_outputs(args: argparse.Namespace) -> None:
    """Refuse files that cannot be written, before minutes of measuring."""
    for path in (args.json, args.out):
        if path and not path.absolute().parent.is_dir():
            raise CommandError(f"{path}: there is no folder {path.parent}")
    if not args.out:
        return
    if args.out.suffix.lower() != ".png":
        raise UsageError(f"--out must end in .png. Received: {args.out}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise CommandError(
            f'--out needs {error.name}: pip install "keras-vit-serving[viz]"'
        ) from error


async def _measure(args: argparse.Namespace) -> list[Result]:
    seconds = (args.duration, args.warmup, args.timeout)
    loads = [Load(clients, None, *seconds) for clients in args.clients]
    if args.rate:
        loads = [Load(None, rate, *seconds) for rate in args.rate]
    async with connect(args, asynchronous=True) as client:
        calls = await _calls(client, args)
        for call in calls:  # what fails without load fails here, once
            await client.ask_once(call)
        turns = itertools.cycle(calls)
        results = []
        for load in loads:
            with activity(str(load)):
                results.append(
                    await generate(lambda: client.ask_once(next(turns)), load)
                )
        return results


async def _calls(client: AsyncClient, args: argparse.Namespace) -> list[Call[Any]]:
    """The requests, encoded for the input that the signature declares."""
    signatures = (await client.metadata()).signatures
    if args.signature not in signatures:
        raise CommandError(
            f"--signature must be one of {', '.join(sorted(signatures))}. "
            f"Received: {args.signature}"
        )
    signature = signatures[args.signature]
    if len(signature.inputs) != 1:
        raise CommandError(
            f"--signature must have one input. Received: {args.signature} with "
            f"{', '.join(signature.inputs) or 'none'}"
        )
    [(name, info)] = signature.inputs.items()
    images = [_image_input(path, info) for path in image_paths(args.images)]
    turns = itertools.cycle(images)
    size = args.images_per_request
    batches = (
        list(itertools.islice(turns, size)) for _ in range(-(-len(images) // size))
    )
    return [
        client.protocol.predict(
            args.signature,
            {name: batch if info.dtype == "string" else np.stack(batch)},
            signature.outputs,
        )
        for batch in batches
    ]


def _image_input(path: str, info: TensorInfo) -> bytes | np.ndarray:
    """An image file as a signature takes it: its bytes, or pixels [H, W, C].

    Pixels are uint8, or float32 from -1 to 1.
    """
    if info.dtype == "string":
        return Path(path).read_bytes()
    sizes = [size for size in (info.shape or ())[1:] if size is not None]
    if info.dtype not in ("uint8", "float32") or len(sizes) != 3:
        raise CommandError(
            "--signature must take image bytes, or pixels of one size. "
            f"Received: {info.dtype} {info.shape}"
        )
    from PIL import Image

    height, width, channels = sizes
    mode = "L" if channels == 1 else "RGB"
    with Image.open(path) as image:
        resized = upright(image).convert(mode).resize((width, height))
    pixels = np.asarray(resized).reshape(height, width, channels)
    if info.dtype == "uint8":
        return pixels
    return (pixels / 127.5 - 1).astype("float32")


def show(results: Sequence[Result], title: str, images_per_request: int) -> None:
    """Print a row for each load, and the errors below the table."""
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0, 0, 1),  # to fit 80 columns
    )
    table.add_column("load", no_wrap=True)
    percentiles = [f"p{percent} ms" for percent in PERCENTILES]
    for name in ("requests", "per s", "images/s", *percentiles, "max ms", "errors"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            str(result.load),
            str(result.requests),
            f"{result.requests_per_second:.1f}",
            f"{result.requests_per_second * images_per_request:.1f}",
            *(_milliseconds(result.percentile(p)) for p in (*PERCENTILES, 100)),
            str(sum(result.errors.values())),
        )
    console = Console()
    console.print(table)
    for result in results:
        for kind, count in sorted(result.errors.items()):
            message = result.messages.get(kind, "every client was busy")
            console.print(f"{result.load}: {count} x {kind}: {message}", markup=False)
        if result.cpu > BUSY:
            console.print(
                f"{result.load}: the load generator used {result.cpu:.0%} of a core; "
                "the server may be faster than this"
            )


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}"


def _write_json(results: Sequence[Result], args: argparse.Namespace) -> None:
    """Write the figures; latencies in milliseconds, null where nothing succeeded."""
    names = ("model", "version", "label", "signature", "images", "images_per_request")
    report = {
        "server": args.rest or args.grpc,
        **{name: getattr(args, name) for name in names},
        "results": [_row(result, args.images_per_request) for result in results],
    }
    write_bytes(args.json, f"{json.dumps(report, indent=1)}\n".encode())


def _row(result: Result, images_per_request: int) -> dict[str, Any]:
    named = {f"p{percent}": percent for percent in PERCENTILES} | {"max": 100}
    latencies = {name: result.percentile(percent) for name, percent in named.items()}
    return {
        "clients": result.load.clients,
        "rate": result.load.rate,
        "seconds": result.load.duration,
        "requests": result.requests,
        "requests_per_second": round(result.requests_per_second, 3),
        "images_per_second": round(result.requests_per_second * images_per_request, 3),
        "latency_ms": {
            name: None if value is None else round(1000 * value, 4)
            for name, value in latencies.items()
        },
        "errors": result.errors,
        "error_messages": result.messages,
        "generator_cpu": round(result.cpu, 3),
    }


def picture(results: Sequence[Result], title: str) -> bytes:
    """Draw latency and throughput over the loads, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    latency, throughput = figure.subplots(1, 2)
    loads = [str(result.load) for result in results]
    for percent in PERCENTILES:
        seconds = [result.percentile(percent) for result in results]
        values = [np.nan if value is None else 1000 * value for value in seconds]
        latency.plot(values, marker="o", label=f"p{percent}")
    latency.set(title="Latency (ms)", ylim=(0, None))
    latency.legend()
    throughput.plot([r.requests_per_second for r in results], marker="o")
    throughput.set(title="Successful requests per second", ylim=(0, None))
    for axes in (latency, throughput):
        axes.set_xticks(range(len(loads)), loads)
        axes.grid(axis="y", alpha=0.3)
    figure.suptitle(title)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()
