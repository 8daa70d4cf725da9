"""Two replicas compute what one device computes."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parent.parent

# Logical devices must be made before TensorFlow starts, hence the process.
TRAIN = """
import json, sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)

import keras
import numpy as np
from training.data import load_splits, steps_per_epoch, training_batches
from training.model import build_model, compile_trainer
from training.recipe import *
from training.strategy import make_strategy

recipe = Recipe(
    seed=1, epochs=2, batch_size=250,
    model=ModelConfig(
        variant=None, patch_size=4, width=12, depth=2, mlp_dim=16, heads=3,
        image_size=8, channels=1,
    ),
    data=DataConfig("digits"),
    augmentation=AugmentationConfig(shift=1),
    optimizer=OptimizerConfig("sgd", learning_rate=0.1),
    schedule=ScheduleConfig("cosine", warmup_epochs=1),
)
splits = load_splits(recipe.data, 1)
steps = steps_per_epoch(splits.train, recipe.batch_size)
results = {}

class Losses(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        results[name]["losses"].append(float(logs["loss"]))

for name in ("one_device", "mirrored"):
    keras.utils.set_random_seed(recipe.seed)
    strategy = make_strategy(name)
    results[name] = {"replicas": strategy.num_replicas_in_sync, "losses": []}
    with strategy.scope():
        model = build_model(recipe.model, splits.class_names)
        trainer = compile_trainer(model, recipe, steps)
    batches = training_batches(splits.train, recipe, model.preprocessing)
    trainer.fit(batches, epochs=2, steps_per_epoch=steps, verbose=0,
                callbacks=[Losses()])
    results[name]["weights"] = [w.numpy().tolist() for w in model.trainable_weights]
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results():
    result = subprocess.run(
        [sys.executable, "-c", TRAIN], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_there_are_two_replicas(results):
    assert results["one_device"]["replicas"] == 1
    assert results["mirrored"]["replicas"] == 2


def test_the_losses_are_equal(results):
    one, two = (results[name]["losses"] for name in ("one_device", "mirrored"))
    assert len(one) == 10
    assert one[-1] < one[0]
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_the_weights_are_equal(results):
    one, two = (results[name]["weights"] for name in ("one_device", "mirrored"))
    for ours, theirs in zip(one, two, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
