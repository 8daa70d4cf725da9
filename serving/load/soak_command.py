"""`python -m serving soak`: half an hour of mixed requests, on the command line.

Exit status: 0, 1 when anything went wrong, 2 for wrong arguments.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from ..client.errors import ServingError
from ..commandline import Parser, by_flags, complain, positive_integer
from .arguments import LoadError, check_folder, check_picture, new_client, positive
from .senders import GrpcRequest, GrpcSender, RestRequest, RestSender, Sender
from .server_process import STOP_SECONDS, ServerFailed, server_process
from .soak_versions import SoakVersions


@dataclasses.dataclass(frozen=True)
class _Server:
    """A server to soak.

    Attributes:
        rest: URL of the REST interface.
        grpc: address of the gRPC interface, or None.
        memory: its resident memory in bytes, or None.
        versions: where versions can be swapped, or None.
    """

    rest: str
    grpc: str | None
    memory: Callable[[], int] | None = None
    versions: SoakVersions | None = None


def soak(argv: list[str]) -> int:
    """Sends good and bad requests while versions are swapped.

    Args:
        argv: the arguments after `soak`.

    Returns:
        The exit status.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    if bool(args.models) == bool(args.rest):
        parser.error("give either --models or --rest")
    if args.rest and not args.model:
        parser.error("--rest needs --model, the name of the model")
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        check_picture(args.out)
        check_folder(args.json)
        with _server(args) as server:
            return _soak(args, server)
    except ValueError as error:
        parser.error(by_flags(error))
    except (LoadError, ServerFailed, ServingError, OSError) as error:
        return complain("soak", error)
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: object) -> None:
    """Ends as Ctrl-C does, so that the server and its files do not stay behind."""
    signal.signal(number, signal.SIG_IGN)
    # One that is just being started is in no block yet that would end it.
    children = psutil.Process().children()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()
    psutil.wait_procs(children, STOP_SECONDS)
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m serving soak",
        description="Sends good and bad requests for long, while versions are swapped. "
        "Fails if a good one is not answered as at first, a bad one is not refused, or "
        "the server's memory grows.",
    )
    parser.add_argument(
        "--models",
        type=Path,
        metavar="FOLDER",
        help="the folder of a model, with its versions: a local server is started on "
        "copies of the newest one",
    )
    parser.add_argument(
        "--rest", metavar="URL", help="a running server, in place of --models: no swaps"
    )
    parser.add_argument("--grpc", metavar="ADDRESS", help="of the running server, too")
    parser.add_argument(
        "--model", metavar="NAME", help="name of the model (that of its folder)"
    )
    parser.add_argument("--minutes", type=positive, default=30.0, help="(30)")
    parser.add_argument(
        "--swap-seconds", type=positive, default=60.0, help="from swap to swap (60)"
    )
    parser.add_argument(
        "--clients", type=positive_integer, default=4, help="requests under way (4)"
    )
    parser.add_argument(
        "--tolerance",
        type=positive,
        default=1e-3,
        help="how far numbers may be from those of the first answer (1e-3)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="draw a picture")
    return parser


@contextlib.contextmanager
def _server(args: argparse.Namespace) -> Iterator[_Server]:
    if args.rest:
        yield _Server(args.rest, args.grpc)
        return
    args.model = args.model or args.models.absolute().name
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        copies = Path(folder) / "versions"
        copies.mkdir()
        versions = SoakVersions(args.models, copies)
        with server_process(
            Path(folder) / "server.log",
            f"--model_name={args.model}",
            f"--model_base_path={copies}",
            "--file_system_poll_wait_seconds=1",
        ) as server:
            memory = _memory_of(psutil.Process(server.process.pid))
            yield _Server(server.rest, server.grpc, memory, versions)


def _memory_of(process: psutil.Process) -> Callable[[], int]:
    def memory() -> int:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                return process.memory_info().rss
        except psutil.NoSuchProcess:
            pass
        raise ProcessLookupError("the server ended")

    return memory


def _soak(args: argparse.Namespace, server: _Server) -> int:
    # Before the stubs import TensorFlow, whose notices are not about this command.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from .soak_report import complaints, show, write_json

    record = asyncio.run(_run(args, server))
    found = complaints(record, swaps_wanted=server.versions is not None)
    show(record, found, Console())
    if args.json:
        write_json(record, found, args.json)
    if args.out:
        from .soak_picture import draw

        draw(record, f"Soak of {args.model}", args.out)
    return int(bool(found))


async def _run(args: argparse.Namespace, server: _Server):
    from .soak import Soak
    from .soak_requests import grpc_cases, rest_cases

    with new_client(server.rest, None, args.model) as client:
        metadata = client.metadata()
    cases = rest_cases(metadata) + (grpc_cases(metadata) if server.grpc else [])
    senders: dict[type, Sender] = {RestRequest: RestSender(server.rest)}
    if server.grpc:
        senders[GrpcRequest] = GrpcSender(server.grpc)
    soaked = Soak(args.model, senders, cases, args.tolerance)
    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn())
    said = TextColumn("{task.fields[said]}")
    try:
        with Progress(*columns, said, console=Console(stderr=True)) as bars:
            bar = bars.add_task("soak", total=1.0, said="")

            def progress(share: float, record) -> None:
                faults = len(record.faults) + record.faulty
                text = f"{len(record.asked)} requests, {faults} faults"
                bars.update(bar, completed=share, said=text)

            return await soaked.run(
                60 * args.minutes,
                args.clients,
                server.memory,
                server.versions,
                args.swap_seconds,
                progress,
            )
    finally:
        for sender in senders.values():
            await sender.close()
