"""The libraries of benchmarks.gpu: forward pass and training step on one device.

`python -m benchmarks.gpu_models LIBRARY CASE EXTENT` measures one of them in batches
that double until memory is full, a line of JSON for each, and first the rate of a
product of large matrices. Only what has TensorFlow in its name needs it.
"""

import gc
import importlib
import importlib.util
import itertools
import json
import math
import os
import sys
import time
import unittest.mock
from typing import Any, ClassVar, NamedTuple

from benchmarks.peer_models import (
    CLASSES,
    LEARNING_RATE,
    TIMM,
    WEIGHT_DECAY,
    Case,
    Step,
    our_model,
    our_trainer,
    torch_step,
)


class Extent(NamedTuple):
    """How much is measured.

    Attributes:
        largest_batch: Above which no batch is tried.
        rounds: Of which the best counts.
        round_seconds: What a round takes at least.
        matrix: Side of the matrices whose product is measured.
    """

    largest_batch: int
    rounds: int
    round_seconds: float
    matrix: int


class JaxLibrary:
    """A library on JAX's first device.

    Args:
        case: What is measured; its batch is ignored.

    Attributes:
        environment: Variables that its process needs.
        training_only: Whether it has no forward pass of its own.
    """

    environment: ClassVar[dict[str, str]] = {"KERAS_BACKEND": "jax"}
    training_only = False

    def __init__(self, case: Case):
        import jax

        self.case = case
        self.device = jax.devices()[0]
        self.name = self.device.device_kind

    def wait(self, value: Any) -> None:
        """Wait until a step's result is there."""
        import jax

        jax.block_until_ready(value)

    def peak_bytes(self) -> int | None:
        """The most memory that was in use so far; None where it is not counted."""
        statistics = self.device.memory_stats()
        return statistics and statistics["peak_bytes_in_use"]

    def product(self, size: int) -> Step:
        """A product of two bfloat16 matrices [size, size]."""
        import jax

        pair = jax.random.normal(jax.random.key(0), (2, size, size), "bfloat16")
        multiply = jax.jit(lambda a, b: a @ b)
        return lambda: multiply(*pair)

    def inputs(self, batch: int):
        """Images [B, H, W, 3], in training float32, and labels [B, classes]."""
        import jax

        size, training = self.case.image_size, self.case.training
        dtype = "float32" if training else "bfloat16"
        images = jax.random.normal(jax.random.key(1), (batch, size, size, 3), dtype)
        return images, jax.nn.one_hot(jax.numpy.arange(batch) % CLASSES, CLASSES)


class KerasVit(JaxLibrary):
    """keras-vit; training by the compiled step that `keras-vit fit` runs."""

    def step(self, batch: int) -> Step:
        """A forward pass or a training step."""
        import jax
        import keras

        keras.backend.clear_session()
        images, labels = self.inputs(batch)
        model = our_model(self.case)
        if self.case.training:
            return self._training(model, images, labels)
        weights = [
            [variable.value for variable in variables]
            for variables in (model.trainable_variables, model.non_trainable_variables)
        ]
        call = jax.jit(lambda w, x: model.stateless_call(*w, x, training=False)[0])
        return lambda: call(weights, images)

    def _training(self, model, images, labels) -> Step:
        make_optimizer, trainer_class, config_class = _training_classes()
        config = config_class(learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        trainer = trainer_class(model, clip_norm=1.0)
        trainer.compile(make_optimizer(config, LEARNING_RATE, model))
        trainer.make_train_function()
        # Else each call would wait for its own figures.
        trainer.progress.steps_per_epoch = sys.maxsize
        state = tuple(
            [variable.value for variable in variables]
            for variables in (
                trainer.trainable_variables,
                trainer.non_trainable_variables,
                trainer.optimizer.variables,
                trainer.metrics_variables,
            )
        )
        batches = itertools.repeat((images, labels))

        def step():
            nonlocal state
            logs, state = trainer.train_function(state, batches)
            return logs, state

        return step


class DeterministicKerasVit(KerasVit):
    """The same with operations that give the same bits in every process."""

    environment: ClassVar[dict[str, str]] = {
        **JaxLibrary.environment,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} "
        "--xla_gpu_deterministic_ops=true",
    }
    training_only = True


class TensorFlowKerasVit:
    """keras-vit's training step on TensorFlow's first GPU, compiled, or its CPU."""

    environment: ClassVar[dict[str, str]] = {"KERAS_BACKEND": "tensorflow"}
    training_only = True
    deterministic = False

    def __init__(self, case: Case):
        import tensorflow as tf

        if self.deterministic:
            tf.config.experimental.enable_op_determinism()
        self.case = case
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
        return self.tf.config.experimental.get_memory_info("GPU:0")["peak"]

    def product(self, size: int) -> Step:
        """A product of two bfloat16 matrices [size, size]."""
        shape, dtype = (2, size, size), self.tf.bfloat16
        first, second = self.tf.random.stateless_normal(shape, (0, 1), dtype=dtype)
        return self.tf.function(lambda: first @ second, jit_compile=self.on_gpu)

    def step(self, batch: int) -> Step:
        """A training step."""
        import keras

        tf, size = self.tf, self.case.image_size
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        trainer = our_trainer(our_model(self.case), jit_compile=self.on_gpu)
        images = tf.random.stateless_normal((batch, size, size, 3), (1, 2))
        labels = tf.one_hot(tf.range(batch) % CLASSES, CLASSES)

        @tf.function(autograph=False)
        def step():
            return trainer.train_replica((images, labels), tf.constant(0.0))

        return step


