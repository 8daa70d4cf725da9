"""Fixtures of all tests: a tiny model, images for it, the backends' settings."""

import contextlib
import gc
import os
import resource
import signal
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# No GPU or TPU, in the processes that tests start neither.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import torch_libraries  # noqa: F401  isort: skip  before TensorFlow

import numpy as np
import pytest
from tiny_model import build_vit

# Whole files of long tests run side by side: at the end, one of these would run alone.
LONGEST = (
    *("test_kill.py", "test_recipes_steps.py", "test_replicas.py", "test_notebooks.py"),
    *("test_jax_workers.py", "test_first_minutes.py", "test_packaging.py"),
    *("test_crops.py", "test_study_runs.py"),
)


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_collection_finish():
    """Leave what is imported out of each garbage collection: a fifth of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory):
    """Keep what tests and libraries leave in temporary folders in pytest's own.

    So are the caches of features and of folders' images.
    """
    folder = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("KERAS_HOME", str(tmp_path_factory.mktemp("keras")))
        yield


@pytest.fixture(scope="session")
def tiny_vit():
    """A function that builds a tiny model with random weights, biases included."""
    return build_vit


@pytest.fixture
def images():
    """Two images [2, 22, 14, channels] in [-1, 1]."""

    def make(channels=3, seed=3):
        random = np.random.default_rng(seed)
        return random.uniform(-1, 1, (2, 22, 14, channels)).astype("float32")

    return make


@pytest.fixture
def full_disk():
    """A context in which this process can write files of so many bytes only."""

    @contextlib.contextmanager
    def limit(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)

    return limit
