"""How often signatures say `Any`, read from the syntax trees.

What a tensor, an image or a path is has a name in `keras_vit/typing.py`. `Any` is for
what Keras, TensorFlow and JSON leave open: the numbers here may become smaller only.
"""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
ALIASES = ROOT / "keras_vit" / "typing.py"
COUNTED = {
    "keras_vit": 229,
    "training": 127,
    "serving": 255,
    "benchmarks": 94,
}


def count_any(tree):
    """The names `Any` in a tree, annotations that are quoted as a whole included."""
    count = 0
    for node in ast.walk(tree):
        count += isinstance(node, ast.Name) and node.id == "Any"
        for field in ("annotation", "returns"):
            match getattr(node, field, None):
                case ast.Constant(value=str(text)):
                    count += count_any(ast.parse(text))
    return count


@pytest.mark.parametrize("package", COUNTED)
def test_any_is_as_rare_as_it_was(package):
    files = [path for path in (ROOT / package).rglob("*.py") if path != ALIASES]
    found = {
        str(path.relative_to(ROOT)): count_any(ast.parse(path.read_text("utf-8")))
        for path in files
    }
    most = sorted(found, key=found.get, reverse=True)[:5]
    assert sum(found.values()) <= COUNTED[package], {name: found[name] for name in most}


def test_any_is_found_wherever_an_annotation_has_it():
    text = """
from typing import Any
x: Any = 1
def f(a: Any, *b: "list[Any]", **c: Any) -> "Any": ...
y: TypeAlias = dict[str, Any]
z = "Any"
"""
    assert count_any(ast.parse(text)) == 6
