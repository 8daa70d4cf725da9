"""Fixtures of all tests: a tiny model whose sizes all differ, TensorFlow's settings."""

import gc
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from benchmarks import torch_libraries  # noqa: F401  isort: skip  before TensorFlow

import numpy as np
import pytest

TINY = {
    "image_size": (22, 14),
    "patch_size": 2,
    "width": 15,
    "depth": 2,
    "mlp_dim": 23,
    "heads": 5,
    "classes": 7,
}


def pytest_collection_finish():
    """Leave what is imported out of each garbage collection: a fifth of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)


@pytest.fixture(autouse=True)
def without_determinism():
    """Undo `fit`'s deterministic operations: tests share a process."""
    yield
    if "tensorflow" in sys.modules:
        from tensorflow.python.framework import config

        config.disable_op_determinism()


@pytest.fixture(scope="session")
def tiny_vit():
    """A function that builds a tiny model with random weights, biases included."""
    import keras

    import keras_vit

    def build(seed=11, **kwargs):
        keras.utils.set_random_seed(seed)
        random = np.random.default_rng(seed)
        model = keras_vit.VisionTransformer(**{**TINY, **kwargs})
        for weight in model.weights:
            if "seed" not in weight.path:
                weight.assign(random.normal(scale=0.3, size=weight.shape))
        return model

    return build


@pytest.fixture
def images():
    """Two images [2, 22, 14, channels] in [-1, 1]."""

    def make(channels=3, seed=3):
        random = np.random.default_rng(seed)
        return random.uniform(-1, 1, (2, 22, 14, channels)).astype("float32")

    return make
