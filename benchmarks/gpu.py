"""How fast is a GPU, with JAX, beside what a user would take instead?

    python -m benchmarks.gpu [--variants L/16 ...] [--tiny] [--output FILE.json]

Forward pass and training step in bfloat16 on one GPU: keras-vit on JAX; the form of
big_vision's model in Flax and optax, with XLA's attention; timm with
`torch.compile`, SDPA, channels last and fused AdamW. Of keras-vit also the training
step on TensorFlow, and on both with deterministic operations, whose cost is the ratio
of two rows. Training is AdamW on clipped gradients with float32 weights. Each library
runs in a process of its own, in batches that double until memory is full (or 4,096),
and its best batch counts: images/s in the best of five rounds; FLOPs in closed form, as
a share of the data sheet. `time to ours` above 1 means that keras-vit is
faster. Needs `pip install -e ".[parity]" "jax[cuda13]"`; where TensorFlow sees no GPU,
its rows are left out. `--tiny` runs all of it on any machine; its figures mean nothing.
"""

import argparse
import functools
import gc
import itertools
import json
import math
import os
import subprocess
import sys
import time
from typing import Any, ClassVar, NamedTuple

from benchmarks.peer_models import (
    CLASSES,
    LEARNING_RATE,
    TIMM,
    WEIGHT_DECAY,
    Case,
    Step,
    torch_step,
)
from benchmarks.report import machine, make_parser, show, write
from benchmarks.turns import flops_of
from training.engine.device_peaks import peak_flops

PACKAGES = ("jax", "keras", "flax", "optax", "torch", "timm")
# Variant, pixels and first batch by name.
MODELS = {
    "S/16": ("S/16", 224, 128),
    "B/16": ("B/16", 224, 64),
    "L/16": ("L/16", 224, 32),
    "B/16@384": ("B/16", 384, 16),
}
TINY = ("Ti/16", 32, 2)


class Extent(NamedTuple):
    """How much is measured."""

    largest_batch: int
    rounds: int  # of which the best counts
    round_seconds: float  # at least


