"""Count the traces of a training step's forward pass on several replicas.

One case in a process: the all-reduces of two strategies would meet.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import keras
import numpy as np
import tensorflow as tf

from training.engine.optimizer import make_optimizer
from training.engine.tensorflow_trainer import TensorFlowTrainer
from training.recipe import OptimizerConfig


class Counted(keras.layers.Dropout):
    """Dropout that counts how often Python runs it in training."""

    count = 0

    def call(self, inputs, training=False):
        Counted.count += bool(training)
        return super().call(inputs, training)


def traces(replicas: int, jit_compile: bool, accumulation: int) -> int:
    """Train two steps, and count the traces."""
    devices = tf.config.list_logical_devices("CPU")[:replicas]
    strategy = tf.distribute.MirroredStrategy([device.name for device in devices])
    with strategy.scope():
        layers = [keras.Input((3,)), Counted(0.5), keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        trainer = TensorFlowTrainer(model, accumulation=accumulation)
        trainer.compile(
            make_optimizer(OptimizerConfig("sgd"), 0.1, model), jit_compile=jit_compile
        )
    images = np.ones((32, 3), "float32")
    labels = np.eye(2, dtype="float32")[[0, 1] * 16]
    trainer.fit(images, labels, batch_size=16, verbose=0)
    return Counted.count


if __name__ == "__main__":
    case = json.loads(sys.argv[1])
    [cpu] = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * case[0]
    tf.config.set_logical_device_configuration(cpu, logical)
    print(traces(*case))
