"""Models without values, for tests that look at names and shapes only."""

import contextlib

import keras
from keras.src.backend.common import global_state


@contextlib.contextmanager
def shapes_only():
    """Models built inside have weights with shapes but without values."""
    with keras.StatelessScope(initialize_variables=False):
        yield
    global_state.set_global_attribute("uninitialized_variables", [])
