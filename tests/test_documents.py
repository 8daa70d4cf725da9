"""The README's file tree is the tree: every file, with its own first line."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
ROOMS = ("keras_vit", "training", "serving", "benchmarks", "tests")


def first_line(path):
    return ast.get_docstring(ast.parse(path.read_text("utf-8"))).splitlines()[0]


def expected_lines():
    """`path  comment` for each Python file, folder by folder."""
    paths = [p for room in ROOMS for p in (ROOT / room).rglob("*.py")]
    paths.sort(key=lambda path: (ROOMS.index(path.relative_to(ROOT).parts[0]), path))
    for path in [*paths, ROOT / "demo.py"]:
        if path.read_text("utf-8"):
            yield f"    {path.relative_to(ROOT)!s:<42} {first_line(path)}"


def test_the_readme_lists_every_file_with_its_first_line():
    readme = (ROOT / "README.md").read_text("utf-8").splitlines()
    missing = [line for line in expected_lines() if line not in readme]
    assert missing == [], "put these lines into README.md:\n" + "\n".join(missing)


def test_the_readme_lists_no_file_that_is_gone():
    for line in (ROOT / "README.md").read_text("utf-8").splitlines():
        name = line.strip().split(" ")[0]
        if line.startswith("    ") and name.endswith(".py") and "/" in name:
            assert (ROOT / name).is_file(), name


def test_every_recipe_is_in_the_readme():
    readme = (ROOT / "README.md").read_text("utf-8")
    for path in (ROOT / "training" / "recipes").glob("*.yaml"):
        assert f"training/recipes/{path.name}" in readme
