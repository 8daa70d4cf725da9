"""A bucket without a network, and a root for folders, on a disk and in a bucket."""

import contextlib
from unittest import mock

import fake_bucket
import pytest
import tensorflow as tf
from etils import epath

from keras_vit.common.atomic_files import UNFINISHED
from training.reporting import tensorboard


@pytest.fixture(autouse=True, scope="module")
def undrawn_board():
    """Runs draw no pictures for TensorBoard, which take a tenth of a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensorboard, "pictures", mock.Mock())
        patch.setattr(tensorboard.RunBoard, "_write_image", lambda *_: None)
        yield


@contextlib.contextmanager
def functions_eagerly():
    """Run functions eagerly: to trace those of a run takes most of its time."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="module")
def eagerly():
    """Run functions eagerly, to the end of the module."""
    with functions_eagerly():
        yield


@pytest.fixture
def eager_test():
    """Run functions eagerly in one test."""
    with functions_eagerly():
        yield


@pytest.fixture
def bucket(monkeypatch):
    """A `Gfile` that serves `gs://bucket` and can be disturbed."""
    return fake_bucket.install(monkeypatch)


@pytest.fixture
def leave_unfinished():
    """A function that leaves beside a file what a kill during its writing does."""

    def leave(path):
        folder = path.with_name(f"{UNFINISHED}k7_x2")
        folder.mkdir(parents=True)
        (folder / path.name).write_text("half")

    return leave


@pytest.fixture(params=["disk", "bucket"])
def root(request, tmp_path):
    """An empty folder."""
    if request.param == "disk":
        return epath.Path(tmp_path)
    request.getfixturevalue("bucket")
    return epath.Path("gs://bucket")
