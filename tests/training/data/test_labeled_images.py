"""Where the images that a pipeline reads are kept: in the host's memory."""

import pytest
import python_process

# CPU:1 stands for the first GPU, where TensorFlow puts a tensor unless it is told.
PIPELINES = """
import gc
import tensorflow as tf

LARGE = 200  # an image has 11 x 13 elements
[cpu] = tf.config.list_physical_devices("CPU")
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)

from keras_vit import ImagePreprocessing
from training.data import pipeline, splits
from training.recipe import DataConfig, Recipe

with tf.device("CPU:1"):
    data = DataConfig("digits", validation=0.2)
    parts = splits.load_splits(data, 1)
    preprocessing = ImagePreprocessing((11, 13))
    recipe = Recipe(data=data, batch_size=32)
    fitted = pipeline.in_memory(parts.validation, preprocessing)
    kept = [
        pipeline.training_batches(parts.train, recipe, preprocessing),
        pipeline.evaluation_batches(fitted, 32, preprocessing),
    ]
    other = tf.constant([1, 2])

large = [
    tensor.device[-5:]
    for tensor in gc.get_objects()
    if isinstance(tensor, type(other)) and tensor.shape.num_elements() > LARGE
]
print(len(large), *sorted(set(large)), other.device[-5:])
"""


@pytest.mark.slow
def test_pipelines_keep_nothing_large_on_another_device():
    count, *devices = python_process.run("-c", PIPELINES).split()
    assert int(count) >= 4  # pixels and labels of both parts
    assert devices == ["CPU:0", "CPU:1"]
