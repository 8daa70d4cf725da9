"""The figures of a step, packed in a graph and unpacked outside of it."""

import numpy as np
import tensorflow as tf

from training.engine.figure_vector import FigureVector


def test_figures_are_unpacked_as_they_were_packed_in_a_graph():
    figures = {
        "loss": np.float32(0.25),
        "recall": np.array([0.5, 0.75, 1.0], "float32"),
        "confusion": np.arange(10, dtype="float32").reshape(2, 5),
        "stop": np.int32(1),
    }
    vector = FigureVector()
    packed = tf.function(vector.pack)(figures)
    assert packed.shape == (1 + 3 + 10 + 1,)
    unpacked = vector.unpack(packed)
    assert list(unpacked) == list(figures)
    for name, value in figures.items():
        np.testing.assert_array_equal(unpacked[name], value)
        assert unpacked[name].shape == value.shape
        assert unpacked[name].dtype == np.float32
