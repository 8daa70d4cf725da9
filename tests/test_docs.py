"""The Python blocks and commands of README.md and docs/ run as they are written.

A comment before a block, `<!-- not run: REASON -->`, excepts it: its flags are checked
all the same. `<!-- run: parity -->` and `<!-- run: tests/docker -->` name the tests
that run it instead.
"""

import contextlib
import importlib
import importlib.util
import inspect
import io
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from typing import NamedTuple

import numpy as np
import pytest
from few_formats import few_formats

import keras_vit
from demo import digit_png
from keras_vit.common.commands import COMMANDS

ROOT = pathlib.Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(DOCS.glob("*.md")),
    *sorted((DOCS / "experiments").glob("*.md")),
]
# Flags that make a command short, and sizes that make a block short.
SHORTER = {
    "keras-vit fit": "--epochs 1 --model.depth 1",
    "keras-vit compare": "--epochs 1",
    "keras-vit load": "--clients 2 --duration 1 --warmup 0.1",
}
SMALLER = {
    "(160, 224)": "(32, 48)",
    "(320, 448)": "(64, 96)",
    "dropout=0.1": "dropout=0.1, depth=2",
    "epochs=10": "epochs=1",
}


class Block(NamedTuple):
    """One fenced block, the page it is on, and the comment before it."""

    page: pathlib.Path
    language: str
    marker: str
    code: str


def blocks(language, marker=None, pages=PAGES):
    """All blocks of a language, or those with a marker ("" for none)."""
    fence = (
        r"(?:<!-- (?P<marker>[^\n]*) -->\n+)?^```(?P<language>\w+)\n(?P<code>.*?)^```"
    )
    return [
        Block(page, match["language"], match["marker"] or "", match["code"])
        for page in pages
        for match in re.finditer(fence, page.read_text("utf-8"), re.M | re.S)
        if match["language"] == language
        and (marker is None or (match["marker"] or "") == marker)
    ]


def commands(marker=None, pages=PAGES):
    """Every command line, once, with its continuation lines joined."""
    lines = []
    for block in blocks("sh", marker, pages):
        whole = re.sub(r"\\\n\s*|(?<=\|)\n\s*", " ", block.code)
        lines += [line.strip() for line in whole.splitlines()]
    return list(dict.fromkeys(line for line in lines if line))


def own_commands():
    """(command, whole line) of each `keras-vit COMMAND`."""
    for line in commands():
        match = re.match(r"(?:\w+=\S+ )?keras-vit ([\w-]+)", line)
        if match:
            yield match[1], line


def mentioned_commands():
    """(command, text) of each `keras-vit COMMAND` or `COMMAND --flag` in a sentence."""
    names = {name for commands in COMMANDS.values() for name in commands}
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
        for code in re.findall(r"`([^`]+)`", text):
            code = " ".join(code.split())
            match = re.match(r"(keras-vit )?([a-z][\w-]*)", code)
            if match and (match[1] or (match[2] in names and " --" in code)):
                yield match[2], code


@pytest.fixture(scope="module")
def help_text():
    """The help of a command with all its flags, from memory the second time."""
    texts = {}

    def printed(*arguments):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), pytest.raises(SystemExit):
            run_command(arguments)
        return output.getvalue()

    def text(command):
        if command not in texts:
            texts[command] = printed(command, "--help")
            if "--help_all" in texts[command]:
                texts[command] = printed(command, "--help_all")
        return texts[command]

    return text


def test_pages_have_commands_of_every_package():
    used = {name for name, _ in own_commands()}
    assert all(used & set(names) for names in COMMANDS.values())
    assert len(list(own_commands())) > 30


@pytest.mark.parametrize(
    ("command", "line"),
    list(own_commands()),
    ids=lambda value: value if " " not in value else "",
)
def test_flags_in_the_documentation_exist(command, line, help_text):
    own = line.split(" -- ")[0]
    for flag in re.findall(r"(?<=\s)--([\w.]+(?:-[\w.]+)*)", own):
        assert re.search(rf"--{re.escape(flag)}\b", help_text(command)), (
            f"{line}: no flag --{flag}"
        )


def test_commands_in_the_text_exist_with_their_flags(help_text):
    mentions = dict.fromkeys(mentioned_commands())
    assert len(mentions) > 30
    for command, code in mentions:
        assert any(command in names for names in COMMANDS.values()), code
        test_flags_in_the_documentation_exist(command, code, help_text)


def test_make_targets_in_the_documentation_exist():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = {m for line in commands() for m in re.findall(r"^make ([\w-]+)", line)}
    assert "demo" in targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_readme_is_short():
    assert (ROOT / "README.md").stat().st_size <= 8192


