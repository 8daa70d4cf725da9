"""`tpu-check`: check, without a TPU, that a recipe's steps can run on one.

1. The trainer's steps are lowered to XLA's HLO, which is searched for what a TPU cannot
   do or does slowly. That they compile would prove nothing: dynamic shapes compile on a
   CPU, and on a TPU too.
2. Where libtpu is installed, XLA's TPU compiler compiles the train step for the chips
   of a topology, without needing them: on TensorFlow for one, on JAX for all.
"""

import dataclasses
import importlib.util
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from keras_vit.common.activity import activity
from keras_vit.devices import making_graphs_for
from keras_vit.typing import Inputs

from ..architectures.compiling import compile_trainer, model_to_train
from ..architectures.recipe_model import build_model
from ..engine.device_peaks import TPU_MEMORY, peak_flops
from ..engine.trainer import Trainer
from ..errors import TrainingError, require
from ..recipe import Recipe
from ..self_supervision.pretext import PretextModel

if TYPE_CHECKING:
    from ..engine.tensorflow_trainer import TensorFlowTrainer
    from .tpu_program import Program  # which imports JAX

CLASS_NAMES = tuple("0123456789")  # their number does not matter
STEPS = 1000  # of the schedule; does not matter either

# Patterns in HLO text that show what does not belong on a TPU.
PATTERNS = {
    "dynamic shapes": r"\[[^\]=]*<=\d|(?:get|set)-dimension-size\(|dynamic-reshape\(",
    "float64": r"\b(?:f64|c128)\[",
    "float16 (a TPU computes in bfloat16)": r"\bf16\[",
    "host transfer": r"\b(?:infeed|outfeed|send|recv)\(",
}
CUSTOM_CALL = re.compile(r'custom_call_target="([^"]*)"')
# Custom calls that only annotate how tensors are divided among devices.
PARTITIONING = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}
PARTITIONING |= {"xla.sdy.FuncResultSharding", "xla.sdy.LocalToGlobalShape"}
PARTITIONING |= {"xla.sdy.GlobalToLocalShape"}
MOSAIC = "tpu_custom_call"  # a kernel for TPUs, such as that of splash attention

# Of the table of `tpu-check` on JAX.
COLUMNS = (
    *("TPU", "images", "state MiB", "temp MiB", "memory"),
    *("TFLOP", "least ms", "compile s"),
)
FORMS = ("d", ",d", ",d", ".0%", ".2f", ",.1f", ",d")
LEGEND = (
    "state: weights, optimizer and images; temp: gradients and activations; least ms: "
    "what the operations take at the chip's full rate"
)


INSTALL = (
    "not compiled for a TPU, as libtpu is not installed: "
    'pip install "jax[tpu]" (0.7 GB; needs no TPU)'
)


def findings(hlo: str) -> list[str]:
    """Find what should not run on a TPU in a program.

    Returns:
        One line for each kind of problem.
    """
    found = [name for name, pattern in PATTERNS.items() if re.search(pattern, hlo)]
    targets = set(CUSTOM_CALL.findall(hlo)) - PARTITIONING - {MOSAIC}
    callbacks = {target for target in targets if "callback" in target.lower()}
    if callbacks:
        found.append(f"host callback: {', '.join(sorted(callbacks))}")
    if targets - callbacks:
        found.append(f"custom call: {', '.join(sorted(targets - callbacks))}")
    return found


