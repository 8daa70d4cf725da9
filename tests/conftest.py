"""Fixtures of all tests: a tiny model, images for it, the backends' settings."""

import contextlib
import functools
import gc
import importlib
import os
import resource
import signal
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The kernels that commands take, on any processor.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# No GPU or TPU, in the processes that tests start neither.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import pytest
from tiny_model import build_vit

# Whole files of long tests run side by side: at the end, one of these would run alone.
LONGEST = (
    *("test_kill.py", "test_recipes_steps.py", "test_replicas.py", "test_notebooks.py"),
    *("test_jax_workers.py", "test_first_minutes.py", "test_packaging.py"),
    *("test_crops.py", "test_study_runs.py"),
)


def pytest_configure(config):
    """Import PyTorch before TensorFlow, where tests compare with it.

    Garbage is collected less often: it took a quarter of the time of imports.
    """
    gc.set_threshold(50_000, 50, 50)
    # A file in a folder whose conftest.py imports TensorFlow has none of these tests.
    if compares(config) and "tensorflow" not in sys.modules:
        importlib.import_module("benchmarks.torch_libraries")


def compares(config):
    """Whether the tests of parity are selected; their libraries take 20 s to import."""
    return "not parity" not in config.getoption("markexpr")


def pytest_ignore_collect(collection_path, config):
    """Leave out the files that would import those libraries for nothing."""
    parity = collection_path.name.startswith("test_parity")
    return True if parity and not compares(config) else None


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_collection_finish():
    """Leave what is imported out of each garbage collection: a fifth of the time."""
    gc.freeze()


@functools.cache
def sessions_as_functions(tensorflow):
    """Let sessions, which servers have, optimize graphs where functions do."""
    create = tensorflow.compat.v1.Session.__init__

    def __init__(self, target="", graph=None, config=None):
        if config is not None:
            as_traced = tensorflow.config.optimizer.get_experimental_options()
            rewrite = config.graph_options.rewrite_options
            rewrite.disable_meta_optimizer = as_traced["disable_meta_optimizer"]
        create(self, target, graph, config)

    tensorflow.compat.v1.Session.__init__ = __init__


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Run graphs as they were traced, but in long, parity and `optimized` tests.

    TensorFlow optimizes each graph before its first run: a quarter of the time of the
    fast tests of exports. Processes that tests start do as always.
    """
    if tensorflow := sys.modules.get("tensorflow"):
        sessions_as_functions(tensorflow)
        optimized = {"slow", "parity", "optimized"} & {
            mark.name for mark in item.iter_markers()
        }
        tensorflow.config.optimizer.set_experimental_options(
            {"disable_meta_optimizer": not optimized}
        )
    return (yield)


@pytest.fixture(autouse=True, scope="session")
def quiet():
    """No reports of what a slow machine is doing, where tests read stderr."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras_vit.common.activity.SECONDS", 1e6)
        yield


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
