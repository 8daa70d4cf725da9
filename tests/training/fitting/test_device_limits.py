"""Errors of a step that does not fit the memory, and warnings of slow precisions."""

import dataclasses
import re
import sys

import pytest
import python_process
import tensorflow as tf
from tiny_recipe import CNN_MODEL, CNN_RECIPE, TINY_MODEL, TINY_RECIPE, changed

from training.__main__ import main
from training.architectures.compiling import compile_trainer
from training.architectures.recipe_model import build_model
from training.errors import TrainingError
from training.fitting import device_limits
from training.fitting.device_limits import memory_errors, precision_warning
from training.fitting.fit import fit
from training.recipe import ModelConfig

GIB = 2**30
TI16 = ModelConfig(variant="Ti/16")
# More than a process can address on x86-64 and ARM.
TOO_LARGE = (2**24, 2**24)


def trainer_of(recipe, classes=10):
    names = tuple(map(str, range(classes)))
    model = build_model(recipe.model, names, recipe.precision)
    return compile_trainer(model, recipe, 10, 10)


def problem(free=None, model=TINY_MODEL, trainer=None, **changes):
    """The message of an error with so much free memory."""
    recipe = dataclasses.replace(TINY_RECIPE, model=model, **changes)
    return device_limits._memory_problem(recipe, trainer or trainer_of(recipe), free)


@pytest.fixture(scope="module")
def trainer():
    return trainer_of(TINY_RECIPE)


def test_a_tensor_larger_than_the_memory_is_a_training_error(trainer):
    with (
        pytest.raises(TrainingError, match="`batch_size`.*--accumulation 2") as error,
        memory_errors(TINY_RECIPE, trainer),
    ):
        tf.zeros(TOO_LARGE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.ResourceExhaustedError(None, None, "No space left on device"),
        RuntimeError("another one"),
        KeyError("OOM"),
    ],
)
def test_other_errors_stay(error, trainer):
    with (
        pytest.raises(type(error)) as raised,
        memory_errors(TINY_RECIPE, trainer),
    ):
        raise error
    assert raised.value is error