class Library:
    """A library on one device.

    It has `step(batch)`, a forward pass or training step; `wait(value)` for its result;
    and `peak_bytes()`, the most memory in use so far, None where it is not counted.

    Args:
        case: What is measured; its batch is ignored.

    Attributes:
        environment: Variables that its process needs.
        training_only: Whether it has no forward pass of its own.
        name: Of the device.
    """

    environment: ClassVar[dict[str, str]] = {}
    training_only = False
    name: str

    def __init__(self, case: Case):
        self.case = case

    def keras_model(self) -> Any:
        """Our model, in mixed precision where it is trained."""
        import keras

        import keras_vit

        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        return keras_vit.VisionTransformer.from_variant(
            self.case.variant,
            image_size=self.case.image_size,
            dtype="mixed_bfloat16" if self.case.training else "bfloat16",
        )

    def keras_trainer(self, model: Any, trainer_class: Any, compiled: bool) -> Any:
        """The trainer that `keras-vit fit` uses, with our optimizer."""
        from training.engine.optimizer import make_optimizer
        from training.recipe import OptimizerConfig

        config = OptimizerConfig(learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        trainer = trainer_class(model, clip_norm=1.0)
        optimizer = make_optimizer(config, LEARNING_RATE, model)
        trainer.compile(optimizer, jit_compile=compiled)
        return trainer


class JaxLibrary(Library):
    """A library on JAX's first device."""

    environment: ClassVar[dict[str, str]] = {"KERAS_BACKEND": "jax"}

    def __init__(self, case: Case):
        super().__init__(case)
        import jax

        self.device = jax.devices()[0]
        self.name = self.device.device_kind

    def wait(self, value: Any) -> None:
        import jax

        jax.block_until_ready(value)

    def peak_bytes(self) -> int | None:
        statistics = self.device.memory_stats()
        return statistics and statistics["peak_bytes_in_use"]

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
        import jax

        images, labels = self.inputs(batch)
        model = self.keras_model()
        if self.case.training:
            return self._training(model, images, labels)
        weights = [
            [variable.value for variable in variables]
            for variables in (model.trainable_variables, model.non_trainable_variables)
        ]
        call = jax.jit(lambda w, x: model.stateless_call(*w, x, training=False)[0])
        return lambda: call(weights, images)

    def _training(self, model, images, labels) -> Step:
        from training.engine.jax_trainer import JaxTrainer

        trainer = self.keras_trainer(model, JaxTrainer, compiled=True)
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


class TensorFlowKerasVit(Library):
    """keras-vit's training step on TensorFlow's first GPU, compiled, or its CPU."""

    environment: ClassVar[dict[str, str]] = {"KERAS_BACKEND": "tensorflow"}
    training_only = True
    deterministic = False

    def __init__(self, case: Case):
        super().__init__(case)
        import tensorflow as tf

        if self.deterministic:
            tf.config.experimental.enable_op_determinism()
        self.tf = tf
        gpus = tf.config.list_physical_devices("GPU")
        self.on_gpu = bool(gpus)
        details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
        self.name = details.get("device_name", "cpu")

    def wait(self, value: Any) -> None:
        self.tf.test.experimental.sync_devices()

    def peak_bytes(self) -> int | None:
        if not self.on_gpu:
            return None
        return self.tf.config.experimental.get_memory_info("GPU:0")["peak"]

    def step(self, batch: int) -> Step:
        from training.engine.tensorflow_trainer import TensorFlowTrainer

        tf, size = self.tf, self.case.image_size
        trainer = self.keras_trainer(self.keras_model(), TensorFlowTrainer, self.on_gpu)
        images = tf.random.stateless_normal((batch, size, size, 3), (1, 2))
        labels = tf.one_hot(tf.range(batch) % CLASSES, CLASSES)

        @tf.function(autograph=False)
        def step():
            return trainer.train_replica((images, labels), tf.constant(0.0))

        return step


class DeterministicTensorFlowKerasVit(TensorFlowKerasVit):
    """The same with operations that give the same bits in every process."""

    deterministic = True


class Flax(JaxLibrary):
    """`flax_vit`, the form of big_vision's model, with XLA's attention."""

    def step(self, batch: int) -> Step:
        import jax

        from benchmarks import flax_vit
        from keras_vit.specs import parse_variant

        spec, patch_size = parse_variant(self.case.variant)
        model = flax_vit.VisionTransformer(spec, patch_size, CLASSES, "bfloat16")
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


class Timm(Library):
    """timm, compiled by PyTorch: SDPA, autocast, fused AdamW, channels last on GPUs."""

    def __init__(self, case: Case):
        super().__init__(case)
        from benchmarks import torch_libraries  # noqa: F401  isort: skip
        import torch

        torch.set_float32_matmul_precision("high")  # as JAX on GPUs
        self.cuda = torch.cuda if torch.cuda.is_available() else None
        self.device = "cuda" if self.cuda else "cpu"
        self.name = self.cuda.get_device_name() if self.cuda else "cpu"

    def wait(self, value: Any) -> None:
        if self.cuda:
            self.cuda.synchronize()

    def peak_bytes(self) -> int | None:
        return self.cuda.max_memory_allocated() if self.cuda else None

    def step(self, batch: int) -> Step:
        import timm
        import torch

        name, size = TIMM[self.case.variant], self.case.image_size
        model = timm.create_model(name, img_size=size)
        return torch_step(
            torch, model, self.case._replace(batch=batch), True, self.device
        )


LIBRARIES: dict[str, Any] = {
    "keras-vit": KerasVit,
    "keras-vit, deterministic": DeterministicKerasVit,
    "keras-vit, TensorFlow": TensorFlowKerasVit,
    "keras-vit, TensorFlow, deterministic": DeterministicTensorFlowKerasVit,
    "flax": Flax,
    "timm, torch.compile": Timm,
}


# Everything, and on a machine without a GPU.
FULL, SMALL = Extent(4096, 5, 0.5), Extent(2, 1, 0.0)


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


def measure_here(name: str, case: Case, extent: Extent, say: Any) -> None:
    """Measure a library in batches that double, from that of the case on.

    Args:
        name: Of the library.
        case: What is measured.
        extent: How much of it.
        say: Called with the device, then with each batch's figures, as JSON.
    """
    library = LIBRARIES[name](case)
    say(json.dumps({"device": library.name}))
    batch = case.batch
    while batch <= extent.largest_batch:
        try:
            step = library.step(batch)
            seconds = seconds_of(step, library.wait, extent)
        except Exception as error:
            if not out_of_memory(error):
                raise
            return
        found = {"batch": batch, "seconds": seconds}
        say(json.dumps({**found, "peak_bytes": library.peak_bytes()}))
        del step
        gc.collect()
        batch *= 2


def measure(library: str, case: Case, extent: Extent) -> list[dict[str, Any]]:
    """What a library's process says: its device, then each batch that fits.

    Raises:
        RuntimeError: It failed, or not even the first batch fits.
    """
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--measure", library]
        + [json.dumps(value) for value in (case, extent)],
        stdout=subprocess.PIPE,
        text=True,
        env={
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95",
            **os.environ,
            **LIBRARIES[library].environment,
        },
    )
    answers = [json.loads(line) for line in process.stdout.splitlines()]
    if process.returncode or len(answers) < 2:
        raise RuntimeError(
            f"{library} failed with status {process.returncode} after {len(answers)} "
            f"answers: {case}"
        )
    print(library, *case, file=sys.stderr)
    return answers


