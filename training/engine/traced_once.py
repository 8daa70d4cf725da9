"""Functions that TensorFlow traces once, whatever the number of replicas."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class TracedOnce:
    """A function of tensors, traced once for all replicas that call it.

    TensorFlow traces a `tf.function` for each device that calls it, and a function
    that reads variables reads those of the replica that has traced it. So the
    variables' values are arguments.

    Args:
        function: Takes nested structures of tensors or variables, and returns tensors.
        jit_compile: Whether to compile it with XLA.
    """

    def __init__(self, function: Callable[..., Any], jit_compile: bool) -> None:
        self.function = tf.function(
            function, jit_compile=jit_compile or None, autograph=False
        )
        self.traced: dict[Any, Callable[..., Any]] = {}  # by shapes and types

    def __call__(self, *arguments: Any) -> Any:
        """What the function returns for the arguments."""
        arguments = tf.nest.map_structure(tf.convert_to_tensor, arguments)
        specs = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), arguments
        )
        key = tuple(tf.nest.flatten(specs))
        if key not in self.traced:
            # Not by a second call, which TensorFlow traces again on another device.
            self.traced[key] = self.function.get_concrete_function(*specs)
        return self.traced[key](*arguments)
