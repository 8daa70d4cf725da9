"""`keras-vit versions | promote | rollback | prune`: labels and versions."""

import argparse
import pathlib
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.table import Table

from keras_vit.common.command_line import CommandError, Parser, positive_integer

from . import label_moves, manifest, model_config
from .served_model import (
    add_arguments,
    add_rest,
    add_served_from,
    local_folder,
    served_model_of,
)
from .versions import one_writer, sweep, version_folders, versions, withdraw

Action = Callable[[argparse.Namespace], int]

MANIFEST_COLUMNS = ("created", "precision", "target", "MB", "difference", "top 1")
UNKNOWN = "-"
WAIT = "to wait until it follows"


def show(argv: list[str]) -> int:
    """Run `keras-vit versions`; 1 if `--verify` finds damage."""
    parser = _parser("versions", "List the versions of a model's folder.")
    add_arguments(parser)
    add_rest(parser, "to show the states of the versions")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare every file with the checksums in the manifest",
    )
    return _run(parser, argv, _show)


def promote(argv: list[str]) -> int:
    """Run `keras-vit promote`."""
    parser = _parser("promote", "Give a label the version of another label.")
    add_arguments(parser, required=True)
    add_rest(parser, WAIT)
    add_served_from(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--label", default="canary", help="default: canary")
    which.add_argument("--version", type=int, metavar="N")
    parser.add_argument(
        "--to", default=label_moves.STABLE, metavar="LABEL", help="default: stable"
    )
    return _run(parser, argv, _promote)


def rollback(argv: list[str]) -> int:
    """Run `keras-vit rollback`."""
    parser = _parser(
        "rollback",
        "Return to the version that was stable before, with every label of the stable "
        "one; without labels, remove the newest version from the servers.",
    )
    _add_where_served(parser)
    add_rest(parser, WAIT)
    return _run(parser, argv, _roll_back)


def prune(argv: list[str]) -> int:
    """Run `keras-vit prune`."""
    parser = _parser(
        "prune",
        "Remove old versions; never the newest, one that a label points to, or one "
        "that the config file makes a server load.",
    )
    _add_where_served(parser)
    parser.add_argument(
        "--keep",
        type=positive_integer,
        default=3,
        metavar="N",
        help="how many of the newest versions to keep; default 3",
    )
    parser.add_argument(
        "--yes", action="store_true", help="remove them; otherwise only list them"
    )
    return _run(parser, argv, _prune)


def _parser(name: str, about: str) -> argparse.ArgumentParser:
    parser = Parser(prog=f"keras-vit {name}", description=about)
    parser.add_argument(
        "folder",
        type=local_folder,
        metavar="FOLDER",
        help="the model's folder, which holds one sub-folder for each version",
    )
    return parser


def _add_where_served(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.add_argument(
        "--without_config",
        action="store_true",
        help="there is no config file: servers have the folder as --model_base_path, "
        "and serve the newest version",
    )


def _run(parser: argparse.ArgumentParser, argv: list[str], command: Action) -> int:
    arguments = parser.parse_args(argv)
    has_config = arguments.config is not None
    if getattr(arguments, "without_config", not has_config) == has_config:
        parser.error("give either --config FILE or --without_config")
    if not arguments.folder.is_dir():
        raise CommandError(f"{arguments.folder}: no such folder")
    if has_config and not arguments.config.is_file():
        raise CommandError(f"--config {arguments.config}: no such file")
    return command(arguments)


def _promote(arguments: argparse.Namespace) -> int:
    target = served_model_of(arguments, arguments.folder)
    version = arguments.version
    if version is None:
        labels = label_moves.labels_of(target)
        if arguments.label not in labels:
            there = ", ".join(sorted(labels)) or "none"
            raise CommandError(
                f"{target.config}: {target.name} has no label {arguments.label}. "
                f"There are: {there}"
            )
        version = labels[arguments.label]
    label_moves.add(target, version, arguments.to, arguments.served_from)
    return 0


def _roll_back(arguments: argparse.Namespace) -> int:
    if arguments.config is not None:
        label_moves.roll_back(served_model_of(arguments, arguments.folder))
        return 0
    folder = arguments.folder
    with one_writer(folder):
        there = versions(folder)
        if len(there) < 2:
            raise CommandError(f"{folder}: has no version to go back to")
        hidden = withdraw(folder, there[-1])
    print(f"{folder}: version {there[-2]} is the newest; {there[-1]} is now {hidden}")
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    folder = arguments.folder
    with one_writer(folder):
        there = versions(folder)
        needed = {*there[-arguments.keep :], *_needed(arguments, there)}
        unneeded = [number for number in there if number not in needed]
        for number in unneeded if arguments.yes else ():
            withdraw(folder, number)
        if arguments.yes:
            sweep(folder)
    listed = ", ".join(map(str, unneeded)) or "no version"
    kept = ", ".join(map(str, sorted(needed)))
    hint = "removed" if arguments.yes else "would be removed (--yes removes)"
    print(f"{folder}: {listed} {hint}; kept: {kept}")
    return 0


def _needed(arguments: argparse.Namespace, there: list[int]) -> set[int]:
    """The versions that the config file loads or labels."""
    if arguments.config is None:
        return set()
    target = served_model_of(arguments, arguments.folder)
    config = model_config.read(target.config)
    named = model_config.entry(config, target.name)
    if named is None:
        raise CommandError(f"{target.config}: has no model {target.name}")
    return {
        number
        for model in config.model_config_list.config
        if model.base_path == named.base_path
        for number in (
            *model_config.served(model, there),
            *model.version_labels.values(),
        )
    }


def _show(arguments: argparse.Namespace) -> int:
    folders = version_folders(arguments.folder)
    if not folders:
        print(f"no versions in {arguments.folder}")
        return 0
    columns = {
        "version": [str(number) for number in folders],
        "labels": _labels(arguments, folders),
        **_manifest_columns(folders.values()),
    }
    if arguments.rest is not None:
        columns["state"] = _states(arguments, folders)
    damage: dict[pathlib.Path, list[str]] = {}
    if arguments.verify:
        damage = {
            folder: [f"{folder}/{line}" for line in manifest.damage(folder)]
            for folder in folders.values()
        }
        columns["files"] = ["not intact" if d else "intact" for d in damage.values()]
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console.width = 1000  # nothing is cut off for a program that reads it
    console.print(table)
    for text in (text for found in damage.values() for text in found):
        print(text)
    return int(any(damage.values()))


def _labels(arguments: argparse.Namespace, numbers: Iterable[int]) -> list[str]:
    target = served_model_of(arguments, arguments.folder)
    labels = label_moves.labels_of(target) if target.config else {}
    return [
        ", ".join(sorted(name for name in labels if labels[name] == number))
        for number in numbers
    ]


def _states(arguments: argparse.Namespace, numbers: Iterable[int]) -> list[str]:
    from . import server_status  # needs the client, other commands do not

    target = served_model_of(arguments, arguments.folder)
    states = server_status.states(arguments.rest, target.name)
    return [states[n].state if n in states else UNKNOWN for n in numbers]


def _manifest_columns(folders: Iterable[pathlib.Path]) -> dict[str, list[str]]:
    """Columns from the manifests, which versions of other tools do not have."""
    rows = [_manifest_row(manifest.read_if_valid(folder) or {}) for folder in folders]
    return {name: [row[i] for row in rows] for i, name in enumerate(MANIFEST_COLUMNS)}


def _file_format(found: manifest.Manifest) -> str:
    """`onnx`, or `onnx int8`."""
    quantized = found.get("quantization", {"type": ""})
    return f"{found['export_format']} {quantized['type']}".rstrip()


def _manifest_row(found: manifest.Manifest) -> tuple[str, ...]:
    try:
        agreement = found["agreement"]
        options = found.get("options", {"precision": _file_format(found)})
        return (
            found["created"][:16].replace("T", " "),
            f"{options['precision']}",
            f"{options.get('target', UNKNOWN)}",
            f"{manifest.size(found) / 1e6:.1f}",
            f"{agreement['max_difference']:.0e}",
            f"{agreement['top1']:.1%}",
        )
    except (AttributeError, LookupError, TypeError, ValueError):  # of another tool
        return (UNKNOWN,) * len(MANIFEST_COLUMNS)
