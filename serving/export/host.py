"""Operations of an exported graph that stay on the host, whatever runs the model."""

import functools
from collections.abc import Callable

import tensorflow as tf

HOST = "/device:CPU:0"


def on_host(function: Callable) -> Callable:
    """Place the operations of a function on the host, those of its loops too.

    A `tf.function` that is called keeps its own places; the call itself is placed.
    """

    @functools.wraps(function)
    def placed(*args):
        with tf.device(HOST):
            return function(*args)

    return placed
