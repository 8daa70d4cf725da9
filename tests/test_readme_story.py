"""The README's story runs as it stands there: weights, fit, save, convert, timm."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
needs_timm = pytest.mark.skipif(
    importlib.util.find_spec("timm") is None, reason="timm is not installed"
)


def blocks():
    """Its commands and Python blocks, in their order."""
    readme = (ROOT / "README.md").read_text("utf-8")
    story = readme.split("### A story, with a synthetic file\n")[1].split("\n## ")[0]
    code, command = r"```python\n(?P<code>.*?)```", r"^    (?P<command>python [^#\n]*)"
    return list(re.finditer(f"{code}|{command}", story, re.DOTALL | re.MULTILINE))


@pytest.mark.parity
@pytest.mark.slow
@needs_timm
def test_the_story_ends_with_the_same_logits_in_timm(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert [bool(block["code"]) for block in blocks()] == [False, True, False, True]
    for block in blocks():
        if block["code"]:
            # As the tests of parity do, for a torchvision that lacks its operators.
            code = "from benchmarks import torch_libraries\n" + block["code"]
            command = [sys.executable, "-c", code]
        else:
            command = [sys.executable, *block["command"].split()[1:]]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
