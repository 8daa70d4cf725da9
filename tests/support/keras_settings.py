"""Keras's global settings, all with other values than their defaults."""

import contextlib

import keras

FLOATX = ("float16", "bfloat16", "float64")


@contextlib.contextmanager
def other_settings(floatx):
    """Context in which no setting has its default: what depends on one differs."""
    values = {
        "floatx": floatx,
        "image_data_format": "channels_first",
        "epsilon": 0.5,
        "dtype_policy": "mixed_bfloat16",
    }
    before = {option: getattr(keras.config, option)() for option in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values):
    for option, value in values.items():
        getattr(keras.config, f"set_{option}")(value)