def test_a_model_too_large_for_the_memory_is_an_error_of_one_line(tmp_path, capsys):
    flags = ("--model.mlp_dim", str(TOO_LARGE[0] ** 2), "--output_dir")
    assert main(["fit", "--recipe", "digits", *flags, str(tmp_path / "run")]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("keras-vit fit: out of memory while a model was made or ")


def test_an_error_of_memory_without_words_is_named(monkeypatch, capsys):
    def run(arguments):
        raise MemoryError

    monkeypatch.setattr("keras_vit.common.commands.find", lambda *_: run)
    assert main(["recipes"]) == 1
    assert "(MemoryError)" in capsys.readouterr().err


LIMITED = """
import resource
import sys
import keras
from test_device_limits import LARGE_STEP
from training.errors import TrainingError
from training.fitting.fit import fit
keras.random.normal((2, 2))  # what the backend maps when it starts
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 5 * 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
import dataclasses
recipe = dataclasses.replace(LARGE_STEP, accumulation=int(sys.argv[2]))
try:
    fit(recipe, sys.argv[1], draw=False)
except TrainingError as error:
    sys.exit(str(error))
"""
# The first MLP's hidden layer has 3.7 GiB, and its backward pass 15.
LARGE_STEP = changed(
    TINY_RECIPE, steps=1, batch_size=1000, model={"mlp_dim": 200_000, "depth": 2}
)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's RLIMIT_AS")
def test_what_the_error_advises_fits(tmp_path):
    """On JAX, which allocates a step at once.

    Inside TensorFlow's kernels a failed allocation may end the process.
    """

    def limited(name, accumulation):
        words = ("-c", LIMITED, tmp_path / name, accumulation)
        return python_process.start(*words, beside=__file__, KERAS_BACKEND="jax")

    failed = limited("whole", 1)
    message = failed.communicate()[1].splitlines()[-1]
    assert failed.returncode == 1
    assert message.startswith("`batch_size` must be small enough for the memory")
    parts = int(re.search(r"--accumulation (\d+)", message)[1])
    assert 1000 % parts == 0
    python_process.printed(limited("divided", parts))


@pytest.fixture(scope="module")
def of_ti16():
    return trainer_of(dataclasses.replace(TINY_RECIPE, model=TI16))


def test_the_estimate_is_of_activations_and_gradients(of_ti16):
    """What Ti/16's 12 blocks keep: 8 N D + A N^2 + 2 N M values of 2 bytes each."""
    n, d, m, heads = 197, 192, 768, 3
    kept = 2560 * 12 * 2 * (8 * n * d + heads * n * n + 2 * n * m) / GIB
    changes = {"batch_size": 2560, "precision": "mixed_bfloat16"}
    text = problem(40 * GIB, TI16, of_ti16, **changes)
    needed = float(re.search(r"about ([\d.]+) GiB of 40.0 GiB", text)[1])
    assert kept < needed < 1.1 * kept
    fitting = int(re.search(r"about (\d+) images at once", text)[1])
    assert needed * fitting / 2560 < 20


def test_without_a_closed_form_half_is_advised():
    trainer = trainer_of(CNN_RECIPE)
    for accumulation in (1, 2, 4, 16, 32):
        text = problem(GIB, CNN_MODEL, trainer, accumulation=accumulation)
        assert f"--accumulation {2 * accumulation} for the same batch" in text
        assert "GiB" not in text


def test_a_single_image_that_does_not_fit_needs_another_remedy(trainer):
    text = problem(0, trainer=trainer, accumulation=64)
    assert "one image may be too much" in text
    assert "--accumulation" not in text
    flags = ("--model.rematerialize true", "--precision mixed_bfloat16")
    assert all(flag in text for flag in (*flags, "--model.lora_rank 8"))


def test_what_a_recipe_uses_is_not_advised_again():
    model = dataclasses.replace(TINY_MODEL, lora_rank=2, rematerialize=True)
    text = problem(GIB, model, precision="mixed_bfloat16")
    for flag in ("lora_rank", "rematerialize", "precision"):
        assert flag not in text


def test_rematerialization_needs_less(of_ti16):
    plain, spare = (
        problem(10 * GIB, model, of_ti16, batch_size=512)
        for model in (TI16, dataclasses.replace(TI16, rematerialize=True))
    )
    needed = [
        float(re.search(r"about ([\d.]+) GiB of", text)[1]) for text in (plain, spare)
    ]
    assert needed[1] < needed[0] / 2


@pytest.mark.parametrize(
    ("precision", "device", "words", "warned"),
    [
        ("mixed_bfloat16", "CPU", "avx2 fma", True),
        ("mixed_bfloat16", "CPU", "avx2 avx512_bf16", False),
        ("mixed_bfloat16", "CPU", "fp asimd bf16", False),
        ("mixed_bfloat16", "CPU", "", False),
        ("mixed_float16", "CPU", "avx2 amx_bf16", True),
        ("float32", "CPU", "avx2", False),
        ("mixed_bfloat16", "Tesla T4", "", True),
        ("mixed_float16", "Tesla T4", "", False),
        ("mixed_bfloat16", "NVIDIA A100-SXM4-40GB", "", False),
        ("mixed_float16", "TPU v4", "", True),
        ("mixed_bfloat16", "an unknown one", "", False),
    ],
)
def test_a_precision_without_units_is_warned_of(
    precision, device, words, warned, monkeypatch
):
    monkeypatch.setattr(device_limits, "_processor_words", lambda: set(words.split()))
    warning = precision_warning(precision, device)
    assert (warning is not None) == warned
    if warned:
        assert f"this {device} has no units for `precision` {precision}" in warning


@pytest.mark.slow
@pytest.mark.usefixtures("eager_test")
def test_fit_warns_once_of_a_slow_precision(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(device_limits, "_processor_words", lambda: {"avx2"})
    recipe = changed(CNN_RECIPE, precision="mixed_bfloat16", steps=1, batch_size=16)
    fit(recipe, tmp_path / "run", draw=False)
    assert capsys.readouterr().err.count("warning: this CPU has no units for") == 1
