"""The changes of docs/first_contribution.md apply, touch few files, and pass tests."""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "first_contribution.md").read_text()
DIFFS = ROOT / "docs" / "contributions"
# Files of code that each may touch at most, a measure of the design.
MOST = {"option": 4, "family": 2, "augmentation": 2, "metric": 1, "command": 2}
IGNORED = shutil.ignore_patterns(
    ".coverage*",
    *(".git", ".venv*", "runs", "models", "build", "dist", "*.egg-info"),
    *("__pycache__", ".*_cache", ".hypothesis", "_build", "generated"),
)


def test_every_change_is_on_the_page():
    assert {path.stem for path in DIFFS.iterdir()} == set(MOST)
    assert re.findall(r"{literalinclude} contributions/(\w+)", PAGE) == list(MOST)


def section(name):
    """The part of the page about a change, which ends with it."""
    parts = re.split(r"^## ", PAGE, flags=re.M)
    return next(part for part in parts if f"contributions/{name}.diff" in part)


@pytest.mark.parametrize("name", MOST)
def test_a_change_applies_to_the_files_that_its_table_names(name):
    words = ["git", "apply", "--check", DIFFS / f"{name}.diff"]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    hint = f"write what you have changed into docs/contributions/{name}.diff, too"
    assert result.returncode == 0, f"{result.stderr}: {hint}"
    changed = re.findall(
        r"^diff --git a/(\S+)", (DIFFS / f"{name}.diff").read_text(), re.M
    )
    named = re.findall(r"^\| `(\S+)` \|", section(name), re.M)
    assert sorted(named) == sorted(changed)
    code = [path for path in changed if not path.startswith("tests/")]
    assert len(code) <= MOST[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", MOST)
def test_a_change_passes_its_tests_and_the_linters(name, tmp_path):
    checkout = shutil.copytree(ROOT, tmp_path / "checkout", ignore=IGNORED)
    [lines] = re.findall(r"^```sh\n(.*?)^```", section(name), re.M | re.S)
    lines = lines.replace(".venv/bin/python", sys.executable).splitlines()
    assert lines[0] == f"git apply docs/contributions/{name}.diff"
    assert len(lines) > 1
    ruff = f"{sys.executable} -m ruff"
    for line in [*lines, f"{ruff} check", f"{ruff} format --check"]:
        result = subprocess.run(
            shlex.split(line), cwd=checkout, capture_output=True, text=True
        )
        assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"
