"""Operations of an exported graph that stay on the host, whatever runs the model."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

_Result = TypeVar("_Result")

HOST = "/device:CPU:0"


def on_host(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Place the operations of a function on the host, those of its loops too.

    A `tf.function` that is called keeps its own places; the call itself is placed.
    """

    @functools.wraps(function)
    def placed(*args: Any) -> _Result:
        with tf.device(HOST):
            return function(*args)

    return placed
