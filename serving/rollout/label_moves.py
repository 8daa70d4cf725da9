"""Move labels between versions without losing a request: load, relabel, unload.

A server accepts a label only for a version that it has loaded, and requests with a
label need its version until the label points elsewhere. Moving a label therefore takes
up to three changes of the model config file, each after the server has followed the
one before:

1. load the version, without moving the label;
2. point the label to it;
3. unload the versions that no label points to.

Without the address of a server, 2 and 3 are one change, and if 1 is needed, nothing
else is done; running the same command again once the version is AVAILABLE does the
rest.

Exactly the versions with a label are served. Three labels have a meaning:

    stable    the version for clients
    canary    the version that is being tried; any other name works too
    previous  the former stable version, kept loaded so that a rollback takes one step

A request without a version or label goes to the newest version that is loaded, which is
the canary while there is one: clients that must not reach it ask for `stable`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tensorflow_serving.config.model_server_config_pb2 import ModelConfig

from keras_vit.common.command_line import CommandError, UsageError

from . import model_config
from .served_model import ServedModel
from .versions import version_folder, versions

STABLE = "stable"
PREVIOUS = "previous"


def check(
    target: ServedModel, label: str | None = None, served_from: str | None = None
) -> None:
    """Check a label and a config file before anything is changed.

    Raises:
        UsageError: The label is invalid, or reserved for `rollback`; `served_from` is
            not absolute.
        CommandError: The file is invalid or contradicts `served_from`; or the server
            does not answer, or cannot have been started with the file.
    """
    if label == PREVIOUS:
        raise UsageError(f"the label {PREVIOUS} is reserved for rollback")
    if label is not None and not re.fullmatch("[^/:]+", label):
        raise UsageError(f"a label must not contain / or :. Received: {label!r}")
    if not target.config.parent.is_dir():
        raise CommandError(f"{target.config}: there is no such folder")
    model = model_config.entry(model_config.read(target.config), target.name)
    if served_from and not served_from.startswith("/"):
        raise UsageError(f"--served_from must begin with /. Received: {served_from}")
    if model and served_from and model.base_path != served_from:
        raise CommandError(
            f"{target.config}: {target.name} is served from {model.base_path}. "
            f"Received: --served_from {served_from}"
        )
    if target.rest:
        from . import server_status  # needs the client, other commands do not

        if not target.config.exists():
            raise CommandError(
                f"{target.config}: no such file: the server at {target.rest} cannot "
                "have been started with it"
            )
        server_status.states(target.rest, target.name)


def labels_of(target: ServedModel) -> dict[str, int]:
    """Version numbers by label, from the config file."""
    model = model_config.entry(model_config.read(target.config), target.name)
    return dict(model.version_labels) if model else {}


def add(
    target: ServedModel, version: int, label: str | None, served_from: str | None
) -> None:
    """Add a version to the config file, and give it a label.

    Args:
        label: Its label; without one, the entry's policy decides whether it is served.
        served_from: Path of the folder on the server; default: its absolute path.

    Raises:
        CommandError: There is no such version, the file cannot be changed, or the
            server cannot load the version or did not follow in time.
    """
    check(target, label, served_from)
    version_folder(target.folder, version)
    with _undone_on_failure(target):
        with model_config.changing(target.config) as config:
            model = model_config.entry(config, target.name)
            is_new = model is None
            if model is None:
                base_path = served_from or str(target.folder.absolute())
                model = model_config.add_entry(config, target.name, base_path)
            serves = model_config.served(model, versions(target.folder))
            first_label = label and not model.version_labels
            is_here = model.base_path == str(target.folder.absolute())
        if label:
            _move(target, label, version)
        elif version not in serves:
            print(f"version {version} is not served until it gets a label")
    if (is_new or first_label) and is_here and not target.rest:
        print(f"to serve it: {target.serve_command(has_labels=bool(label))}")


def _move(target: ServedModel, label: str, version: int) -> None:
    """Point a label to a version of a model that has an entry."""
    labels = labels_of(target)
    moved = {label: version}
    others = [number for number in versions(target.folder) if number != version]
    if not labels and label != STABLE and others:
        # The first label: clients know the version that was served without one.
        moved[STABLE] = others[-1]
    before = labels.get(STABLE, version)
    if label == STABLE and before != version:
        moved[PREVIOUS] = before
    if all(labels.get(name) == number for name, number in moved.items()):
        print(f"{target.name}: {label} is version {version} already")
        return
    _change(target, {**labels, **moved})


def roll_back(target: ServedModel) -> None:
    """Point every label of the stable version to the previously stable one.

    Raises:
        CommandError: There is none, or the server did not follow in time.
    """
    labels = labels_of(target)
    check(target)
    if STABLE not in labels or PREVIOUS not in labels:
        raise CommandError(
            f"{target.config}: {target.name} has no label {PREVIOUS} to go back to; "
            "`promote --version N` makes any version stable"
        )
    bad, good = labels[STABLE], labels.pop(PREVIOUS)
    version_folder(target.folder, good)
    moved = {name: good if n == bad else n for name, n in labels.items()}
    with _undone_on_failure(target):
        _change(target, moved)


def _change(target: ServedModel, labels: dict[str, int]) -> None:
    """Give the model these labels, step by step."""
    with _entry(target) as model:
        before = dict(model.version_labels)
        serves = set(model_config.served(model, versions(target.folder)))
        moved = {name: n for name, n in labels.items() if before.get(name) != n}
        missing = set(moved.values()) - serves
        # A server may accept a new label before its version is loaded; see docker/.
        late = [name for name in moved if name in before and moved[name] in missing]
        if late or (missing and target.rest):
            model_config.serve(model, serves | missing)
    if target.rest:
        _follow(target, labels, moved)
    elif late:
        print(
            f"{target.name}: version {moved[late[0]]} is being loaded. Once "
            "`keras-vit status` shows it AVAILABLE, move the label:\n"
            f"  {target.command(moved[late[0]], late[0])}"
        )
        return
    with _entry(target) as model:
        _set_labels(model, labels)
        model_config.serve(model, set(labels.values()))
    shown = ", ".join(f"{name} is version {labels[name]}" for name in sorted(labels))
    print(f"{target.name}: {shown}")


def _follow(target: ServedModel, labels: dict[str, int], moved: dict[str, int]) -> None:
    """Wait until a server has loaded the versions, then until it has the labels."""
    from . import server_status

    for version in sorted(set(moved.values())):
        server_status.wait_available(str(target.rest), target.name, version)
    with _entry(target) as model:
        _set_labels(model, labels)
    for label, version in moved.items():
        server_status.wait_points(str(target.rest), target.name, label, version)


@contextmanager
def _undone_on_failure(target: ServedModel) -> Iterator[None]:
    """Restore the model's entry if the block fails.

    Until the last change of a move, the old versions are still served, so that a server
    can return from each of them.
    """
    before = model_config.entry(model_config.read(target.config), target.name)
    try:
        yield
    except BaseException:  # an interrupt too, since moves wait for minutes
        with model_config.changing(target.config) as config:
            model_config.put_entry(config, target.name, before)
        raise


@contextmanager
def _entry(target: ServedModel) -> Iterator[ModelConfig]:
    with model_config.changing(target.config) as config:
        model = model_config.entry(config, target.name)
        if model is None:
            there = ", ".join(m.name for m in config.model_config_list.config) or "none"
            raise CommandError(
                f"{target.config}: has no model {target.name}. There are: {there}"
            )
        yield model


def _set_labels(model: ModelConfig, labels: dict[str, int]) -> None:
    model.version_labels.clear()
    model.version_labels.update(labels)
