"""Arguments of the commands that ask a server, and the client they describe."""

import argparse
import contextlib
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from keras_vit.common.command_line import (
    CommandError,
    Parser,
    positive_integer,
    positive_number,
)

from ..client.blocking_client import BlockingClient
from ..client.errors import ServingError
from ..client.rest_client import RestClient
from ..usage import usage_errors

Action = Callable[[BlockingClient, argparse.Namespace], int]


def make_parser(command: str, about: str) -> argparse.ArgumentParser:
    """A parser for the server, the model and how to reach them."""
    parser = Parser(prog=f"keras-vit {command}", description=about)
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument("--rest", metavar="URL", help="such as http://127.0.0.1:8501")
    server.add_argument("--grpc", metavar="ADDRESS", help="such as 127.0.0.1:8500")
    parser.add_argument("--model", required=True, help="name of the model")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--version", type=int, help="default: the newest one")
    which.add_argument("--label", help="label of a version")
    parser.add_argument(
        "--timeout", type=positive_number, default=10.0, help="seconds per request (10)"
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
        "--ca_file",
        type=_certificates,
        metavar="FILE",
        help="PEM file of trusted certificate authorities; turns TLS on over gRPC",
    )
    return parser


def add_images(parser: argparse.ArgumentParser) -> None:
    """Add the images, and the number of concurrent requests."""
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
        help="concurrent requests, of one image each (8)",
    )


def run(parser: argparse.ArgumentParser, argv: list[str], command: Action) -> int:
    """Run a command with the client that the arguments describe."""
    args = parser.parse_args(argv)
    with server_errors(args), connect(args) as client:
        return command(client, args)


@contextlib.contextmanager
def server_errors(args: argparse.Namespace) -> Iterator[None]:
    """Report a `ServingError` as CommandError, with the model and the server."""
    try:
        yield
    except ServingError as error:
        place = f"model {args.model!r} at {args.rest or args.grpc}"
        raise CommandError(f"{one_line(error)} ({place})") from error


def one_line(error: ServingError) -> str:
    """The first line of an error's message, or the reason of a file's."""
    if isinstance(error.__cause__, OSError) and error.__cause__.filename:
        return error.__cause__.strerror or str(error.__cause__)
    return str(error).partition("\n")[0]


def connect(args: argparse.Namespace, asynchronous: bool = False) -> Any:
    """The client that the arguments of `make_parser` describe."""
    which: dict[str, Any] = {
        "version": args.version,
        "label": args.label,
        "timeout": args.timeout,
    }
    with usage_errors():
        if args.rest:
            kind: Any = RestClient
            if asynchronous:
                from ..client.async_rest_client import AsyncRestClient as kind
            verify = not args.ca_file or ssl.create_default_context(cafile=args.ca_file)
            headers = dict(args.header)
            return kind(args.rest, args.model, headers=headers, verify=verify, **which)
        import grpc

        from ..client.grpc_client import AsyncGrpcClient, GrpcClient

        credentials = None
        if args.ca_file:
            authorities = Path(args.ca_file).read_bytes()
            credentials = grpc.ssl_channel_credentials(authorities)
        kind = AsyncGrpcClient if asynchronous else GrpcClient
        return kind(
            args.grpc,
            args.model,
            metadata=dict(args.header),
            credentials=credentials,
            **which,
        )


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
