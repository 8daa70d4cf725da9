"""`deterministic`: what is switched, what is refused, and that data stay the same."""

import dataclasses
import os

import keras
import numpy as np
import pytest
import python_process
import tensorflow as tf
from image_splits import noise_split
from tensorflow.python.framework import config
from tiny_recipe import CNN_MODEL, CNN_RECIPE, TINY_RECIPE, changed

from keras_vit import devices
from training.architectures.compiling import compiles
from training.architectures.recipe_model import build_model
from training.data.pipeline import training_batches
from training.engine import strategy
from training.engine.determinism import (
    XLA_FLAG,
    ask_for_determinism,
    check_deterministic,
    deterministic_operations,
)
from training.errors import RecipeError
from training.fitting.fit import fit
from training.fitting.notices import _print_uncompiled as print_uncompiled

CHOSEN = changed(TINY_RECIPE, deterministic=False)


@pytest.fixture(scope="module")
def pooling():
    return build_model(dataclasses.replace(CNN_MODEL, depth=2), ("a", "b"))


@pytest.fixture(scope="module")
def vit():
    return build_model(TINY_RECIPE.model, ("a", "b"))


@pytest.fixture
def on_gpus(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])


class Switch(keras.callbacks.Callback):
    """Records whether TensorFlow's operations are deterministic in a step."""

    def on_train_batch_end(self, batch, logs=None):
        self.on = config.is_op_determinism_enabled()


@pytest.mark.parametrize(
    ("before", "deterministic"),
    [
        pytest.param(True, False, marks=pytest.mark.slow),
        (False, True),
        pytest.param(True, True, marks=pytest.mark.slow),
        pytest.param(False, False, marks=pytest.mark.slow),
    ],
)
def test_operations_are_as_the_recipe_says_while_it_runs(
    tmp_path, before, deterministic, eager_test
):
    recipe = changed(CNN_RECIPE, steps=1, batch_size=16, deterministic=deterministic)
    switch = Switch()
    with deterministic_operations(changed(recipe, deterministic=before)):
        fit(recipe, tmp_path / "run", callbacks=[switch], draw=False)
        assert config.is_op_determinism_enabled() == before
    assert switch.on == deterministic
    assert not config.is_op_determinism_enabled()


def test_on_a_tpu_nothing_is_switched():
    with deterministic_operations(changed(TINY_RECIPE, strategy="tpu")):
        assert not config.is_op_determinism_enabled()


@pytest.mark.slow
def test_order_and_augmentation_do_not_depend_on_it(vit):
    augmentation = {"shift": 1, "flip": True, "mixup": 0.5}
    recipe = changed(TINY_RECIPE, batch_size=6, augmentation=augmentation)

    def batches(value):
        chosen = changed(recipe, deterministic=value)
        with deterministic_operations(chosen):
            data = training_batches(
                noise_split(23, channels=1), chosen, vit.preprocessing
            )
            return list(data.take(7).as_numpy_iterator())

    ours = batches(True)
    for theirs in (batches(True), batches(False)):
        np.testing.assert_equal(theirs, ours)


# Max pooling.


def test_xla_has_no_deterministic_gradient_of_max_pooling():
    """As long as this holds, such models are not compiled."""

    @tf.function(jit_compile=True)
    def gradient(images):
        pooled = tf.nn.max_pool2d(images, 2, 2, "VALID")
        return tf.gradients(pooled, images)

    images = tf.ones((1, 4, 4, 1))
    with (
        deterministic_operations(TINY_RECIPE),
        pytest.raises(tf.errors.OpError) as error,
    ):
        gradient(images)
    assert "deterministic" in str(error.value)
    assert gradient(images)[0].shape == images.shape


def test_max_pooling_is_compiled_where_bits_may_differ(pooling, vit, on_gpus):
    assert compiles(TINY_RECIPE, vit)
    assert not compiles(TINY_RECIPE, pooling)
    assert compiles(CHOSEN, pooling)


