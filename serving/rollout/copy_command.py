"""`keras-vit copy`: copy versions to another disk or server, complete or not at all.

`cp` and `rsync` write into the folder that a server watches, and TensorFlow Serving
serves a version as soon as its `saved_model.pb` is there.
"""

import argparse
import pathlib
from collections.abc import Callable

from keras_vit.common.activity import activity
from keras_vit.common.command_line import CommandError, Parser, UsageError, complain
from keras_vit.common.file_names import MANIFEST

from ..usage import version_number
from . import manifest
from .served_model import local_folder
from .versions import check_base_path, is_number, staged_version, version_folders

CHUNK = 1 << 22  # bytes between two reports

Report = Callable[[str], None]


def main(argv: list[str]) -> int:
    """Run `keras-vit copy`; 1 if a version of a model's folder could not be copied.

    Raises:
        CommandError: Nothing could be copied.
    """
    arguments = _parser().parse_args(argv)
    copies = _copies(arguments)
    check_base_path(arguments.target)
    failed = False
    with activity("keras-vit copy", redraw=False) as become:
        for source, number in copies:
            try:
                result = copy_version(source, arguments.target, number, become)
                print(result, flush=True)
            except CommandError as error:
                if len(copies) == 1:
                    raise
                complain("copy", error)
                failed = True
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="keras-vit copy",
        description="Copy a version, or all versions of a model's folder, into another "
        "model's folder. A version appears there once it is complete and equals the "
        "checksums in its manifest; one that is there already is left alone.",
    )
    parser.add_argument(
        "source",
        type=local_folder,
        metavar="FROM",
        help="a version, such as models/vit/3, or a model's folder, such as models/vit",
    )
    parser.add_argument(
        "target",
        type=local_folder,
        metavar="TO",
        help="the model's folder to copy into, such as /mnt/models/vit",
    )
    parser.add_argument(
        "--version",
        type=version_number,
        metavar="N",
        help="the number of a single version there; default: the same",
    )
    return parser


def _copies(arguments: argparse.Namespace) -> list[tuple[pathlib.Path, int]]:
    """The versions to copy and their numbers there.

    The newest comes first: a server that watches the folder loads it and no other.
    """
    source, target = arguments.source, arguments.target
    name = target.absolute().name
    if is_number(name):
        raise UsageError(
            f"TO must be a model's folder, which holds the versions, such as "
            f"{target.parent}. Received: {target}"
        )
    if not source.is_dir():
        raise CommandError(f"{source}: no such folder")
    name = source.absolute().name
    if is_number(name):
        return [(source, arguments.version or int(name))]
    if arguments.version is not None:
        raise UsageError(
            "--version needs a single version as FROM, such as "
            f"{source / '3'}. Received: {source}"
        )
    folders = version_folders(source)
    if not folders:
        raise CommandError(f"{source}: has no versions")
    return [(folders[number], number) for number in reversed(folders)]


def copy_version(
    source: pathlib.Path, base_path: pathlib.Path, number: int, report: Report
) -> str:
    """Copy a version into a model's folder, where it appears complete or not at all.

    Returns:
        What was done, in a line.

    Raises:
        CommandError: The source or the copy contradicts the manifest, the number is in
            use for other contents, or the disk fails. Nothing is left.
    """
    there = version_folders(base_path).get(number)
    target = there or base_path / str(number)
    try:
        report(f"verifying {source}")
        found = _verified(source)
        if there:
            report(f"verifying {there}")
            if reason := _differences(there, found):
                raise CommandError(
                    f"{there}: has other contents than {source}: {reason}. A version "
                    "never changes, since servers do not read it again: remove this "
                    "one first, or give the copy another number with --version"
                )
            return f"{there}: is there already, with the same contents"
        _check_format(found, base_path)
        with staged_version(base_path, number) as (staging, _):
            _copy_files(found, source, staging, report)
            report(f"verifying the copy of {source}")
            if reason := _differences(staging, found):
                raise CommandError(
                    f"{source}: has changed while it was copied: {reason}"
                )
    except OSError as error:
        message = f"{target}: not copied from {source}: {error.strerror or error}"
        raise CommandError(message) from None
    return f"{target}: copied from {source}, {_megabytes(manifest.size(found))}"


def _verified(folder: pathlib.Path) -> manifest.Manifest:
    """The manifest of a version, which its files agree with."""
    found = manifest.read_if_valid(folder)
    if found is None:
        raise CommandError(
            f"{folder}: has no readable {MANIFEST}, so that nothing tells whether "
            "the version is complete; `keras-vit export` writes one"
        )
    if damage := manifest.differences(folder, found):
        raise CommandError(f"{folder}: contradicts its manifest: {_listed(damage)}")
    return found


def _differences(folder: pathlib.Path, found: manifest.Manifest) -> str:
    """How a version differs from one with this manifest; empty if it does not."""
    damage = manifest.differences(folder, found)
    if manifest.read_if_valid(folder) != found:
        damage.append(f"{MANIFEST}: changed")
    return _listed(damage)


def _listed(damage: list[str]) -> str:
    more = f"; {len(damage) - 3} more" if len(damage) > 3 else ""
    return "; ".join(damage[:3]) + more


def _check_format(found: manifest.Manifest, base_path: pathlib.Path) -> None:
    """Check that the versions of a folder will be of one format."""
    for folder in version_folders(base_path).values():
        other = manifest.read_if_valid(folder)
        if other and other.get("export_format") != found.get("export_format"):
            raise CommandError(
                f"{folder}: is {other.get('export_format')}; all versions of a folder "
                f"must be of one format. Received: {found.get('export_format')}"
            )


def _copy_files(
    found: manifest.Manifest,
    source: pathlib.Path,
    target: pathlib.Path,
    report: Report,
) -> None:
    done, size = 0, manifest.size(found)
    for name in (*found["files"], MANIFEST):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with (source / name).open("rb") as reading, path.open("wb") as writing:
            while block := reading.read(CHUNK):
                writing.write(block)
                done += len(block)
                report(f"copying {source}: {_megabytes(done)} of {_megabytes(size)}")


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
