"""The wheel holds keras_vit alone and works anywhere; the sdist is a whole checkout."""

import configparser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
# `name[extra,...]`, in a regular expression with escaped brackets; `.[extra,...]`.
NAMED = re.compile(r"(keras[-_]vit[-\w]*|(?<=['\" ])\.)\\?\[(\w[\w ,-]*)\\?\](?!\()")
EXTRAS = re.compile(r"(?:extra `?\[|--extra |EXTRAS=)([\w,-]+)")
INSTALLED = re.compile(r"pip install [^\n`;]*?(keras[-_]vit[-\w]*)")
IGNORED = shutil.ignore_patterns(
    ".git",
    ".venv*",
    "runs",
    "models",
    "build",
    "dist",
    "*.egg-info",
    "__pycache__",
    ".*_cache",
    ".hypothesis",
    "_build",
    "generated",
)
CODE = """
import keras, keras_vit, numpy as np
assert "new_environment" in keras_vit.__file__, keras_vit.__file__
model = keras_vit.VisionTransformer.from_variant("mu/16", image_size=32)
model.save("model.keras")
model = keras.models.load_model("model.keras")
scores = model.predict(np.zeros((1, 32, 32, 3)), verbose=0)
print(keras_vit.decode_predictions(scores, top=1)[0][0][1])
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the checkout, so that building leaves nothing in it."""
    return shutil.copytree(
        ROOT, tmp_path_factory.mktemp("packaging") / "source", ignore=IGNORED
    )


@pytest.fixture(scope="module")
def distributions(source):
    """(wheel, sdist), the wheel built from the sdist."""
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", source.parent, source],
        check=True,
        capture_output=True,
    )
    return next(source.parent.glob("*.whl")), next(source.parent.glob("*.tar.gz"))


def texts(folder):
    """(path, text) of every file of the checkout that is text."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix not in (".png", ".pb", ".npz"):
            yield path.relative_to(folder), path.read_text("utf-8")


def test_install_commands_name_this_project(source):
    """Another project owns the name `keras_vit` has on the package index."""
    for path, text in texts(source):
        for name in INSTALLED.findall(text) + [name for name, _ in NAMED.findall(text)]:
            assert name in (".", SETUP["metadata"]["name"]), f"{path} installs {name}"


def test_every_extra_that_is_named_exists(source):
    extras = set(SETUP["options.extras_require"])
    found = set()
    for path, text in texts(source):
        lists = [names for _, names in NAMED.findall(text)] + EXTRAS.findall(text)
        for name in ",".join(lists).replace(" ", "").split(","):
            assert not name or name in extras, f"{path} names the extra [{name}]"
            found.add(name)
    assert extras - found == set(), "nothing says what these are for"


@pytest.mark.slow
def test_the_wheel_holds_the_library_alone(distributions):
    wheel, _ = distributions
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name.split("/")[0] for name in names}
    folders = {name for name in packages if not name.endswith(".dist-info")}
    assert folders == {"keras_vit"}
    assert "keras_vit/imagenet2012_labels.tsv" in names
    assert "keras_vit/weights/published.tsv" in names
    assert "keras_vit/py.typed" in names


@pytest.mark.slow
def test_the_wheel_works_in_a_fresh_environment_elsewhere(distributions, tmp_path):
    wheel, _ = distributions
    # The dependencies come from this environment: installing TensorFlow again would
    # test the package index, not the wheel.
    environment = tmp_path / "new_environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel],
        check=True,
    )
    (site,) = environment.glob("lib/python*/site-packages")
    here = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "dependencies.pth").write_text(f"{here}\n")
    elsewhere = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    result = subprocess.run(
        [python, "-c", CODE],
        cwd=tmp_path,
        env=elsewhere,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


@pytest.mark.slow
def test_the_sdist_is_a_whole_checkout(source, distributions):
    _, sdist = distributions
    with tarfile.open(sdist) as archive:
        packed = {name.split("/", 1)[-1] for name in archive.getnames()}
    files = {
        str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()
    }
    left_out = {f for f in files - packed if ".egg-info" not in f}
    assert left_out == set()
