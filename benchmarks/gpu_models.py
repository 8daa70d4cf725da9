"""The libraries of benchmarks.gpu: forward pass and training step on one device.

`python -m benchmarks.gpu_models LIBRARY CASE EXTENT` measures one of them in batches
that double until memory is full, one for each request, and first the rate of a product
of large matrices. Only what has TensorFlow in its name needs it.
"""

import functools
import gc
import importlib.util
import itertools
import json
import math
import os
import sys
import time
import unittest.mock
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import peer_models
from benchmarks.peer_models import (
    CLASSES,
    LEARNING_RATE,
    WEIGHT_DECAY,
    Case,
    Step,
    our_model,
    our_trainer,
)
from benchmarks.processes import answer

if TYPE_CHECKING:
    import jax

    from training.engine.jax_trainer import JaxTrainer


class Extent(NamedTuple):
    """How much is measured."""

    largest_batch: int  # above which no batch is tried
    rounds: int  # of which the best counts
    round_seconds: float  # what a round takes at least
    matrix: int  # side of the matrices whose product is measured


class Jax:
    """JAX's first device."""

    def __init__(self) -> None:
        import jax

        self.device = jax.devices()[0]
        self.name = self.device.device_kind
        self.wait = jax.block_until_ready

    def peak_bytes(self) -> int | None:
        """The most memory that was in use so far; None where it is not counted."""
        statistics: dict[str, int] | None = self.device.memory_stats()
        return statistics["peak_bytes_in_use"] if statistics else None

    def product(self, size: int) -> Step:
        """A product of two bfloat16 matrices [size, size]."""
        import jax

        pair = jax.random.normal(jax.random.key(0), (2, size, size), "bfloat16")
        multiply = jax.jit(lambda a, b: a @ b)
        return lambda: multiply(*pair)


class TensorFlow:
    """TensorFlow's first GPU, or its CPU."""

    def __init__(self) -> None:
        import tensorflow as tf

        self.tf = tf
        gpus = tf.config.list_physical_devices("GPU")
        self.on_gpu = bool(gpus)
        details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
        self.name = details.get("device_name", "cpu")

    def wait(self, value: Any) -> None:
        """Wait until all steps are done."""
        self.tf.test.experimental.sync_devices()

    def peak_bytes(self) -> int | None:
        """The most memory that was in use so far; None where it is not counted."""
        if not self.on_gpu:
            return None
        return int(self.tf.config.experimental.get_memory_info("GPU:0")["peak"])

    def product(self, size: int) -> Step:
        """A product of two bfloat16 matrices [size, size]."""
        shape, dtype = (2, size, size), self.tf.bfloat16
        first, second = self.tf.random.stateless_normal(shape, (0, 1), dtype=dtype)
        step: Step = self.tf.function(lambda: first @ second, jit_compile=self.on_gpu)
        return step


class Torch:
    """PyTorch's first GPU, or its CPU."""

    def __init__(self) -> None:
        from benchmarks import torch_libraries  # noqa: F401  isort: skip
        import torch

        torch.set_float32_matmul_precision("high")  # as JAX on GPUs
        self.torch = torch
        self.on_gpu = torch.cuda.is_available()
        self.device = "cuda" if self.on_gpu else "cpu"
        self.name = torch.cuda.get_device_name() if self.on_gpu else "cpu"

    def wait(self, value: Any) -> None:
        """Wait until all steps are done."""
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def peak_bytes(self) -> int | None:
        """The most memory that was in use so far; None where it is not counted."""
        return self.torch.cuda.max_memory_allocated() if self.on_gpu else None

    def product(self, size: int) -> Step:
        """A product of two bfloat16 matrices [size, size]."""
        shape, dtype = (2, size, size), self.torch.bfloat16
        first, second = self.torch.randn(shape, device=self.device, dtype=dtype)
        return lambda: first @ second


def _jax_inputs(case: Case) -> tuple["jax.Array", "jax.Array"]:
    """Images [B, H, W, 3], in training float32, and labels [B, classes]."""
    import jax

    shape = (case.batch, case.image_size, case.image_size, 3)
    dtype = "float32" if case.training else "bfloat16"
    images = jax.random.normal(jax.random.key(1), shape, dtype)
    return images, jax.nn.one_hot(jax.numpy.arange(case.batch) % CLASSES, CLASSES)


def _values(*groups: Any) -> tuple[list[Any], ...]:
    return tuple([variable.value for variable in group] for group in groups)


def keras_vit_on_jax(device: Jax, case: Case) -> Step:
    """keras-vit; training by the compiled step that `keras-vit fit` runs."""
    import jax
    import keras

    keras.backend.clear_session()
    images, labels = _jax_inputs(case)
    model = our_model(case)
    if not case.training:
        weights = _values(model.trainable_variables, model.non_trainable_variables)
        call = jax.jit(lambda w, x: model.stateless_call(*w, x, training=False)[0])
        return lambda: call(weights, images)

    trainer = our_trainer(model, _jax_trainer_class())
    trainer.make_train_function()
    # Else each call would wait for its own figures.
    trainer.progress.steps_per_epoch = sys.maxsize
    state = _values(
        trainer.trainable_variables,
        trainer.non_trainable_variables,
        trainer.optimizer.variables,
        trainer.metrics_variables,
    )
    batches = itertools.repeat((images, labels))

    def step() -> object:
        nonlocal state
        logs, state = trainer.train_function(state, batches)
        return logs, state

    return step


