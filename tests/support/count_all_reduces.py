"""Count the all-reduces of a training step on two replicas, in a process of its own.

    python tests/support/count_all_reduces.py "[[STEPS, BYTES], ...]"

They are those of one call of the train function, with STEPS steps and with packs of
BYTES. Prints JSON for each pair, which a fork of this process counts: the all-reduces
of the first replica, the sums on the host, and a metric's result.
"""

import json
import multiprocessing
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[2]))

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from training.engine import tensorflow_trainer
from training.engine.optimizer import make_optimizer
from training.recipe import OptimizerConfig


class Updates(keras.metrics.Metric):
    """The number of updates: of all replicas, of their mean, and of the first one."""

    def __init__(self):
        super().__init__(name="updates")
        for aggregation in ("sum", "mean", "only_first_replica"):
            self.add_variable((), "zeros", aggregation=aggregation, name=aggregation)

    def update_state(self, *_):
        for variable in self.variables:
            variable.assign_add(1.0)

    def result(self):
        return keras.ops.stack([variable.value for variable in self.variables])


def count(steps: int, size: int) -> list:
    """Run a step, and return what it did."""
    tensorflow_trainer.PACKS = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=size
    )
    [cpu] = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, logical)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layers = [keras.Input((300,)), *[keras.layers.Dense(300) for _ in range(3)]]
        model = keras.Sequential([*layers, keras.layers.Dense(2)])
        trainer = tensorflow_trainer.TensorFlowTrainer(model)
        trainer.compile(
            make_optimizer(OptimizerConfig("sgd"), 0.1, model),
            metrics=("accuracy", Updates()),
            steps_per_execution=steps,
        )
    rows = np.ones((64, 300), "float32"), np.eye(2, dtype="float32")[[0, 1] * 32]
    data = tf.data.Dataset.from_tensor_slices(rows).batch(16, drop_remainder=True)
    trainer.make_train_function()
    iterator = iter(strategy.experimental_distribute_dataset(data))
    context.context().enable_run_metadata()
    figures = trainer.train_function(iterator)
    graphs = context.context().export_run_metadata().partition_graphs
    bodies = [function for graph in graphs for function in graph.library.function]
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for body in bodies for node in body.node_def]
    on_first = [node.op for node in nodes if node.device.endswith("CPU:0")]
    counts = [on_first.count(name) for name in ("CollectiveReduceV2", "AddN")]
    return [*counts, figures["updates"].tolist()]


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        cases = json.loads(sys.argv[1])
        print(json.dumps(pool.starmap(count, cases, chunksize=1)))
