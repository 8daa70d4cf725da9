"""`keras-vit classify`, `embed`, `attention` and `status`.

Each takes the arguments after its name and returns the exit status. Results go to
standard output, one line per error to standard error.
"""

import argparse
import dataclasses
import io
import itertools
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_vit.common.atomic_files import write_bytes
from keras_vit.common.command_line import CommandError, complain, positive_integer

from ..client.blocking_client import BlockingClient
from ..client.errors import NotFound, ServingError
from ..client.image_signatures import Prediction
from .arguments import add_images, make_parser, one_line, run
from .image_files import image_paths

# (index, result), as the `..._many` methods of the clients yield.
Results = Iterator[tuple[int, Any]]


def classify(argv: list[str]) -> int:
    """Classify image files, each in a request of its own, so that each fails alone."""
    parser = make_parser("classify", "Classify images on a server.")
    add_images(parser)
    parser.add_argument(
        "--top_k",
        type=positive_integer,
        default=1,
        help="classes per image (1), at most as many as the model returns",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return run(parser, argv, _classify)


def embed(argv: list[str]) -> int:
    """Write the embeddings of image files."""
    parser = make_parser(
        "embed", "Write `embeddings` [N, D] and `paths` [N] of images to an .npz file."
    )
    add_images(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.npz")
    return run(parser, argv, _embed)


def attention(argv: list[str]) -> int:
    """Draw the attention maps of image files."""
    parser = make_parser(
        "attention", "Draw images as the model saw them, beside its attention maps."
    )
    add_images(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    return run(parser, argv, _attention)


def status(argv: list[str]) -> int:
    """Print the versions of a model and their states."""
    parser = make_parser("status", "List the versions of a model and their states.")
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with the signatures"
    )
    return run(parser, argv, _status)


def _classify(client: BlockingClient, args: argparse.Namespace) -> int:
    paths = _checked_paths(client, args, "serving_default")
    results = client.classify_many(paths, args.top_k, concurrency=args.concurrency)
    answers = _answers("classify", paths, results)
    if args.json:
        return _print_json(answers)
    width = max(len("image"), *map(len, paths))
    print(f"{'image':{width}}   score  label")
    failed = False
    for path, prediction in answers:
        if isinstance(prediction, str):
            failed = True
            continue
        for label, score in zip(prediction.labels, prediction.scores, strict=True):
            print(f"{path:{width}}  {score:6.4f}  {label}")
    return int(failed)


def _print_json(answers: Iterator[tuple[str, Prediction | str]]) -> int:
    failed = False
    print("[", end="")
    for separator, (path, answer) in zip(
        itertools.chain([""], itertools.repeat(",")), answers, strict=False
    ):
        entry: dict[str, Any] = {"image": path}
        if isinstance(answer, str):
            failed = True
            entry["error"] = answer
        else:
            entry.update(dataclasses.asdict(answer))
            # JSON has no NaN.
            entry["scores"] = [s if math.isfinite(s) else None for s in answer.scores]
        print(f"{separator}\n  {json.dumps(entry)}", end="")
    print("\n]")
    return int(failed)


def _embed(client: BlockingClient, args: argparse.Namespace) -> int:
    import numpy as np

    if not args.out.parent.is_dir():
        raise CommandError(f"--out: there is no folder {args.out.parent}")
    paths = _checked_paths(client, args, "embed")
    results = client.embed_many(paths, concurrency=args.concurrency)
    outcomes = _answers("embed", paths, results)
    answers = [outcome for outcome in outcomes if not isinstance(outcome[1], str)]
    if answers:
        done, rows = zip(*answers, strict=True)
        if len({row.shape for row in rows}) > 1:
            raise CommandError("the server changed to a model of another width")
        content = io.BytesIO()
        np.savez(content, embeddings=np.stack(rows), paths=list(done))
        write_bytes(args.out, content.getbuffer())
        print(f"{args.out}: {len(rows)} embeddings of {len(rows[0])} numbers")
    return int(len(answers) < len(paths))


def _attention(client: BlockingClient, args: argparse.Namespace) -> int:
    from .attention_pictures import draw_attention, picture_names

    args.out.mkdir(parents=True, exist_ok=True)
    paths = _checked_paths(client, args, "attention")
    maps = client.attention_many(paths, concurrency=args.concurrency)
    classes = client.classify_many(paths, 1, concurrency=args.concurrency)
    pairs = ((i, _both(a, b)) for (i, a), (_, b) in zip(maps, classes, strict=True))
    failed = False
    answers = _answers("attention", paths, pairs)
    for name, (_, answer) in zip(picture_names(paths), answers, strict=True):
        if isinstance(answer, str):
            failed = True
            continue
        seen, prediction = answer
        picture = draw_attention(seen, f"{prediction.score:.4f}  {prediction.label}")
        write_bytes(args.out / name, picture)
        print(args.out / name)
    return int(failed)


def _both(first: Any, second: Any) -> Any:
    """A pair of results, or the error among them."""
    for result in (first, second):
        if isinstance(result, ServingError):
            return result
    return first, second


def _status(client: BlockingClient, args: argparse.Namespace) -> int:
    versions = client.status()
    if args.json:
        try:
            signatures = client.metadata().signatures
        except NotFound:  # no version is available
            signatures = {}
        content = {
            "versions": [dataclasses.asdict(version) for version in versions],
            "signatures": {
                name: dataclasses.asdict(signatures[name]) for name in signatures
            },
        }
        print(json.dumps(content, indent=2))
        return 0
    for version in versions:
        line = f"{version.version:>8}  {version.state:9}  {version.error_message}"
        print(line.rstrip())
    return 0


def _checked_paths(
    client: BlockingClient, args: argparse.Namespace, signature_name: str
) -> list[str]:
    """The images, once the model is known to take them: one error, not one for each."""
    paths = image_paths(args.images)
    signatures = client.metadata().signatures
    signature = signatures.get(signature_name)
    inputs = set(signature.inputs) if signature else set()
    if inputs != {"image_bytes"}:
        raise CommandError(
            f"the model must have a signature `{signature_name}` with the input "
            f"image_bytes. Received: signatures {', '.join(sorted(signatures))}; "
            f"inputs {', '.join(sorted(inputs)) or 'none'}"
        )
    return paths


def _answers(
    command: str, paths: list[str], results: Results
) -> Iterator[tuple[str, Any]]:
    """(path, result) or (path, error message), with a progress bar."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    with Progress(
        *Progress.get_default_columns()[:-1],
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        # What goes to a file must not be drawn above the bar.
        redirect_stdout=sys.stdout.isatty(),
    ) as progress:
        for index, result in progress.track(results, len(paths), description=command):
            if isinstance(result, ServingError):
                result = one_line(result)
                complain(command, f"{paths[index]}: {result}")
            yield paths[index], result
