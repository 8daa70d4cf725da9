"""Dependencies between packages and modules, read from the syntax trees."""

import ast
import functools
import graphlib
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ("keras_vit", "training", "serving", "benchmarks")
# Which of the project's packages each one may import absolutely.
ALLOWED = {
    "keras_vit": {"keras_vit"},
    "training": {"keras_vit"},
    "serving": {"keras_vit"},
    "benchmarks": set(PACKAGES),
}


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text("utf-8"))


def imports(path):
    """(module, is relative, is at the top of the file) of every import statement."""
    tree = tree_of(path)
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, False, node in top
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level > 0, node in top


@functools.cache
def files(*parts):
    return sorted((ROOT.joinpath(*parts)).rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_it_may(package):
    for path in files(package):
        for module, relative, _ in imports(path):
            first = module.split(".")[0]
            if not relative and first in PACKAGES:
                assert first in ALLOWED[package], f"{path} imports {module}"


@functools.cache
def modules():
    """Every module of the packages by its dotted name, with its file."""
    named = []
    for package in PACKAGES:
        for path in files(package):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            named.append((name, path))
    return named


def imported_modules(name, path, known):
    """The modules that a module imports, wherever in the file it does."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    tree = tree_of(path)
    types_only = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in types_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            parts = (base if node.level else []) + [node.module or ""]
            source = ".".join(part for part in parts if part)
            for alias in node.names:
                full = f"{source}.{alias.name}"
                yield full if full in known else source


def test_no_module_imports_itself_through_others():
    """Late imports count, too: they only hide a cycle."""
    known = dict(modules())
    graph = {
        name: {m for m in imported_modules(name, path, known) if m in known} - {name}
        for name, path in known.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_the_library_needs_tensorflow_only_in_decoding_and_its_fast_paths():
    """Files of images are its work alone; `decoding` imports their package late."""
    allowed = {"decoding.py", "devices.py", "fusion.py", "dot_product_attention.py"}
    allowed |= {"pixel_range.py", "served_versions.py"}
    for path in files("keras_vit"):
        if path.parent.name == "image_files":
            continue
        for module, _, top in imports(path):
            if module.startswith("keras_vit.image_files"):
                assert path.name == "decoding.py", f"{path} imports {module}"
                assert not top, f"{path} imports {module} at its top"
            if module.split(".")[0] == "tensorflow":
                assert path.name in allowed, f"{path} imports {module}"
                assert not top, f"{path} imports tensorflow at its top"


def test_of_serving_only_the_export_knows_the_library():
    """Others know what the packages share, the clients not even that.

    So the server loads no model's code: `serve` runs TensorFlow without Keras.
    """
    for path in files("serving"):
        folder = path.relative_to(ROOT / "serving").parts[0]
        for module, relative, _ in imports(path):
            ours = not relative and module.split(".")[0] == "keras_vit"
            shared = module.startswith("keras_vit.common")
            may = folder == "export" or (shared and folder != "client")
            assert may or not ours, f"{path} imports {module}"


def test_what_the_packages_share_imports_none_of_them():
    """And nothing that takes long, so that commands can refuse mistakes at once."""
    for path in files("keras_vit", "common"):
        for module, _, _ in imports(path):
            names = module.split(".")
            assert names[0] not in {"keras", "numpy", "tensorflow", *PACKAGES[1:]}
            ours = names[0] != "keras_vit" or names[1] in ("common", "_version")
            assert ours, f"{path} imports {module}"


def part(module):
    """The package or module below one of `PACKAGES` that a dotted name is in."""
    return (module.split(".")[1:] or ["__init__"])[0]


def parts_of(package):
    return {part(name) for name, _ in modules() if name.split(".")[0] == package}


def imports_between_parts(package, importer):
    """(file, imported part, imported module) of what a part imports of its package."""
    known = dict(modules())
    for name, path in known.items():
        if name.split(".")[0] == package and part(name) == importer:
            for module in imported_modules(name, path, known):
                if module.split(".")[0] == package and part(module) != importer:
                    yield path, part(module), module


# Packages and modules of training, each after those that it may import.
TRAINING = (
    *("__init__", "errors", "storage", "cores", "typed_values"),
    *("augmentation_config", "model_config", "recipe", "user_functions"),
    *("recipes", "flags", "data", "engine", "self_supervision", "probe"),
    *("architectures", "tpu", "evaluation", "reporting", "fitting", "studies"),
    *("commands", "__main__"),
)


def test_every_part_of_training_and_serving_has_its_place():
    assert set(TRAINING) == parts_of("training")
    assert set(SERVING) == parts_of("serving")


@pytest.mark.parametrize("importer", TRAINING)
def test_parts_of_training_import_only_those_before_them(importer):
    before = TRAINING[: TRAINING.index(importer)]
    for path, imported, module in imports_between_parts("training", importer):
        assert imported in before, f"{path} imports {module}"


# What each part of serving may import of it, beside the modules that parts share.
SHARED = ("batching_parameters", "http_limits", "usage")
SERVING = {
    **{each: set() for each in ("__init__", "__main__", "client", *SHARED)},
    "client_commands": {"client"},
    "export": {"rollout"},
    "load": {"client", "client_commands", "load_generator"},
    "load_generator": {"client"},
    "local": {"page"},
    "page": {"client_commands"},
    "rollout": {"client"},
}


@pytest.mark.parametrize("importer", SERVING)
def test_parts_of_serving_import_only_what_they_may(importer):
    shared = set(SHARED if importer != "client" else ())
    for path, imported, module in imports_between_parts("serving", importer):
        assert imported in SERVING[importer] | shared, f"{path} imports {module}"


def test_the_library_does_not_import_its_commands():
    for importer in parts_of("keras_vit") - {"commands"}:
        for path, imported, module in imports_between_parts("keras_vit", importer):
            assert imported != "commands", f"{path} imports {module}"


def test_the_clients_import_nothing_above_their_package():
    """They are built as a distribution of their own."""
    for path in files("serving", "client"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom):
                assert node.level < 2, f"{path} imports {'.' * node.level}{node.module}"


def run(*words, **environment):
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "", **environment},
        capture_output=True,
        text=True,
    )


def test_importing_the_library_on_jax_does_not_load_tensorflow():
    code = (
        "import sys; sys.modules['matplotlib'] = sys.modules['sklearn'] = None\n"
        "import keras_vit; sys.exit('tensorflow' in sys.modules)"
    )
    result = run("-c", code, KERAS_BACKEND="jax")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "backend", [pytest.param("torch", marks=pytest.mark.slow), "tensroflow"]
)
def test_any_other_backend_is_refused_at_import(backend):
    """Whether its package is installed or not."""
    result = run("-c", "import keras_vit", KERAS_BACKEND=backend)
    error = result.stderr.splitlines()[-1]
    assert error.startswith("ImportError: Keras's backend must be one of 'tensorflow'")
    assert error.endswith(f"Received: backend={backend!r}")
    assert "KERAS_BACKEND" in error


# What the standard library imports on Windows is not here.
ON_WINDOWS = """
import shutil
import sys
sys.platform = "win32"
"""
COMMAND = """
sys.argv = ["keras-vit", "{}", "--help"]
from keras_vit.common.commands import command_line
command_line()
"""


@pytest.mark.parametrize(
    ("code", "start"),
    [
        ("import keras_vit", "ImportError: "),
        (COMMAND.format("launch"), "keras-vit launch: "),
        (COMMAND.format("serve"), "keras-vit serve: "),
    ],
)
def test_windows_is_refused_with_what_to_install_instead(code, start):
    result = run("-c", ON_WINDOWS + code)
    assert result.returncode
    error = result.stderr.splitlines()[-1]
    assert error.startswith(f"{start}keras-vit runs on Linux and macOS; on Windows,")
    assert "WSL2" in error


@pytest.mark.parametrize(
    ("command", "backend"),
    [
        ("keras_vit convert {model} a.npz", "openvino"),
        ("training fit --recipe digits", "tensroflow"),
        ("serving export {model} --to m", "openvino"),
    ],
)
def test_the_commands_refuse_a_backend_in_one_line(tmp_path, command, backend):
    model = tmp_path / "m.keras"
    model.touch()
    words = command.format(model=model).split()
    result = run("-m", *words, KERAS_BACKEND=backend)
    [line] = result.stderr.splitlines()
    assert f"Received: backend={backend!r}" in line
    assert result.returncode


CRASH = "import os, sys; 'tensorflow' in sys.modules and os._exit(139)"


@pytest.fixture
def stubs(tmp_path):
    """A search path with a PyTorch whose triton crashes as the real one does."""
    for name in ("tensorflow", "torch", "torchvision"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "triton.py").write_text(CRASH)
    tests = ROOT / "tests"
    return os.pathsep.join(map(str, (tmp_path, ROOT, tests, tests / "support")))


SELECT = """
import conftest, types
config = types.SimpleNamespace(getoption=lambda name: "{}")
conftest.pytest_configure(config)
"""


@pytest.mark.parametrize(
    "first", ["import benchmarks.torch_libraries", SELECT.format("slow or parity")]
)
def test_what_loads_pytorch_first_saves_it_from_tensorflow(stubs, first):
    code = f"{first}\nimport tensorflow, torch, triton"
    assert run("-c", code, PYTHONPATH=stubs).returncode == 0


def test_tests_that_compare_with_nothing_do_not_load_pytorch(stubs):
    code = SELECT.format("slow and not parity")
    code += "import sys; assert 'torch' not in sys.modules"
    assert run("-c", code, PYTHONPATH=stubs).returncode == 0


def test_the_tests_use_no_accelerator(stubs, monkeypatch):
    """Where JAX finds a GPU, or libtpu is installed, and nothing else is asked for."""
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    code = "import conftest, os, jax; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    result = run("-c", f"{code}; print(jax.config.jax_platforms)", PYTHONPATH=stubs)
    assert result.stdout.split() == ["-1", "cpu"], result.stderr


@pytest.mark.parametrize("first", ["tensorflow", "torch, tensorflow"])
def test_pytorch_after_tensorflow_is_an_error_not_a_crash(stubs, first):
    code = f"import {first}; from benchmarks import torch_libraries"
    result = run("-c", code, PYTHONPATH=stubs)
    assert result.returncode == 1
    error = result.stderr.splitlines()[-1]
    assert "triton must be imported before TensorFlow" in error


PYTORCH = {"torch", "timm", "transformers"}
TENSORFLOW = {"tensorflow", "keras", "keras_vit", "keras_hub"}
PYTORCH_FIRST = "from benchmarks import torch_libraries"


@pytest.mark.parametrize("path", files("benchmarks"), ids=lambda path: path.name)
def test_a_benchmark_loads_pytorch_before_what_brings_tensorflow(path):
    nodes = ast.walk(tree_of(path))
    statements = [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)]
    statements.sort(key=lambda node: node.lineno)
    texts = [ast.unparse(node) for node in statements]
    packages = [text.split()[1].split(".")[0] for text in texts]
    if path.stem == "torch_libraries" or not PYTORCH & set(packages):
        return
    before = texts.index(PYTORCH_FIRST)
    assert not PYTORCH & set(packages[:before])
    top = [p for p, s in zip(packages, statements, strict=True) if s.col_offset == 0]
    assert not TENSORFLOW & set(top) & set(packages[:before])
