"""`python -m serving classify` and `status`: the clients on the command line.

Results go to stdout, one clear line for each mistake to stderr. Exit status: 0, 1 when
anything failed, 2 for wrong arguments.
"""

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from .answers import Metadata
from .base import Client
from .errors import ServingError
from .rest import RestClient

Command = Callable[[Client, argparse.Namespace], int]


def classify(argv: list[str]) -> int:
    """Classifies image files, each in a request of its own, so each fails alone.

    Args:
        argv: the arguments after `classify`.

    Returns:
        The exit status.
    """
    parser = _parser("classify", "Ask a server for the classes of images.")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image file")
    parser.add_argument(
        "--top-k", type=_positive_integer, default=1, help="classes per image"
    )
    return _run(parser, argv, _classify)


def status(argv: list[str]) -> int:
    """Prints the versions of a model and their states.

    Args:
        argv: the arguments after `status`.

    Returns:
        The exit status.
    """
    parser = _parser("status", "List the versions of a model and their states.")
    return _run(parser, argv, _status)


def _classify(client: Client, args: argparse.Namespace) -> int:
    # An unknown model or a server that is down is one mistake, not one per image.
    _check_takes_images(client.metadata())
    width = max(len("image"), *map(len, args.images))
    if not args.json:
        print(f"{'image':{width}}   score        ms  label")
    answers = []
    for path in args.images:
        answer = _ask(client, path, args.top_k)
        answers.append(answer)
        if "error" in answer:
            _complain("classify", f"{path}: {answer['error']}")
        elif not args.json:
            _print_prediction(answer, width)
    if args.json:
        print(json.dumps(answers, indent=2))
    return int(any("error" in answer for answer in answers))


def _check_takes_images(metadata: Metadata) -> None:
    default = metadata.signatures.get("serving_default")
    inputs = default.inputs if default else {}
    if set(inputs) != {"image_bytes"}:
        raise ServingError(
            "`serving_default` must have the input image_bytes. "
            f"Received: {', '.join(sorted(inputs)) or 'none'}"
        )


def _ask(client: Client, path: str, top_k: int) -> dict[str, Any]:
    """The answer as `--json` prints it; the time is that of the request alone."""
    try:
        content = Path(path).read_bytes()
        start = time.perf_counter()
        [prediction] = client.classify([content], top_k)
        milliseconds = (time.perf_counter() - start) * 1000
    except OSError as error:
        return {"image": path, "error": error.strerror or str(error)}
    except ServingError as error:
        return {"image": path, "error": _first_line(error)}
    return {
        "image": path,
        "milliseconds": round(milliseconds, 3),
        "labels": prediction.labels,
        # JSON has no NaN.
        "scores": [s if math.isfinite(s) else None for s in prediction.scores],
        "class_ids": prediction.class_ids,
    }


def _print_prediction(answer: dict[str, Any], width: int) -> None:
    for label, score in zip(answer["labels"], answer["scores"], strict=True):
        shown = math.nan if score is None else score
        print(
            f"{answer['image']:{width}}  {shown:6.4f}  "
            f"{answer['milliseconds']:8.1f}  {label}"
        )


def _status(client: Client, args: argparse.Namespace) -> int:
    versions = client.status()
    if args.json:
        print(json.dumps([dataclasses.asdict(version) for version in versions]))
        return 0
    for version in versions:
        line = f"{version.version:>8}  {version.state:9}  {version.error_message}"
        print(line.rstrip())
    return 0


def _parser(command: str, about: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=f"python -m serving {command}", description=about)
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument("--rest", metavar="URL", help="such as http://127.0.0.1:8501")
    server.add_argument("--grpc", metavar="ADDRESS", help="such as 127.0.0.1:8500")
    parser.add_argument("--model", required=True, help="name of the model")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--version", type=int, help="default: the newest one")
    which.add_argument("--label", help="label of a version")
    parser.add_argument(
        "--timeout", type=float, default=10.0, help="seconds per request (10)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _run(parser: argparse.ArgumentParser, argv: list[str], command: Command) -> int:
    args = parser.parse_args(argv)
    try:
        client = _client(args)
    except ValueError as error:
        parser.error(str(error))
    with client:
        try:
            return command(client, args)
        except ServingError as error:
            place = f"model {args.model!r} at {args.rest or args.grpc}"
            _complain(parser.prog.split()[-1], f"{_first_line(error)} ({place})")
            return 1


def _client(args: argparse.Namespace) -> Client:
    which = {
        "version": args.version,
        "label": args.label,
        "timeout": args.timeout,
    }
    if args.rest:
        return RestClient(args.rest, args.model, **which)
    # Before the stubs import TensorFlow, whose notices are not about this command.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from .grpc import GrpcClient

    return GrpcClient(args.grpc, args.model, **which)


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help shows the arguments)\n")


def _positive_integer(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return int(text)


def _first_line(error: ServingError) -> str:
    """TensorFlow's texts go on with names of graph nodes."""
    return str(error).partition("\n")[0]


def _complain(command: str, message: str) -> None:
    print(f"serving {command}: {message}", file=sys.stderr)
