"""Moves labels between versions without a lost request: load, point, then unload.

A server takes a label only for a version that it has loaded, and a request of a label
needs its version until the label points elsewhere. Moving one is therefore up to three
changes of the model config file, each made once the server is seen to have followed:

1. the version is served, the label stays where it is;
2. the label points to it;
3. what no label points to is served no more.

Without the address of a server to look at, 2 and 3 are one change, and where 1 is
needed it is all that is done; the same command, given again once the version is
AVAILABLE, does the rest.

What is served is what has a label. Three labels have a meaning:

    stable    what clients ask for
    canary    what is being tried; any other name does as well
    previous  what was stable before, kept loaded so that going back takes one step

A request without a version or label goes to the newest version that is loaded, and that
is the canary while there is one: clients that must not meet it ask for `stable`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ExportError
from . import model_config
from .served_model import Target
from .versions import version_folder, versions

STABLE = "stable"
PREVIOUS = "previous"


def check(
    target: Target, label: str | None = None, served_from: str | None = None
) -> None:
    """Refuses a label or a config file that cannot be used, before anything is done.

    Args:
        target: The model.
        label: The label that is asked for.
        served_from: The folder as the server sees it.

    Raises:
        ExportError: The file is none, or says otherwise; the label is kept for
            `rollback`; or the server cannot be asked, or cannot know the file.
    """
    if label == PREVIOUS:
        raise ExportError(f"the label {PREVIOUS} is what rollback goes back to")
    if label is not None and not re.fullmatch("[^/:]+", label):
        raise ExportError(f"a label has no / and no :. Received: {label!r}")
    if not target.config.parent.is_dir():
        raise ExportError(f"{target.config}: there is no such folder")
    model = model_config.entry(model_config.read(target.config), target.name)
    if served_from and not served_from.startswith("/"):
        raise ExportError(f"--served-from must begin with /. Received: {served_from}")
    if model and served_from and model.base_path != served_from:
        raise ExportError(
            f"{target.config}: {target.name} is served from {model.base_path}. "
            f"Received: --served-from {served_from}"
        )
    if target.rest:
        from . import (
            server_status,  # the client is needed by those who name a server only
        )

        if not target.config.exists():
            raise ExportError(
                f"{target.config}: no such file: the server at {target.rest} cannot "
                "have been started with it"
            )
        server_status.states(target.rest, target.name)


def labels_of(target: Target) -> dict[str, int]:
    """Version numbers by label, as the config file has them."""
    model = model_config.entry(model_config.read(target.config), target.name)
    return dict(model.version_labels) if model else {}


def add(
    target: Target, version: int, label: str | None, served_from: str | None
) -> None:
    """Puts a version into the config file, with a label or as the policy has it.

    Args:
        target: The model; it gets an entry if it has none.
        version: The version.
        label: Its label. Without one it is served if the policy says so.
        served_from: The folder as the server sees it; default: its absolute path.

    Raises:
        ExportError: There is no such version, the file cannot be changed, or the server
            cannot load the version or did not follow in time.
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


def _move(target: Target, label: str, version: int) -> None:
    """Points a label to a version of a model that has an entry."""
    labels = labels_of(target)
    moved = {label: version}
    others = [number for number in versions(target.folder) if number != version]
    if not labels and label != STABLE and others:
        # The first label. What was served without one is what clients know.
        moved[STABLE] = others[-1]
    before = labels.get(STABLE, version)
    if label == STABLE and before != version:
        moved[PREVIOUS] = before
    if all(labels.get(name) == number for name, number in moved.items()):
        print(f"{target.name}: {label} is version {version} already")
        return
    _change(target, {**labels, **moved})


def roll_back(target: Target) -> None:
    """Points every label of the stable version to the one that was stable before.

    Raises:
        ExportError: There is none, or the server did not follow in time.
    """
    labels = labels_of(target)
    check(target)
    if STABLE not in labels or PREVIOUS not in labels:
        raise ExportError(
            f"{target.config}: {target.name} has no label {PREVIOUS} to go back to; "
            "`promote --version N` makes any version stable"
        )
    bad, good = labels[STABLE], labels.pop(PREVIOUS)
    version_folder(target.folder, good)
    moved = {name: good if n == bad else n for name, n in labels.items()}
    with _undone_on_failure(target):
        _change(target, moved)


def _change(target: Target, labels: dict[str, int]) -> None:
    """Gives the model these labels, step by step."""
    with _entry(target) as model:
        before = dict(model.version_labels)
        serves = set(model_config.served(model, versions(target.folder)))
        moved = {name: n for name, n in labels.items() if before.get(name) != n}
        missing = set(moved.values()) - serves
        # A label that is new may be taken before its version is loaded; see docker/.
        late = [name for name in moved if name in before and moved[name] in missing]
        if late or (missing and target.rest):
            model_config.serve(model, serves | missing)
    if target.rest:
        _follow(target, labels, moved)
    elif late:
        print(
            f"{target.name}: version {moved[late[0]]} is being loaded. Once `python -m "
            "serving status` shows it AVAILABLE, move the label:\n"
            f"  {target.command(moved[late[0]], late[0])}"
        )
        return
    with _entry(target) as model:
        _set_labels(model, labels)
        model_config.serve(model, set(labels.values()))
    shown = ", ".join(f"{name} is version {labels[name]}" for name in sorted(labels))
    print(f"{target.name}: {shown}")


def _follow(target: Target, labels: dict[str, int], moved: dict[str, int]) -> None:
    """Waits until a server has loaded the versions, then until it has the labels."""
    from . import server_status  # the client is needed by those who name a server only

    for version in sorted(set(moved.values())):
        server_status.wait_available(str(target.rest), target.name, version)
    with _entry(target) as model:
        _set_labels(model, labels)
    for label, version in moved.items():
        server_status.wait_points(str(target.rest), target.name, label, version)


@contextmanager
def _undone_on_failure(target: Target) -> Iterator[None]:
    """Gives the model the entry back that it had, should the block fail.

    Until the last change of a move, what was served before still is: a server can go
    back from each of them.
    """
    before = model_config.entry(model_config.read(target.config), target.name)
    try:
        yield
    except BaseException:  # an interrupt too: moves wait for minutes
        with model_config.changing(target.config) as config:
            model_config.put_entry(config, target.name, before)
        raise


@contextmanager
def _entry(target: Target) -> Iterator[model_config.ModelConfig]:
    with model_config.changing(target.config) as config:
        model = model_config.entry(config, target.name)
        if model is None:
            there = ", ".join(m.name for m in config.model_config_list.config) or "none"
            raise ExportError(
                f"{target.config}: has no model {target.name}. There are: {there}"
            )
        yield model


def _set_labels(model: model_config.ModelConfig, labels: dict[str, int]) -> None:
    model.version_labels.clear()
    model.version_labels.update(labels)
