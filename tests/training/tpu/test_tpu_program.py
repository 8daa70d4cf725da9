"""The training step on JAX, lowered for TPUs and GPUs on virtual CPU devices."""

import itertools
import json

import pytest
import python_process

COUNTS = (1, 4, 8)

START = """
import dataclasses, json
import jax, keras
import numpy as np
from keras.distribution import DeviceMesh, LayoutMap
from jax_program import lowered_step
from benchmarks.lowering import KERNELS, assume_cudnn
from keras_vit.layers import dot_product_attention as attention
from training.engine.jax_strategy import make_jax_strategy
from training.tpu.tpu_check import make_trainer
from training.tpu.tpu_program import lower_train_step
from training.recipe import DataConfig, ModelConfig, Recipe

assume_cudnn()
devices = keras.distribution.list_devices()
sizes = dict(patch_size=4, width=16, depth=1, mlp_dim=16, heads=2)
whole = dict(pooling="avg", class_token=False)  # the last block attends to all, too

def recipe(image_size, **changes):
    return Recipe(
        batch_size=16,
        precision="mixed_bfloat16",
        model=ModelConfig(variant=None, **sizes, **whole, image_size=image_size),
        data=DataConfig("digits"),
        **changes,
    )
"""

LOWER = """
for platform, strategy, count in {ways}:
    step = recipe((128, 132), strategy=strategy)  # 32 x 33 patches
    lowered = lower_train_step(step, make_trainer, devices[:count], platform)
    found = KERNELS[platform].search(lowered.as_text()) is not None
    print(json.dumps([platform, strategy, count, found]))
"""

OF_FIT = """
import tensorflow as tf
for strategy in ("auto", "fsdp"):
    step = recipe((8, 8), strategy=strategy)
    lowered = lower_train_step(step, make_trainer, devices, "cpu")
    with make_jax_strategy(step).scope():
        trainer = make_trainer(step)
    images, labels = np.zeros((16, 8, 8, 3), "uint8"), np.eye(10, dtype="float32")
    batch = images, labels[np.zeros(16, int)]
    data = tf.data.Dataset.from_tensors(batch)
    step = lowered_step(lambda: trainer.fit(data, verbose=0))
    keras.distribution.set_distribution(None)
    print(json.dumps([strategy, step.as_text() == lowered.as_text()]))
"""

SPLASH = """
random = np.random.default_rng(3)
tensors = [random.normal(size=(4, 130, 2, 8)).astype("float32") for _ in range(3)]
wanted = attention.whole(*tensors)
meshes = {"images": ((4,), ["batch"]), "images and heads": ((2, 2), ["batch", "model"])}
for name, (shape, axes) in meshes.items():
    layouts = LayoutMap(DeviceMesh(shape, axes, devices[:4]))
    divided = keras.distribution.ModelParallel(layout_map=layouts)
    seen = []
    inner = attention._splash_on_one_device

    def recording(query, key, value, interpret):
        seen.append(query.shape)
        return inner(query, key, value, interpret)

    attention._splash_on_one_device = recording
    with divided.scope():
        run = jax.jit(lambda *each: attention.splash(*each, interpret=True))
        difference = float(abs(run(*tensors) - wanted).max())
        three = jax.ShapeDtypeStruct((3, 130, 2, 8), "float32")
        symbolic = jax.eval_shape(run, three, three, three)
    attention._splash_on_one_device = inner
    print(json.dumps([name, seen[0], difference, symbolic.shape]))
"""


COMPILE = """
from jax_program import collectives
from training.tpu.tpu_check import Target

chips = Target("v5e:2x2").devices
for strategy in ("auto", "fsdp"):
    step = recipe((128, 132), strategy=strategy)
    text = lower_train_step(step, make_trainer, chips, "tpu").compile().as_text()
    kinds = sorted({kind for kind, size, in_loop in collectives(text)})
    print(json.dumps([strategy, text.count('"tpu_custom_call"'), kinds]))
"""


def lines_of(script, optimized=False):
    """What a script prints on JAX with eight devices, each line as JSON."""
    variables = python_process.on("jax", COUNTS[-1], optimized)
    lines = python_process.run("-c", START + script, **variables).splitlines()
    return [json.loads(line) for line in lines]


WAYS = [*itertools.product(("tpu", "gpu"), ("auto", "fsdp"), COUNTS)]
FEW = [("tpu", "auto", 1), ("tpu", "auto", 4), ("tpu", "fsdp", 8), ("gpu", "auto", 8)]


@pytest.mark.slow
def test_long_sequences_lower_to_flash_attention_and_a_program_is_that_of_fit():
    """XLA cannot divide a kernel among devices by itself, and says so here."""
    found = lines_of(LOWER.format(ways=FEW) + OF_FIT)
    assert found == [*([*way, True] for way in FEW), ["auto", True], ["fsdp", True]]


@pytest.mark.slow
def test_long_sequences_lower_to_flash_attention_on_any_number_of_devices():
    ways = [way for way in WAYS if way not in FEW]
    assert lines_of(LOWER.format(ways=ways)) == [[*way, True] for way in ways]


@pytest.mark.slow
def test_divided_splash_attention_equals_whole_attention():
    """Each device computes its images alone, and its heads where an axis is left."""
    for name, seen, difference, symbolic in lines_of(SPLASH):
        heads = {"images": 2, "images and heads": 1}[name]
        assert seen == [1 if heads == 2 else 2, 130, heads, 8]
        assert difference < 1e-5
        assert symbolic == [3, 130, 2, 8]


@pytest.mark.slow
def test_the_tpu_compiler_divides_a_step_with_flash_attention():
    """The chips exchange gradients, and with `fsdp` weights, but no images."""
    pytest.importorskip("libtpu")
    [auto, fsdp] = lines_of(COMPILE, optimized=True)
    assert auto == ["auto", 3, ["all-reduce"]]  # forward, keys and values, queries
    assert fsdp[:2] == ["fsdp", 3]
    assert "all-gather" in fsdp[2]
