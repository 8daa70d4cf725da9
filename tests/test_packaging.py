"""The wheel is the whole product and works anywhere; the sdist is a whole checkout.

The clients are a second, small wheel.
"""

import configparser
import contextlib
import importlib.metadata
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
from client_fakes import CLASSIFY_JSON, FakeServer
from packaging.requirements import Requirement

from demo import digit_png

ROOT = pathlib.Path(__file__).parent.parent
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
# `name[extra,...]`, in a regular expression with escaped brackets; `.[extra,...]`.
NAMED = re.compile(r"(keras[-_]vit[-\w]*|(?<=['\" ])\.)\\?\[(\w[\w ,-]*)\\?\](?!\()")
EXTRAS = re.compile(r"(?:extra `?\[|--extra |EXTRAS=)([\w,-]+)")
OWN = {".", SETUP["metadata"]["name"], "keras-vit-client"}
CLIENT_EXTRAS = {"arrays"}
INSTALLED = re.compile(r"pip install [^\n`;]*?(keras[-_]vit[-\w]*)")
IGNORED = shutil.ignore_patterns(
    ".coverage*",
    *(".git", ".venv*", "runs", "models", "build", "dist", "*.egg-info"),
    *("__pycache__", ".*_cache", ".hypothesis", "_build", "generated"),
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
        if path.is_file() and path.suffix not in (".png", ".pb", ".npz", ".binpb"):
            yield path.relative_to(folder), path.read_text("utf-8")


def test_install_commands_name_this_project(source):
    """Another project owns the name `keras_vit` has on the package index."""
    for path, text in texts(source):
        for name in INSTALLED.findall(text) + [name for name, _ in NAMED.findall(text)]:
            assert name in OWN, f"{path} installs {name}"


def test_every_extra_that_is_named_exists(source):
    extras = set(SETUP["options.extras_require"])
    found = set()
    for path, text in texts(source):
        lists = [names for _, names in NAMED.findall(text)] + EXTRAS.findall(text)
        for name in ",".join(lists).replace(" ", "").split(","):
            assert not name or name in extras | CLIENT_EXTRAS, (
                f"{path} names the extra [{name}]"
            )
            found.add(name)
    assert extras - found == set(), "nothing says what these are for"


def test_no_recipe_or_study_names_a_module():
    """The modules of a checkout have other names in the wheel."""
    for path in (ROOT / "training").rglob("*.yaml"):
        assert "python:" not in path.read_text("utf-8"), path


@pytest.mark.slow
def test_the_wheel_holds_every_package_and_its_data(distributions):
    wheel, _ = distributions
    packed = {
        name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name
    }
    tracked = subprocess.run(
        ["git", "ls-files", "keras_vit", "training", "serving"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    places = (
        re.sub("^(training|serving)/", r"keras_vit/\1/", file)
        for file in tracked
        if file.endswith(
            (".py", ".tsv", ".json", ".yaml", ".binpb", ".html", "py.typed")
        )
    )
    assert packed == set(places)


@pytest.fixture(scope="module")
def scripts(distributions, tmp_path_factory):
    """The folder of executables in a fresh environment that has the wheel."""
    wheel, _ = distributions
    # The dependencies come from this environment: installing TensorFlow again would
    # test the package index, not the wheel.
    environment = tmp_path_factory.mktemp("wheel") / "new_environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel],
        check=True,
    )
    (site,) = environment.glob("lib/python*/site-packages")
    here = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "dependencies.pth").write_text(f"{here}\n")
    return environment / "bin"


def run(folder, *command):
    """The standard output of a command in a folder."""
    elsewhere = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    result = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=elsewhere,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.mark.slow
def test_the_library_works_outside_the_checkout(scripts, tmp_path):
    assert run(tmp_path, scripts / "python", "-c", CODE).strip()


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_users_program_is_clean_in_strict_mode(scripts, tmp_path, checker):
    """The wheel's `py.typed` says that its annotations can be relied on."""
    shutil.copy(ROOT / "tests" / "support" / "users_program.py", tmp_path)
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    flags = {"mypy": "--python-executable", "pyright": "--pythonpath"}
    asked = [sys.executable, "-m", checker, flags[checker], scripts / "python"]
    run(tmp_path, *asked, "users_program.py")


@pytest.mark.slow
def test_the_whole_road_works_outside_the_checkout(scripts, tmp_path):
    command = scripts / "keras-vit"
    assert "digits" in run(tmp_path, command, "recipes")
    run(tmp_path, command, "fit", "--recipe", "digits", "--epochs", "1")
    run(tmp_path, command, "export", "runs/digits/best.keras", "--to", "models/digits")
    (tmp_path / "runs" / "demo").mkdir()
    with contextlib.chdir(tmp_path):
        digit = digit_png()
    model = ["--model_name=digits", f"--model_base_path={tmp_path}/models/digits"]
    ports = ["--port=0", "--rest_api_port=0"]
    with subprocess.Popen(
        [command, "serve", *model, *ports],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            addresses = next(line for line in server.stdout if "REST http" in line)
            rest, grpc = re.findall(r"(http://[\d.:]+|(?<=gRPC )[\d.:]+)", addresses)
            for place in (("--rest", rest), ("--grpc", grpc)):
                asked = [command, "classify", digit, *place, "--model", "digits"]
                assert re.search(r"0\.\d{4}  \d", run(tmp_path, *asked))
        finally:
            server.terminate()


@pytest.mark.slow
def test_a_study_finds_its_tasks_outside_the_checkout(scripts, tmp_path):
    options = ["--small", "--rows=ViT-pretrain", "--epochs=1", "--seed=0"]
    output = run(tmp_path, scripts / "keras-vit", "study", "comparison", *options)
    assert "all runs finished" in output


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


ASK = """
import sys
from keras_vit_client import GrpcClient, RestClient
import httpx2
rest, address = sys.argv[1:]
transport = httpx2.MockTransport(lambda request: httpx2.Response(200, text=rest))
with (
    RestClient("http://server", "tiny_vit", transport=transport) as one,
    GrpcClient(address, "tiny_vit") as other,
):
    assert one.classify([b"1", b"2"]) == other.classify([b"1", b"2"])
    assert other.classify([b"1", b"2"])[0].label == "bee"
    assert other.status()[0].version == 124
    assert "serving_default" in other.metadata().signatures
    try:
        other.predict({"image_bytes": [b"1"]})
    except ModuleNotFoundError as error:
        print(error)
"""


def pinned(name):
    """The requirements of `constraints.txt` for a package."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line[:1].isalpha()]
    return [each for each in requirements if each.name == name]


@pytest.mark.parametrize(
    ("package", "extra"),
    [("tensorflow", "and-cuda"), ("jax", "cuda12"), ("jax", "cuda13")],
)
def test_what_gpus_need_is_pinned(package, extra):
    installed = importlib.metadata.version(package)
    if not any(pin.specifier.contains(installed) for pin in pinned(package)):
        pytest.skip(f"{package} {installed} is not the pinned one")
    needed = [Requirement(text) for text in importlib.metadata.requires(package)]
    plain = [each for each in needed if not _asked_for(each, "")]
    for each in [each for each in plain if _asked_for(each, extra)]:
        versions = [
            specifier.version
            for pin in pinned(each.name)
            if pin.marker is None or pin.marker.evaluate()
            for specifier in pin.specifier
        ]
        assert len(versions) == 1, each
        assert each.specifier.contains(versions[0]), each
    assert any(each.name.startswith(("nvidia", "jax-cuda")) for each in plain)


def _asked_for(requirement, extra):
    marker = requirement.marker
    return marker is None or marker.evaluate({"extra": extra})


@pytest.fixture(scope="module")
def client_environment(source, tmp_path_factory):
    """A fresh environment that has the clients and what they need."""
    folder = tmp_path_factory.mktemp("client")
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-compile"]
    python = ["--python", environment / "bin" / "python"]
    constraints = ["-c", ROOT / "constraints.txt"]
    run(folder, *uv, *python, *constraints, source / "serving" / "client")
    return environment


@pytest.mark.slow
def test_the_clients_take_less_than_30_mb(client_environment):
    files = [path for path in client_environment.glob("lib/**/*") if path.is_file()]
    names = {path.relative_to(client_environment).parts[3] for path in files}
    assert {"keras_vit_client", "grpc", "httpx2"} <= names
    assert sum(path.stat().st_size for path in files) < 30e6


@pytest.mark.slow
def test_the_clients_ask_over_both_transports_without_numpy(client_environment):
    server, address = FakeServer().start()
    python = client_environment / "bin" / "python"
    printed = run(client_environment, python, "-c", ASK, CLASSIFY_JSON, address)
    server.stop(None)
    assert "pip install numpy" in printed
