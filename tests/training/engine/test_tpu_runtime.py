"""What TensorFlow finds in the environment on a TPU VM."""

import contextlib
import importlib.machinery
import importlib.util
import os

import pytest
import tensorflow as tf
from training_commands import find, parse

from training.engine import tpu_runtime
from training.engine.strategy import make_strategy
from training.errors import RecipeError, TrainingError
from training.recipe import DataConfig, Recipe

C_API, LIBRARY = "NEXT_PLUGGABLE_DEVICE_USE_C_API", "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"
LOAD = "TPU_LOAD_LIBRARY"


@pytest.fixture
def libtpu(tmp_path, monkeypatch):
    """The file of an installed package `libtpu`."""
    for name in (C_API, LIBRARY, LOAD):
        monkeypatch.setenv(name, "")  # so that what a command sets is undone
        monkeypatch.delenv(name)
    package = importlib.machinery.ModuleSpec("libtpu", None, is_package=True)
    package.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: package)
    file = tmp_path / "libtpu.so"
    file.touch()
    return file


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that gives this machine PCI devices of a vendor."""

    def show(chip, vendor="0x1ae0"):
        monkeypatch.setattr(tpu_runtime, "DEVICES", tmp_path / "devices")
        for number, values in enumerate([("0x8086", "0x0063"), (vendor, chip)]):
            folder = tmp_path / "devices" / f"0000:00:0{number}.0"
            folder.mkdir(parents=True, exist_ok=True)
            for name, value in zip(("vendor", "device"), values, strict=True):
                (folder / name).write_text(f"{value}\n")

    return show


def fit_flags(*more):
    flags = ("--recipe", "digits", "--strategy", "tpu", "--output_dir", "runs/none")
    return parse("fit", [*flags, *more])


@pytest.mark.parametrize("chip", ["0x0062", "0x0063", "0x006f"])
def test_fit_sets_the_plugin_of_v5p_v5e_and_v6e(machine, libtpu, monkeypatch, chip):
    machine(chip)
    find("training", "fit").check(fit_flags("--tpu", "local"))
    assert os.environ[C_API] == "true"
    assert os.environ[LIBRARY] == str(libtpu)
    assert LOAD not in os.environ


@pytest.mark.parametrize("chip", ["0x0027", "0x005e"])
def test_earlier_tpus_get_no_plugin(machine, libtpu, chip):
    machine(chip)
    find("training", "fit").check(fit_flags("--tpu", "local"))
    assert not {C_API, LIBRARY, LOAD} & set(os.environ)


@pytest.mark.parametrize("chip", ["0x005e", "0x0063"])
def test_the_command_of_a_slice_leaves_the_chips_to_the_servers(machine, libtpu, chip):
    machine(chip)
    find("training", "fit").check(fit_flags("--tpu", "my-slice"))
    assert os.environ[LOAD] == "0"


def test_nothing_is_set_without_a_tpu_or_for_another_strategy(machine, libtpu):
    machine("0x0063", vendor="0x10de")
    find("training", "fit").check(fit_flags("--tpu", "local"))
    machine("0x0063")
    find("training", "fit").check(fit_flags("--strategy", "mirrored"))
    assert not {C_API, LIBRARY, LOAD} & set(os.environ)


def test_resume_sets_the_same(machine, libtpu, tmp_path):
    machine("0x0063")
    recipe = Recipe(data=DataConfig("digits"), strategy="tpu", tpu="local")
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    find("training", "resume").check(parse("resume", [str(tmp_path)]))
    assert os.environ[LIBRARY] == str(libtpu)


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "model.keras"),
        ("predict", "--model", "model.keras", "image.png"),
        ("probe", "model.keras", "--data.source", "digits"),
        ("compare", "digits", "--output_dir", "{folder}"),
        ("study", "axial", "--small", "--output_dir", "{folder}"),
    ],
    ids=lambda words: words[0],
)
def test_every_command_with_a_strategy_sets_them(machine, libtpu, tmp_path, words):
    """Before the files are looked for, which are not there."""
    machine("0x0063")
    command, *arguments = (word.format(folder=tmp_path) for word in words)
    tpu = ["--strategy", "tpu", "--tpu", "local"]
    with contextlib.suppress(TrainingError):
        find("training", command).check(parse(command, [*arguments, *tpu]))
    assert os.environ[LIBRARY] == str(libtpu)


@pytest.mark.parametrize(
    ("tpu", "name", "value", "wanted"),
    [
        ("local", C_API, None, "true"),
        ("local", C_API, "false", "true"),
        ("local", LIBRARY, None, "/libtpu.so"),
        ("local", LIBRARY, "/nowhere/libtpu.so", "/libtpu.so"),
        ("my-slice", LOAD, None, "0"),
    ],
)
def test_make_strategy_demands_them_before_it_asks_for_the_tpu(
    machine, libtpu, monkeypatch, tpu, name, value, wanted
):
    machine("0x0063")
    values = {C_API: "true", LIBRARY: str(libtpu), LOAD: "0", name: value}
    for key, text in values.items():
        if text is not None:
            monkeypatch.setenv(key, text)
    asked = []
    resolvers = tf.distribute.cluster_resolver
    monkeypatch.setattr(resolvers, "TPUClusterResolver", asked.append)
    recipe = Recipe(data=DataConfig("digits"), strategy="tpu", tpu=tpu)
    with pytest.raises(RecipeError, match=rf"{name} must be .*{wanted}") as error:
        make_strategy(recipe)
    assert f"TPU v5e and `tpu` {tpu}. Received: {value!r}" in str(error.value)
    assert "\n" not in str(error.value)
    assert not asked


def test_a_library_of_the_users_own_is_kept(machine, libtpu, monkeypatch, tmp_path):
    machine("0x006f")
    other = tmp_path / "other.so"
    other.touch()
    monkeypatch.setenv(LIBRARY, str(other))
    find("training", "fit").check(fit_flags("--tpu", "local"))
    assert os.environ[LIBRARY] == str(other)


def test_a_missing_library_is_an_error_before_tensorflow_fails(machine, libtpu):
    machine("0x006f")
    libtpu.unlink()
    with pytest.raises(RecipeError, match=rf"{LIBRARY} must be {libtpu}"):
        find("training", "fit").check(fit_flags("--tpu", "local"))