def libraries_of(case: Case, tiny: bool) -> list[str]:
    """The libraries that are measured: TensorFlow's only where it sees a GPU.

    Args:
        case: What is measured; determinism costs something in training alone.
        tiny: Whether figures mean nothing, so that a CPU is as good.
    """
    import tensorflow as tf

    all_of_them = tiny or tf.config.list_physical_devices("GPU")
    return [
        name
        for name, library in LIBRARIES.items()
        if (all_of_them or "TensorFlow" not in name)
        and (case.training or not library.training_only)
    ]


def rows_of(
    case: Case, answers: dict[str, list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """A row for each library, keras-vit first, of what `measure` returned."""
    rows: list[dict[str, Any]] = []
    for library, (first, *batches) in answers.items():
        best = min(batches, key=lambda answer: answer["seconds"] / answer["batch"])
        rate = best["batch"] / best["seconds"]
        if not rows:
            ours = rate
        flops = flops_of(case._replace(batch=1)) * rate
        data_sheet = peak_flops(first["device"], "mixed_bfloat16")
        peak = best["peak_bytes"]
        rows.append(
            {
                "variant": case.variant,
                "pixels": case.image_size,
                "training": case.training,
                "dtype": case.dtype,
                "library": library,
                "device": first["device"],
                "batch": best["batch"],
                "images_per_second": round(rate, 1),
                "time_to_ours": round(ours / rate, 3),
                "share_of_data_sheet": data_sheet and round(flops / data_sheet, 4),
                "memory_mb": None if peak is None else peak // 2**20,
                "largest_batch": batches[-1]["batch"],
            }
        )
    return rows


def main() -> None:
    """Measures, prints the table, and writes the JSON file."""
    parser = make_parser(__doc__, "gpu")
    parser.add_argument("--variants", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--tiny", action="store_true", help="Ti/16 of 32 pixels")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        name, *values = options.measure
        case, extent = (json.loads(value) for value in values)
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print goes to the standard error
        say = functools.partial(print, file=answers, flush=True)
        measure_here(name, Case(*case), Extent(*extent), say)
        return
    extent, models = FULL, [MODELS[name] for name in options.variants]
    if options.tiny:
        extent, models = SMALL, [TINY]
    rows: list[dict[str, Any]] = []
    for variant, pixels, batch in models:
        for training in (False, True):
            case = Case(training, variant, pixels, batch, "bfloat16", threads=0)
            names = libraries_of(case, options.tiny)
            rows += rows_of(case, {name: measure(name, case, extent) for name in names})
            write({"machine": machine(PACKAGES), "rows": rows}, options.output)
    show(rows)


if __name__ == "__main__":
    main()
