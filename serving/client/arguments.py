"""What the client commands share: arguments, the client they describe, mistakes."""

import argparse
import os
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..commandline import Parser, by_flags, complain, positive_integer
from .blocking import BlockingClient
from .errors import ServingError
from .rest import RestClient

Command = Callable[[BlockingClient, argparse.Namespace], int]


def make_parser(command: str, about: str) -> argparse.ArgumentParser:
    """A parser for the server, the model and how to reach them.

    Args:
        command: its name.
        about: what it does.
    """
    parser = Parser(prog=f"python -m serving {command}", description=about)
    add_server(parser)
    parser.add_argument(
        "--timeout", type=float, default=10.0, help="seconds per request (10)"
    )
    parser.add_argument(
        "--header",
        action="append",
        type=_header,
        default=[],
        metavar="'NAME: VALUE'",
        help="sent with each request; @FILE reads it from a file; may be repeated",
    )
    parser.add_argument(
        "--ca-file",
        type=_certificates,
        metavar="FILE",
        help="PEM of the authorities to trust; over gRPC, it turns TLS on",
    )
    return parser


def add_server(parser: argparse.ArgumentParser) -> None:
    """Adds the server, over one of its interfaces, the model and the version."""
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument("--rest", metavar="URL", help="such as http://127.0.0.1:8501")
    server.add_argument("--grpc", metavar="ADDRESS", help="such as 127.0.0.1:8500")
    parser.add_argument("--model", required=True, help="name of the model")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--version", type=int, help="default: the newest one")
    which.add_argument("--label", help="label of a version")


def add_images(parser: argparse.ArgumentParser) -> None:
    """Adds the images, and how many are asked for at once."""
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="image file; folder of them; - for a list on standard input",
    )
    parser.add_argument(
        "--concurrency",
        type=positive_integer,
        default=8,
        help="requests at once, of one image each (8)",
    )


def run(parser: argparse.ArgumentParser, argv: list[str], command: Command) -> int:
    """Runs a command with the client that the arguments describe.

    Returns:
        The exit status: 0, 1 when anything failed; 2 for wrong arguments is raised.
    """
    args = parser.parse_args(argv)
    name = parser.prog.split()[-1]
    try:
        client = _client(args)
    except ValueError as error:
        parser.error(by_flags(error))
    with client:
        try:
            return command(client, args)
        except ServingError as error:
            place = f"model {args.model!r} at {args.rest or args.grpc}"
            complain(name, f"{reason(error)} ({place})")
        except BrokenPipeError:
            # Nobody reads on; without this, the interpreter complains at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            complain(name, error)
        return 1


def reason(error: ServingError) -> str:
    """An error in one line: TensorFlow's texts go on with names of graph nodes."""
    if isinstance(error.__cause__, OSError) and error.__cause__.filename:
        return error.__cause__.strerror or str(error.__cause__)
    return str(error).partition("\n")[0]


def _header(text: str) -> tuple[str, str]:
    try:
        if text.startswith("@"):
            text = Path(text[1:]).read_text("utf-8")
    except OSError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError("must look like 'NAME: VALUE'")
    return name.strip(), value.strip()


def _certificates(text: str) -> str:
    try:
        ssl.create_default_context(cafile=text)
    except OSError as error:  # SSLError is one
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror or error}") from None
    return text


def _client(args: argparse.Namespace) -> BlockingClient:
    which: dict[str, Any] = {
        "version": args.version,
        "label": args.label,
        "timeout": args.timeout,
    }
    if args.rest:
        return RestClient(
            args.rest,
            args.model,
            headers=dict(args.header),
            verify=not args.ca_file or ssl.create_default_context(cafile=args.ca_file),
            **which,
        )
    # Before the stubs import TensorFlow, whose notices are not about this command.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import grpc

    from .grpc import GrpcClient

    credentials = None
    if args.ca_file:
        credentials = grpc.ssl_channel_credentials(Path(args.ca_file).read_bytes())
    return GrpcClient(
        args.grpc,
        args.model,
        metadata=dict(args.header),
        credentials=credentials,
        **which,
    )