def test_the_tables_of_options_have_every_argument(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    page = importlib.import_module("option_tables").page()
    tables = dict(part.split("\n\n", 1) for part in page.split("### ")[1:])
    for model, table in tables.items():
        lines = [re.split(r" (?<!\\)\| ", row) for row in table.splitlines()[2:]]
        found = {line[0].strip("|` "): line[2].strip("`") for line in lines if line[0]}
        constructor = getattr(keras_vit, model)
        arguments = dict(inspect.signature(constructor.__init__).parameters)
        del arguments["self"]
        assert set(found) == set(arguments)
        for name, argument in arguments.items():
            required = argument.default is inspect.Parameter.empty
            expected = "required" if required else str(argument.default)
            assert found[name].strip('"') == expected, name
    assert "generated/options.md" in (DOCS / "models.md").read_text("utf-8")


@pytest.mark.slow
def test_the_drawing_of_the_packages_has_a_box_for_each(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    drawn = importlib.import_module("package_drawing").PACKAGES
    for package, (_, boxes) in drawn.items():
        names = {name for box in boxes for name in box.split(", ")}
        folders = {p.parent.name for p in (ROOT / package).glob("*/__init__.py")}
        modules = {path.stem for path in (ROOT / package).glob("*.py")}
        assert folders <= names <= folders | modules, package


def test_links_between_pages_lead_to_files():
    for page in [*PAGES, *(DOCS / "reference").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            generated = "generated/" in link
            assert generated or (page.parent / link).exists(), f"{page}: {link}"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder with what `make demo` leaves, trained for one epoch, and its server."""
    from serving.local import LocalServer

    folder = tmp_path_factory.mktemp("docs")
    with few_formats():  # the page's images are PNG
        for line in PREPARATION:
            run(folder, line)
    shutil.copytree(folder / "runs" / "digits", folder / "runs" / "demo")
    with contextlib.chdir(folder):
        digit_png()
    model = {"digits": str(folder / "models" / "digits")}
    with LocalServer(model, rest_port=0, grpc_port=0) as server:
        yield folder, server


def run(folder, line):
    """Run a command in a folder: Python's in this process, which has TensorFlow."""
    for start, flags in SHORTER.items():
        if line.startswith(start):
            line = f"{line} {flags}"
    match = re.fullmatch(r"keras-vit ([^|$<>;]+)", line)
    if match is None:
        shell(folder, line)
        return
    with contextlib.chdir(folder):
        assert run_command(shlex.split(match[1])) in (None, 0), line


def run_command(arguments):
    """Run a command in the checkout's packages, whose modules other tests share."""
    [package] = [p for p, names in COMMANDS.items() if arguments[0] in names]
    name = {"keras_vit": "keras_vit.commands"}.get(package, f"{package}.__main__")
    return importlib.import_module(name).main(arguments)


def shell(folder, line):
    """Run a command of a page as a user would, in another folder."""
    scripts = pathlib.Path(sys.executable).parent
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{scripts}:{os.environ['PATH']}",
    }
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"


def at_server(text, server):
    text = text.replace("http://127.0.0.1:8501", server.rest_url)
    return text.replace("127.0.0.1:8500", server.grpc_address)


# Commands that `demo` runs; those of other lines are the same for another run.
PREPARATION = (
    "keras-vit fit --recipe digits",
    "keras-vit export runs/digits/best.keras --to models/digits",
)


def runnable():
    """The commands that `demo` has not run."""
    lines = {line.replace("runs/demo/", "runs/digits/"): line for line in commands("")}
    for usual, line in lines.items():
        # What installs or serves is run by `make` and by the tests of the server.
        own = re.match(r"make |source |pip |keras-vit serve ", line)
        if not own and usual not in PREPARATION:
            yield line


@pytest.mark.slow
@pytest.mark.parametrize("line", runnable(), ids=str)
def test_commands_of_the_documentation_run(line, demo):
    folder, server = demo
    run(folder, at_server(line, server))


def python_of(page):
    return [b.code for b in blocks("python", marker="") if b.page == page]


# A page with the blocks of another one (getting started has the README's) runs once.
PYTHON_PAGES = {
    tuple(codes): page for page in reversed(PAGES) if (codes := python_of(page))
}


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON_PAGES.values(), ids=lambda page: page.name)
def test_python_of_the_documentation_runs(page, demo, monkeypatch):
    """One page after the other; a model warns of pixels in the wrong range."""
    folder, server = demo
    monkeypatch.chdir(folder)
    random = np.random.default_rng(0)
    names = {
        "images": random.integers(0, 256, (4, 32, 48, 3), "uint8"),
        "labels": np.array([3, 1, 0, 4]),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for code in python_of(page):
            for large, small in SMALLER.items():
                code = code.replace(large, small)
            exec(at_server(code, server), names)


needs_timm = pytest.mark.skipif(
    importlib.util.find_spec("timm") is None, reason="timm is not installed"
)


@pytest.mark.parity
@pytest.mark.slow
@needs_timm
def test_the_weights_example_ends_with_the_same_logits_in_timm(tmp_path):
    text = (ROOT / "docs" / "weights.md").read_text("utf-8")
    example = re.findall(r"<!-- run: parity -->\n```(\w+)\n(.*?)```", text, re.DOTALL)
    assert [language for language, _ in example] == ["python", "sh", "python"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for language, code in example:
        if language == "sh":
            shell(tmp_path, code.strip())
            continue
        # As the tests of parity do, for a torchvision that lacks its operators.
        code = "from benchmarks import torch_libraries\n" + code
        subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True
        )
