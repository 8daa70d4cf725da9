"""Distributed datasets: what is copied to a device before its step begins."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from training.engine.datasets import _distributed
from training.engine.tensorflow_trainer import TensorFlowTrainer


def batches(shard):
    random = np.random.default_rng(1)
    images = random.normal(size=(15, 3)).astype("float32")
    labels = np.eye(2, dtype="float32")[[0, 1, 0] * 5]
    arrays = {"images": images}, labels
    return tf.data.Dataset.from_tensor_slices(arrays).batch(3, drop_remainder=True)


@pytest.fixture
def with_a_gpu(monkeypatch):
    """The CPU counts as a GPU too, to which the batches are copied."""
    devices = tf.config.list_logical_devices
    monkeypatch.setattr(
        tf.config,
        "list_logical_devices",
        lambda kind=None: devices("CPU" if kind == "GPU" else kind),
    )


def trained(data):
    keras.utils.set_random_seed(1)
    images = keras.Input((3,), name="images")
    model = keras.Model({"images": images}, keras.layers.Dense(2)(images))
    trainer = TensorFlowTrainer(model)
    trainer.compile(keras.optimizers.SGD(0.1))
    trainer.fit(data, steps_per_epoch=7, epochs=2, verbose=0)
    return model.get_weights()


def test_one_gpu_gets_two_batches_ahead(with_a_gpu):
    data = _distributed(tf.distribute.get_strategy(), batches)
    assert int(data._buffer_size) == 2
    assert type(data._input_dataset).__name__ == "_CopyToDeviceDataset"


def test_a_cpu_gets_no_copies():
    data = _distributed(tf.distribute.get_strategy(), batches)
    assert "repeat" in type(data).__name__.lower()


def test_batches_that_are_copied_ahead_train_the_same(with_a_gpu, monkeypatch):
    copied = trained(_distributed(tf.distribute.get_strategy(), batches))
    monkeypatch.undo()
    plain = trained(_distributed(tf.distribute.get_strategy(), batches))
    np.testing.assert_equal(copied, plain)