class DeterministicTensorFlowKerasVit(TensorFlowKerasVit):
    """The same with operations that give the same bits in every process."""

    deterministic = True


def _training_classes():
    """`make_optimizer`, `JaxTrainer` and `OptimizerConfig`.

    TensorFlow feeds images, which are on the device already: where it is not installed,
    something takes its name while these are imported.
    """
    missing = importlib.util.find_spec("tensorflow") is None
    if missing:
        sys.modules["tensorflow"] = unittest.mock.MagicMock()
    optimizer = importlib.import_module("training.engine.optimizer")
    trainer = importlib.import_module("training.engine.jax_trainer")
    if missing:
        sys.modules["tensorflow"] = None  # type: ignore[assignment]
    return optimizer.make_optimizer, trainer.JaxTrainer, optimizer.OptimizerConfig


class Flax(JaxLibrary):
    """`flax_vit`, the form of big_vision's model, with XLA's attention."""

    implementation = "xla"

    def step(self, batch: int) -> Step:
        """A forward pass or a training step."""
        import jax

        from benchmarks import flax_vit
        from keras_vit.specs import parse_variant

        spec, patch_size = parse_variant(self.case.variant)
        on_gpu = self.device.platform == "gpu"
        attention = flax_vit.attention_of(
            self.implementation if on_gpu else "xla",
            pad=self.implementation == "cudnn" and self.case.training,
        )
        model = flax_vit.VisionTransformer(
            spec, patch_size, CLASSES, "bfloat16", attention
        )
        images, labels = self.inputs(batch)
        weights = jax.jit(model.init)(jax.random.key(2), images[:1])
        if not self.case.training:
            weights = jax.tree.map(lambda weight: weight.astype("bfloat16"), weights)
            call = jax.jit(model.apply)
            return lambda: call(weights, images)
        optimizer = flax_vit.adamw(LEARNING_RATE, WEIGHT_DECAY)
        compiled = flax_vit.training_step(model, optimizer)
        state = weights, optimizer.init(weights)

        def step():
            nonlocal state
            state = compiled(state, images, labels)
            return state

        return step


class FlaxCudnn(Flax):
    """The same with cuDNN's flash attention, on GPUs."""

    implementation = "cudnn"


class Timm:
    """timm, compiled by PyTorch: SDPA, autocast, fused AdamW, channels last on GPUs."""

    environment: ClassVar[dict[str, str]] = {}
    training_only = False

    def __init__(self, case: Case):
        from benchmarks import torch_libraries  # noqa: F401  isort: skip
        import torch

        torch.set_float32_matmul_precision("high")  # as JAX on GPUs
        self.case = case
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        on_gpu = self.device == "cuda"
        self.name = torch.cuda.get_device_name() if on_gpu else "cpu"

    def wait(self, value: Any) -> None:
        """Wait until all steps are done."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def peak_bytes(self) -> int | None:
        """The most memory that was in use so far; None where it is not counted."""
        on_gpu = self.device == "cuda"
        return self.torch.cuda.max_memory_allocated() if on_gpu else None

    def product(self, size: int) -> Step:
        """A product of two bfloat16 matrices [size, size]."""
        shape, dtype = (2, size, size), self.torch.bfloat16
        first, second = self.torch.randn(shape, device=self.device, dtype=dtype)
        return lambda: first @ second

    def step(self, batch: int) -> Step:
        """A forward pass or a training step."""
        import timm

        name, size = TIMM[self.case.variant], self.case.image_size
        model = timm.create_model(name, img_size=size)
        case = self.case._replace(batch=batch)
        return torch_step(self.torch, model, case, True, self.device)


LIBRARIES: dict[str, Any] = {
    "keras-vit": KerasVit,
    "keras-vit, deterministic": DeterministicKerasVit,
    "keras-vit, TensorFlow": TensorFlowKerasVit,
    "keras-vit, TensorFlow, deterministic": DeterministicTensorFlowKerasVit,
    "flax": Flax,
    "flax, cuDNN": FlaxCudnn,
    "timm, torch.compile": Timm,
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


def measure(name: str, case: Case, extent: Extent, say: Any) -> None:
    """Measure a library in batches that double, from that of the case on.

    Args:
        say: Called with the device and its rate, then with the figures of each batch.
    """
    library = LIBRARIES[name](case)
    product = library.product(extent.matrix)
    seconds = seconds_of(product, library.wait, extent)
    flops = 2 * extent.matrix**3 / seconds
    say({"device": library.name, "matmul_flops": flops})
    del product
    batch = case.batch
    while batch <= extent.largest_batch:
        try:
            step = library.step(batch)
            seconds = seconds_of(step, library.wait, extent)
        except Exception as error:
            if not out_of_memory(error):
                raise
            return
        say({"batch": batch, "seconds": seconds, "peak_bytes": library.peak_bytes()})
        del step
        gc.collect()
        batch *= 2


def _main() -> None:
    """What libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name, *values = sys.argv[1:]
    case, extent = (json.loads(value) for value in values)

    def say(answer):
        print(json.dumps(answer), file=answers, flush=True)

    measure(name, Case(*case), Extent(*extent), say)


if __name__ == "__main__":
    _main()