def _jax_trainer_class() -> type["JaxTrainer"]:
    """`JaxTrainer`, also where TensorFlow is not installed.

    TensorFlow feeds images, which are on the device already: something takes its name
    while the trainer is imported.
    """
    missing = importlib.util.find_spec("tensorflow") is None
    if missing:
        sys.modules["tensorflow"] = unittest.mock.MagicMock()
    from training.engine.jax_trainer import JaxTrainer

    if missing:
        sys.modules["tensorflow"] = None  # type: ignore[assignment]
    return JaxTrainer


def keras_vit_on_tensorflow(device: TensorFlow, case: Case) -> Step:
    """keras-vit's training step, compiled on a GPU."""
    import keras

    tf, size = device.tf, case.image_size
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    trainer = our_trainer(our_model(case), jit_compile=device.on_gpu)
    images = tf.random.stateless_normal((case.batch, size, size, 3), (1, 2))
    labels = tf.one_hot(tf.range(case.batch) % CLASSES, CLASSES)

    step: Step = tf.function(
        lambda: trainer.train_replica((images, labels), tf.constant(0.0)),
        autograph=False,
    )
    return step


def flax(device: Jax, case: Case, attention: str = "xla") -> Step:
    """`flax_vit`, the form of big_vision's model; XLA's attention on CPUs."""
    import jax

    from benchmarks import flax_vit
    from keras_vit.specs import parse_variant

    spec, patch_size = parse_variant(case.variant)
    attend = flax_vit.attention_of(
        attention if device.device.platform == "gpu" else "xla",
        pad=attention == "cudnn" and case.training,
    )
    model = flax_vit.VisionTransformer(spec, patch_size, CLASSES, "bfloat16", attend)
    images, labels = _jax_inputs(case)
    weights = jax.jit(model.init)(jax.random.key(2), images[:1])
    if not case.training:
        weights = jax.tree.map(lambda weight: weight.astype("bfloat16"), weights)
        call = jax.jit(model.apply)
        return lambda: call(weights, images)
    optimizer = flax_vit.adamw(LEARNING_RATE, WEIGHT_DECAY)
    compiled = flax_vit.training_step(model, optimizer)
    state = weights, optimizer.init(weights)

    def step() -> object:
        nonlocal state
        state = compiled(state, images, labels)
        return state

    return step


def timm(device: Torch, case: Case) -> Step:
    """timm, compiled by PyTorch: SDPA, autocast, fused AdamW, channels last on GPUs."""
    return peer_models.timm(case, compiled=True, device=device.device)


class Library(NamedTuple):
    """A library that takes part."""

    framework: Callable[[], Any]  # its device
    step: Callable[[Any, Case], Step]  # makes a forward pass or training step
    environment: dict[str, str]  # variables that its process needs
    training_only: bool = False  # whether it has no forward pass of its own


ON_JAX = {"KERAS_BACKEND": "jax", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"}
ON_TENSORFLOW = {"KERAS_BACKEND": "tensorflow"}
# Operations that give the same bits in every process.
FLAGS = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true"
SAME_ON_JAX = ON_JAX | {"XLA_FLAGS": FLAGS}
SAME_ON_TENSORFLOW = ON_TENSORFLOW | {"TF_DETERMINISTIC_OPS": "1"}
TENSORFLOW = (TensorFlow, keras_vit_on_tensorflow)
LIBRARIES = {
    "keras-vit": Library(Jax, keras_vit_on_jax, ON_JAX),
    "keras-vit, deterministic": Library(Jax, keras_vit_on_jax, SAME_ON_JAX, True),
    "keras-vit, TensorFlow": Library(*TENSORFLOW, ON_TENSORFLOW, True),
    "keras-vit, TensorFlow, deterministic": Library(
        *TENSORFLOW, SAME_ON_TENSORFLOW, True
    ),
    "flax": Library(Jax, flax, ON_JAX),
    "flax, cuDNN": Library(Jax, functools.partial(flax, attention="cudnn"), ON_JAX),
    "timm, torch.compile": Library(Torch, timm, {}),
}


def seconds_of(step: Step, wait: Any, extent: Extent) -> float:
    """Seconds of one step in the best round, after two that compile and warm up."""
    for _ in range(2):
        wait(step())
    began = time.perf_counter()
    wait(step())
    steps = max(1, math.ceil(extent.round_seconds / (time.perf_counter() - began)))
    best = math.inf
    for _ in range(extent.rounds):
        began = time.perf_counter()
        for _ in range(steps):
            value = step()
        wait(value)
        best = min(best, (time.perf_counter() - began) / steps)
    return best


def out_of_memory(error: Exception) -> bool:
    """Whether JAX, TensorFlow or PyTorch says that the device's memory is full."""
    text = str(error).lower()
    return any(
        words in text for words in ("resource_exhausted", "out of memory", "oom when")
    )


def measure(name: str, case: Case, extent: Extent) -> Iterator[dict[str, Any]]:
    """Measure a library in batches that double, from that of the case on.

    Yields:
        The device and its rate, then the figures of each batch that fits.
    """
    library = LIBRARIES[name]
    device = library.framework()
    product = device.product(extent.matrix)
    seconds = seconds_of(product, device.wait, extent)
    yield {"device": device.name, "matmul_flops": 2 * extent.matrix**3 / seconds}
    del product
    while case.batch <= extent.largest_batch:
        try:
            step = library.step(device, case)
            seconds = seconds_of(step, device.wait, extent)
        except Exception as error:
            if not out_of_memory(error):
                raise
            return
        peak = device.peak_bytes()
        yield {"batch": case.batch, "seconds": seconds, "peak_bytes": peak}
        del step
        gc.collect()
        case = case._replace(batch=2 * case.batch)


if __name__ == "__main__":
    case, extent = map(json.loads, sys.argv[2:])
    answers = measure(sys.argv[1], Case(*case), Extent(*extent))
    answer(lambda: next(answers, None))
