"""`deterministic`: the same bits from the same run, repeated or resumed.

    TensorFlow      a switch of the process, which XLA on GPUs obeys too
    JAX on GPUs     a flag of XLA, which JAX reads when it starts
    JAX elsewhere, and TPUs     nothing to switch

XLA has no deterministic gradient of max pooling: TensorFlow's XLA refuses it on every
device, JAX's on GPUs (https://openxla.org/xla/determinism).
"""

import contextlib
import os
import re
from collections.abc import Iterator

import keras

from keras_vit import devices
from keras_vit.nested_layers import all_layers

from ..errors import RecipeError
from ..recipe import Recipe
from .tpu_runtime import generation_here

# Autotuning is off with it. `--xla_gpu_exclude_nondeterministic_ops` leaves it on: two
# processes may then choose two kernels, and a resumed run is another process.
XLA_FLAG = "--xla_gpu_deterministic_ops"


def ask_for_determinism(recipe: Recipe) -> None:
    """Set XLA's flag where JAX has not started; `check_deterministic` sees whether."""
    if not recipe.deterministic:
        return
    # There is no public function that asks without starting JAX: jax-ml/jax#23320.
    from jax._src.xla_bridge import backends_are_initialized

    # libtpu reads XLA_FLAGS as well, and has flags of its own.
    on_tpu = generation_here() is not None
    if _flag() is None and not on_tpu and not backends_are_initialized():
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} {XLA_FLAG}=true".strip()


def _flag() -> bool | None:
    """The value of `XLA_FLAG` in the environment; None where it is not there."""
    values = re.findall(
        rf"{XLA_FLAG}(?:=(\S+))?(?:\s|$)", os.environ.get("XLA_FLAGS", "")
    )
    return values[-1].lower() in ("", "true", "1") if values else None


def check_deterministic(recipe: Recipe, model: keras.Model) -> None:
    """Raise RecipeError where a run that ought to be deterministic cannot be."""
    if not recipe.deterministic or recipe.strategy == "tpu":
        return
    on_jax = keras.backend.backend() == "jax"
    on_gpu_of_jax = on_jax and devices.platform() == "gpu"
    if on_gpu_of_jax and not _flag():
        raise RecipeError(
            "`deterministic` must be false, or the environment variable XLA_FLAGS have "
            f"{XLA_FLAG}=true before Python starts: JAX reads it only when it starts. "
            f"Received: true, XLA_FLAGS={os.environ.get('XLA_FLAGS', '')!r}"
        )
    compiled = on_gpu_of_jax or (not on_jax and recipe.jit_compile == "on")
    if compiled and has_max_pooling(model):
        raise RecipeError(
            "`deterministic` must be false for a model with max pooling, of which XLA "
            "has no deterministic gradient; on TensorFlow it can stay with "
            "--jit_compile auto or off. Received: true"
        )


def has_max_pooling(model: keras.Model) -> bool:
    """Whether the model has a layer of max pooling."""
    kinds = (keras.layers.MaxPooling2D, keras.layers.GlobalMaxPooling2D)
    return any(isinstance(layer, kinds) for layer in all_layers(model))


@contextlib.contextmanager
def deterministic_operations(recipe: Recipe) -> Iterator[None]:
    """Context in which TensorFlow's operations are as the recipe says.

    Those that read images too. On a TPU they are as they were before. Of the three
    functions TensorFlow makes only `enable_op_determinism` public.
    """
    from tensorflow.python.framework import config

    before = config.is_op_determinism_enabled()
    wanted = before if recipe.strategy == "tpu" else recipe.deterministic
    _switch(wanted)
    try:
        yield
    finally:
        _switch(before)


def _switch(on: bool) -> None:
    from tensorflow.python.framework import config

    (config.enable_op_determinism if on else config.disable_op_determinism)()
