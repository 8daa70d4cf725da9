"""Count the traces of the forward passes on several replicas.

Each case is counted in a fork: the all-reduces of two strategies would meet.
"""

import json
import multiprocessing
import sys
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parents[2]))

import keras
import numpy as np
import tensorflow as tf

from training.engine.forward_pass import ForwardPass
from training.engine.optimizer import make_optimizer
from training.engine.tensorflow_trainer import TensorFlowTrainer
from training.recipe import OptimizerConfig


class Counted(keras.layers.Dropout):
    """Dropout that counts how often Python runs it, in evaluation and in training."""

    counts: ClassVar[list[int]] = [0, 0]

    def call(self, inputs, training=False):
        Counted.counts[bool(training)] += 1
        return super().call(inputs, training)


def traces(replicas: int, jit_compile: bool, accumulation: int) -> list[list[int]]:
    """Evaluate, compute outputs, train two steps, and count the traces of each."""
    [cpu] = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, logical)
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
    counts = []
    for compute in (
        lambda: trainer.evaluate(images, labels, batch_size=16, verbose=0),
        lambda: ForwardPass(model, strategy, batch_size=16)(images),
        lambda: trainer.fit(images, labels, batch_size=16, verbose=0),
    ):
        Counted.counts = [0, 0]
        compute()
        counts.append(Counted.counts)
    return counts


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        cases = json.loads(sys.argv[1])
        print(json.dumps(pool.starmap(traces, cases, chunksize=1)))
