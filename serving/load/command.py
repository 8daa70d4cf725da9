"""`python -m serving load`: a server under load, on the command line.

Exit status: 0, 1 when a load was not answered at all, 2 for wrong arguments.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from ..client.arguments import add_server
from ..client.errors import ServingError
from ..client.protocol import Target
from ..commandline import Parser, by_flags, complain, positive_integer
from .arguments import (
    LoadError,
    check_folder,
    check_images,
    check_picture,
    counts,
    new_client,
    positive,
    positives,
)
from .generator import Load, generate
from .report import load_name, show, write_json
from .requests import grpc_requests, image_inputs, rest_requests
from .results import Result, summarize
from .senders import OK, GrpcSender, RestSender, Sender
from .server_metrics import difference, read_counts

SWEEP = "1,2,4,8,16,32"


def load(argv: list[str]) -> int:
    """Measures a model on a running server.

    Args:
        argv: the arguments after `load`.

    Returns:
        The exit status.
    """
    parser = _load_parser()
    args = parser.parse_args(argv)
    try:
        loads = _loads(args)
        check_picture(args.out)
        check_folder(args.json)
        check_images(args.images)
        requests = _requests(args)
        results = asyncio.run(_measure(args, requests, loads))
        title = _title(args)
        show(results, title, Console())
        if args.json:
            write_json(results, _settings(args), args.json)
        if args.out:
            from .picture import draw

            draw(results, title, args.out)
    except ValueError as error:
        parser.error(by_flags(error))
    except (LoadError, ServingError, OSError) as error:
        return complain("load", error)
    return int(any(not len(result.latencies) for result in results))


def _load_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m serving load",
        description="Measures latency and throughput of a served model.",
    )
    add_server(parser)
    parser.add_argument(
        "--signature",
        default="serving_default",
        metavar="NAME",
        help="one that takes image bytes or pixels (serving_default)",
    )
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    parser.add_argument(
        "--images-per-request",
        type=positive_integer,
        default=1,
        metavar="N",
        help="(1)",
    )
    loop = parser.add_mutually_exclusive_group()
    loop.add_argument(
        "--clients",
        type=counts,
        default=counts(SWEEP),
        metavar="N,...",
        help=f"closed loop: each client sends once it has its answer ({SWEEP})",
    )
    loop.add_argument(
        "--rate",
        type=positives,
        metavar="R,...",
        help="open loop: Poisson arrivals per second, however slow the server is",
    )
    parser.add_argument(
        "--duration", type=positive, default=10.0, help="seconds for each load (10)"
    )
    parser.add_argument(
        "--requests",
        type=positive_integer,
        help="requests for each load, in place of --duration",
    )
    parser.add_argument(
        "--warmup", type=float, default=2.0, help="seconds before each, not counted (2)"
    )
    parser.add_argument(
        "--timeout", type=positive, default=10.0, help="seconds for each request (10)"
    )
    parser.add_argument(
        "--connections",
        type=positive_integer,
        default=256,
        help="open loop: requests under way at most (256)",
    )
    parser.add_argument(
        "--metrics",
        metavar="URL",
        help="of the server's REST interface, whose metrics tell the batches "
        "(default: that of --rest)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="draw a picture")
    return parser


def _loads(args: argparse.Namespace) -> list[Load]:
    common: dict[str, Any] = {
        "duration": args.duration,
        "requests": args.requests,
        "warmup": args.warmup,
        "timeout": args.timeout,
        "connections": args.connections,
    }
    if args.rate:
        return [Load(rate=rate, **common) for rate in args.rate]
    return [Load(clients=clients, **common) for clients in args.clients]


def _requests(args: argparse.Namespace) -> list[Any]:
    """The requests, once the server has told what the signature takes."""
    which = {"version": args.version, "label": args.label, "timeout": args.timeout}
    with new_client(args.rest, args.grpc, args.model, **which) as client:
        signatures = client.metadata().signatures
    if args.signature not in signatures:
        raise LoadError(
            f"the model has no signature {args.signature!r}. There are: "
            f"{', '.join(sorted(signatures))}"
        )
    inputs = signatures[args.signature].inputs
    if len(inputs) != 1:
        raise LoadError(
            f"--signature must have one input. {args.signature} has: "
            f"{', '.join(inputs) or 'none'}"
        )
    [(name, info)] = inputs.items()
    values = image_inputs(args.images, name, info, args.images_per_request)
    target = Target(args.model, args.version, args.label)
    encode = rest_requests if args.rest else grpc_requests
    return encode(target, args.signature, values)


async def _measure(
    args: argparse.Namespace, requests: Sequence[Any], loads: Sequence[Load]
) -> list[Result]:
    sender = RestSender(args.rest) if args.rest else GrpcSender(args.grpc)
    page = args.metrics or args.rest
    metrics = RestSender(page) if page else None
    try:
        await _check_answered(sender, requests, args.timeout)
        return await _run_all(args.model, sender, metrics, requests, loads)
    finally:
        await sender.close()
        if metrics:
            await metrics.close()


async def _check_answered(
    sender: Sender, requests: Sequence[Any], timeout: float
) -> None:
    """What fails without load is no matter of load."""
    for request in requests:
        reply = await sender.ask(request, timeout)
        if reply.code != OK:
            text = reply.body.decode("utf-8", "replace")
            raise LoadError(f"refused without any load: {reply.code} {text}")


async def _run_all(
    model: str,
    sender: Sender,
    metrics: RestSender | None,
    requests: Sequence[Any],
    loads: Sequence[Load],
) -> list[Result]:
    results = []
    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, TextColumn("{task.fields[said]}"), console=console) as bars:
        for each in loads:
            bar = bars.add_task(load_name(each), total=1.0, said="")

            def progress(share: float, answers: int, errors: int, bar=bar) -> None:
                said = f"{answers} answers, {errors} errors"
                bars.update(bar, completed=share, said=said)

            before = await read_counts(metrics) if metrics else {}
            run = await generate(sender, requests, each, progress)
            after = await read_counts(metrics) if metrics else {}
            bars.update(bar, completed=1.0)
            results.append(summarize(run, difference(before, after, model)))
    return results


def _title(args: argparse.Namespace) -> str:
    transport = "REST" if args.rest else "gRPC"
    images = args.images_per_request
    return (
        f"{args.model} {args.signature} over {transport}, {images} "
        f"image{'s' if images > 1 else ''} per request"
    )


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "server": args.rest or args.grpc,
        "model": args.model,
        "version": args.version,
        "label": args.label,
        "signature": args.signature,
        "images": [str(path) for path in args.images],
        "images_per_request": args.images_per_request,
    }
