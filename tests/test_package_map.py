"""The map and the drawing of the packages in docs/design.md are those of the tree."""

import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture
def package_drawing(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("package_drawing")


@pytest.mark.parametrize("package", ["keras_vit", "training", "serving"])
def test_the_map_has_a_sentence_for_every_folder_and_module(package, package_drawing):
    [section] = re.findall(
        rf"^### `{package}/`\n(.*?)(?=^###|\Z)", package_drawing.page(), re.M | re.S
    )
    rows = dict(re.findall(r"^\| `(\S+)` \| (.+) \|$", section, re.M))
    folders = {f"{p.parent.name}/" for p in (ROOT / package).glob("*/__init__.py")}
    modules = {path.name for path in (ROOT / package).glob("[!_]*.py")}
    assert set(rows) == folders | modules
    assert all(sentence.endswith(".") for sentence in rows.values())


def test_every_import_between_folders_of_training_has_a_way_of_arrows(package_drawing):
    arrows = package_drawing.edges()
    assert ("training.engine", "training.data") in arrows
    assert ("training.commands", "training.data") not in arrows  # others imply it
    reached = set(arrows)
    for _ in range(20):
        reached |= {(a, d) for a, b in reached for c, d in arrows if b == c}
    folders = {p.parent.name for p in (ROOT / "training").glob("*/__init__.py")}
    for path in (ROOT / "training").glob("*/*.py"):
        source = path.parent.name
        for target in re.findall(r"^from \.\.(\w+)", path.read_text(), re.M):
            if target in folders:
                assert (f"training.{source}", f"training.{target}") in reached, path