def function_findings(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """`findings` of a TensorFlow function of tensors or `tf.TensorSpec`s."""
    try:
        return findings(_compiler_ir(function, arguments)("hlo"))
    except (ValueError, tf.errors.OpError) as error:
        operations = sorted(set(re.findall(r"\b(\w+) \(No registered", str(error))))
        return [f"does not lower: {', '.join(operations) or _first_line(error)}"]


def _compiler_ir(
    function: Callable[..., Any], arguments: Sequence[Any]
) -> Callable[[str], str]:
    """A function that returns the program as `"hlo"` or `"stablehlo"`."""
    compiled = tf.function(function, jit_compile=True, autograph=False)
    program: Callable[[str], str] = compiled.experimental_get_compiler_ir(*arguments)
    return program


@dataclass(frozen=True)
class Step:
    """A step of the trainer, on one replica."""

    name: str  # `"train step"` or `"test step"`
    function: Callable[..., Any]  # of tensors
    arguments: tuple[tf.TensorSpec, ...]  # of these tensors, the labels first


def make_trainer(recipe: Recipe) -> Trainer:
    """The recipe's trainer, with random weights and made-up classes."""
    model = dataclasses.replace(recipe.model, head_stddev=0.0)
    if model.variant is not None:  # weights are large, and do not change shapes
        model = dataclasses.replace(model, weights=None)
    names = CLASS_NAMES if recipe.supervised else None
    built = model_to_train(build_model(model, names, recipe.precision), recipe)
    return compile_trainer(built, recipe, STEPS, STEPS)


def trainer_steps(trainer: "TensorFlowTrainer", batch_size: int) -> list[Step]:
    """The train and the test step, as `fit` runs them on each replica."""
    model = trainer.model
    encoder = getattr(model, "encoder", model)
    shape = [batch_size, *encoder.preprocessing.image_size, encoder.channels]
    inputs = [tf.TensorSpec(shape, tf.uint8, "images")]
    outputs = model.output_shape[1]  # classes, or patches
    if isinstance(model, PretextModel):
        inputs += [tf.TensorSpec([batch_size, outputs], tf.int32, "patch_indices")]
    labels = tf.TensorSpec([batch_size, outputs], tf.float32, "labels")
    weights = tf.TensorSpec([batch_size], tf.float32, "weights")
    stop = tf.TensorSpec([], tf.float32, "stop")

    def images_of(tensors: Sequence[tf.Tensor]) -> Inputs:
        if len(tensors) == 1:
            return tensors[0]
        return dict(zip(("images", "patch_indices"), tensors, strict=True))

    @making_graphs_for("tpu")
    def train(
        labels: tf.Tensor, stop: tf.Tensor, *inputs: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        return trainer.train_replica((images_of(inputs), labels), stop)

    @making_graphs_for("tpu")
    def test(
        labels: tf.Tensor, weights: tf.Tensor, *inputs: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        trainer.test_replica((images_of(inputs), labels, weights))
        results: dict[str, tf.Tensor] = trainer.get_metrics_result()
        return results

    return [
        Step("train step", train, (labels, stop, *inputs)),
        Step("test step", test, (labels, weights, *inputs)),
    ]


def tpu_check(recipe: Recipe, topologies: Sequence[str]) -> None:
    """Check a recipe's steps and print the findings.

    Args:
        recipe: Its trainer is checked, with random weights; on JAX with the weights
            divided among the chips where its `strategy` is fsdp.
        topologies: Kinds and shapes of TPUs: v5e:2x2.

    Raises:
        TrainingError: Something was found, or the TPU's compiler rejects the step.
    """
    installed = importlib.util.find_spec("libtpu") is not None
    targets = [Target(topology) for topology in topologies] if installed else []
    cached = recipe.data.cache_features
    require(not cached, "data.cache_features", "false on a TPU", cached)
    if keras.backend.backend() == "jax":
        _check_jax(recipe, targets)
    else:
        _check_tensorflow(recipe, targets)
    if not targets:
        print(INSTALL)


def _check_tensorflow(recipe: Recipe, targets: Sequence["Target"]) -> None:
    replicas = len(targets[0].devices) if targets else 1
    steps = trainer_steps(make_trainer(recipe), max(recipe.batch_size // replicas, 1))
    found = {
        step.name: function_findings(step.function, *step.arguments) for step in steps
    }
    _report(recipe, found)
    for target in targets:
        print(f"train step: {target.compile(steps[0])}")


def _check_jax(recipe: Recipe, targets: Sequence["Target"]) -> None:
    from .tpu_program import compile_train_step, lower_train_step, teraflop

    if not targets:
        devices = keras.distribution.list_devices()
        lowered = lower_train_step(recipe, make_trainer, devices, "tpu")
        _report(recipe, {"train step": findings(lowered.as_text("hlo"))})
        return
    table = Table(title=f"{recipe.name}: a train step on each chip")
    for column in COLUMNS:
        table.add_column(column, justify="right" if table.columns else "left")
    for target in targets:
        _ = target.chip  # an unknown one is an error before minutes of compiling
    failed, operations = [], teraflop(recipe, make_trainer)
    for target in targets:
        with activity(f"compiling for {target.topology}"):
            lowered = lower_train_step(recipe, make_trainer, target.devices, "tpu")
            _report(recipe, {"train step": findings(lowered.as_text("hlo"))})
            try:
                program = compile_train_step(lowered)
            except Exception as error:  # the compiler's, such as too little memory  # noqa: BLE001
                failed.append(f"{target.topology}: {_first_line(error)}")
                continue
        images = math.ceil(recipe.batch_size / len(target.devices))
        figures = target.figures(program, operations / len(target.devices))
        values = zip((images, *figures.values()), FORMS, strict=True)
        table.add_row(target.topology, *(f"{value:{form}}" for value, form in values))
    if table.rows:
        Console().print(table)
        Console().print(LEGEND, highlight=False)
    if failed:
        raise TrainingError(f"train step not compiled for {'; '.join(failed)}")


def _report(recipe: Recipe, found: dict[str, list[str]]) -> None:
    """Print the findings in the steps; raise TrainingError where there are any."""
    for name, lines in found.items():
        print(f"{name}: {'; '.join(lines) or 'nothing found in its HLO'}")
    if any(found.values()):
        raise TrainingError(f"{recipe.name}: the steps cannot run on a TPU, see above")


class Target:
    """XLA's TPU compiler for a topology, which need not be attached.

    Args:
        topology: See `tpu_check`.

    Raises:
        TrainingError: There is no such topology, or JAX's version is not supported.
    """

    def __init__(self, topology: str) -> None:
        self.topology = topology
        # Else libtpu asks Google's metadata server which TPU this machine has.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        # No chip is used, so that several processes may compile at a time.
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        try:
            from jax.experimental import topologies

            description = topologies.get_topology_desc(topology, "tpu")
        except Exception as error:  # noqa: BLE001
            raise TrainingError(
                "`topology` must be a TPU's kind and shape, such as v5e:2x2. "
                f"Received: {topology!r}: {_first_line(error)}"
            ) from None
        self.devices = description.devices

    @property
    def chip(self) -> tuple[float, float]:
        """Its chips' memory in bytes, and FLOP/s in bfloat16.

        Raises:
            TrainingError: They are not known.
        """
        kind = self.topology.partition(":")[0]
        peak = peak_flops(f"TPU {kind}", "mixed_bfloat16")
        if kind not in TPU_MEMORY or peak is None:
            raise TrainingError(
                f"`topology` must be of {', '.join(TPU_MEMORY)} on JAX. "
                f"Received: {self.topology!r}"
            )
        return TPU_MEMORY[kind] * 2**30, peak

    def figures(self, program: "Program", teraflop: float) -> dict[str, float]:
        """What a program with so many operations needs on a chip."""
        memory, flops = self.chip
        return {
            "state_mib": round(program.state / 2**20),
            "temporary_mib": round(program.temporary / 2**20),
            "of_memory": round((program.state + program.temporary) / memory, 2),
            "teraflop": round(teraflop, 2),
            "least_milliseconds": round(1e15 * teraflop / flops, 1),
            "compiled_seconds": round(program.compiling),
        }

    def compile(self, step: Step) -> str:
        """Compile a step for one chip; report the time it took and its memory."""
        program = _compiler_ir(step.function, step.arguments)("stablehlo")
        began = time.perf_counter()
        try:
            memory = _compile(program, self.devices[0]).get_compiled_memory_stats()
        except Exception as error:  # noqa: BLE001
            raise TrainingError(
                f"{step.name}: not compiled for {self.topology}: {_first_line(error)}"
            ) from None
        seconds = time.perf_counter() - began
        size = memory.argument_size_in_bytes + memory.temp_size_in_bytes
        return (
            f"compiled for a chip of {self.topology} in {seconds:.0f} s; "
            f"{step.arguments[0].shape[0]} images need {size / 2**20:,.0f} MiB there"
        )


def _compile(program: str, device: Any) -> Any:
    """An executable for one device of a topology, of a program as StableHLO text.

    The only use of JAX's private modules for this: `jax.export` and `jax.jit` compile
    what JAX has traced, and `jax.experimental.jax2tf.call_tf` takes no function that
    assigns variables. TensorFlow itself compiles for TPUs that are attached.
    """
    from jax._src.compiler import get_compile_options
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib import _jax
    from jaxlib.mlir import ir

    # TensorFlow copies the new value of each variable with an operation that is not
    # portable; a reshape to the same shape does the same.
    program = re.sub(
        r"mhlo\.copy (%\S+) : (tensor<[^>]*>)",
        r"stablehlo.reshape \1 : (\2) -> \2",
        program,
    )
    with make_ir_context():
        module = ir.Module.parse(program)
    options = get_compile_options(num_replicas=1, num_partitions=1)
    return device.client.compile(module, _jax.DeviceList((device,)), options)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