def test_max_pooling_cannot_be_compiled_and_deterministic(pooling, vit):
    on = changed(TINY_RECIPE, jit_compile="on")
    check_deterministic(on, vit)
    check_deterministic(TINY_RECIPE, pooling)
    check_deterministic(changed(CHOSEN, jit_compile="on"), pooling)
    with pytest.raises(RecipeError, match="`deterministic` must be false.*max pooling"):
        check_deterministic(on, pooling)


def test_a_run_that_is_not_compiled_says_so(pooling, vit, on_gpus, capsys):
    print_uncompiled(TINY_RECIPE, vit)
    print_uncompiled(CHOSEN, pooling)
    assert not capsys.readouterr().out
    print_uncompiled(TINY_RECIPE, pooling)
    assert "--deterministic false compiles it" in capsys.readouterr().out


# JAX.


@pytest.fixture
def on_jax(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.delenv("XLA_FLAGS", raising=False)


@pytest.mark.parametrize(
    "flags", ["", f"{XLA_FLAG}=false", f"{XLA_FLAG}=true x={XLA_FLAG}=0"]
)
def test_jax_that_has_started_without_the_flag_is_refused(
    on_jax, monkeypatch, vit, flags
):
    monkeypatch.setenv("XLA_FLAGS", flags)
    check_deterministic(TINY_RECIPE, vit)  # on a CPU
    with devices.making_graphs_for("gpu"):
        check_deterministic(CHOSEN, vit)
        with pytest.raises(RecipeError, match=f"XLA_FLAGS have {XLA_FLAG}=true"):
            check_deterministic(TINY_RECIPE, vit)


@pytest.mark.parametrize(
    "flags", [XLA_FLAG, f"--xla_a=b {XLA_FLAG}=true", f"{XLA_FLAG}=1"]
)
def test_jax_with_the_flag_is_deterministic(on_jax, monkeypatch, vit, pooling, flags):
    monkeypatch.setenv("XLA_FLAGS", flags)
    ask_for_determinism(TINY_RECIPE)
    assert os.environ["XLA_FLAGS"] == flags
    with devices.making_graphs_for("gpu"):
        check_deterministic(TINY_RECIPE, vit)
        with pytest.raises(RecipeError, match="max pooling"):
            check_deterministic(TINY_RECIPE, pooling)


def test_jax_is_asked_before_it_starts(on_jax, monkeypatch):
    calls = []
    for name in ("ask_for_determinism", "make_jax_strategy"):
        monkeypatch.setattr(
            strategy, name, lambda *args, name=name: calls.append((name, args[0]))
        )
    strategy.open_strategy(TINY_RECIPE)
    assert calls == [
        ("ask_for_determinism", TINY_RECIPE),
        ("make_jax_strategy", TINY_RECIPE),
    ]


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_evaluation_asks_for_the_run_that_follows(
    on_jax, monkeypatch, deterministic
):
    asked = []
    monkeypatch.setattr(strategy, "ask_for_determinism", asked.append)
    monkeypatch.setattr(strategy, "make_jax_strategy", lambda *args: None)
    strategy.evaluation_strategy("auto", None, deterministic)
    assert [recipe.deterministic for recipe in asked] == [deterministic]


OPTIONS = """
import sys
import jax
import keras
from tiny_recipe import TINY_RECIPE
from training.engine.determinism import ask_for_determinism
if sys.argv[1] == "late":
    jax.devices()
if sys.argv[1] != "never":
    ask_for_determinism(TINY_RECIPE)
jax.jit(lambda x: x + 1)(1.0)
from jax._src.compiler import get_compile_options
print(get_compile_options(1, 1).SerializeAsString().hex())
"""


def compile_options(when, flags=""):
    """JAX's options of the compiler in a new process."""
    variables = {"KERAS_BACKEND": "jax", "XLA_FLAGS": flags}
    return python_process.run("-c", OPTIONS, when, **variables).split()[-1]


@pytest.mark.slow
def test_jax_gets_the_flag_only_before_it_starts():
    asked, set_before = compile_options("early"), compile_options("never", XLA_FLAG)
    late, never = compile_options("late"), compile_options("never")
    assert asked == set_before != never == late
