"""What a device lacks for a recipe: memory for a step, or units for a precision."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from ..engine.device_peaks import peak_flops
from ..engine.trainer import Trainer
from ..errors import TrainingError
from ..recipe import Recipe
from ..reporting.throughput import closed_form_costs, device_name

# Processors' instructions that multiply in a precision, as /proc/cpuinfo names them.
INSTRUCTIONS = {
    "mixed_bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "mixed_float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}
# Share of the free memory that is planned with: what XLA allocates is the estimate,
# but TensorFlow's kernels, with copies of their own, need up to 1.5 times as much.
PLANNED = 0.5
OUT_OF_MEMORY = re.compile(r"\bOOM\b|out of memory", re.IGNORECASE)
# Flags that save memory, and the value of the recipe with which each is in use.
SAVING: dict[str, Callable[[Recipe], bool]] = {
    "--model.rematerialize true": lambda recipe: recipe.model.rematerialize,
    "--precision mixed_bfloat16": lambda recipe: recipe.precision != "float32",
    "--model.lora_rank 8": lambda recipe: recipe.model.lora_rank is not None,
}


@contextlib.contextmanager
def memory_errors(recipe: Recipe, trainer: Trainer) -> Iterator[None]:
    """Convert errors of a device that is out of memory to TrainingError.

    The message says what would fit, as far as `keras_vit.costs` has the model.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        problem = _memory_problem(recipe, trainer, _free_memory())
        raise TrainingError(problem) from None


def is_out_of_memory(error: Exception) -> bool:
    """Whether TensorFlow, JAX or NumPy could not allocate a tensor."""
    if isinstance(error, (tf.errors.ResourceExhaustedError, RuntimeError)):
        return bool(OUT_OF_MEMORY.search(str(error)))  # not such as a full disk
    return isinstance(error, MemoryError)


def _memory_problem(recipe: Recipe, trainer: Trainer, free: int | None) -> str:
    """What did not fit, and what would."""
    replicas = trainer.distribute_strategy.num_replicas_in_sync
    images = recipe.batch_size // replicas
    at_once = images // recipe.accumulation
    fitting = at_once // 2  # where nothing else is known
    needed = ""
    each = _bytes_per_image(trainer.model, recipe)
    if each is not None and free is not None:
        variables = trainer.model.trainable_variables
        gradients = sum(4 * int(np.prod(v.shape)) for v in variables)
        room = max(free - gradients, 0) * PLANNED
        fitting = min(fitting, int(room // each))
        needed = (
            f", which need about {(gradients + at_once * each) / 2**30:.1f} GiB of "
            f"{free / 2**30:.1f} GiB"
        )
    advice = [flag for flag, used in SAVING.items() if not used(recipe)]
    if fitting:
        parts = range(recipe.accumulation + 1, images + 1)
        divisors = (n for n in parts if images % n == 0 and images // n <= fitting)
        advice.insert(0, f"--accumulation {next(divisors)} for the same batch")
        wanted = f"small enough for the memory: about {fitting} images at once would be"
    else:
        wanted = "small enough for the memory, in which one image may be too much"
    return (
        f"`batch_size` must be {wanted}. Received: batch_size={recipe.batch_size}, "
        f"{replicas} device(s) and accumulation={recipe.accumulation}, {at_once} "
        f"images at once{needed}. What saves memory: {', '.join(advice)}"
    )


def _bytes_per_image(model: keras.Model, recipe: Recipe) -> int | None:
    """Activations of a training step and their gradients, for one image.

    Returns:
        Bytes, or None for a model without a closed form.
    """
    size = 4 if recipe.precision == "float32" else 2
    costs = closed_form_costs(model, size)
    if costs is None:
        return None
    kept = costs.training_bytes
    if recipe.model.rematerialize:
        # The inputs of all blocks, and what is kept of one.
        kept = kept // model.depth + model.depth * costs.tokens * model.width * size
    return kept + costs.inference_bytes


def _free_memory() -> int | None:
    """Free bytes of a device, or None where they are unknown."""
    if keras.backend.backend() == "jax":
        import jax

        if stats := jax.local_devices()[0].memory_stats():
            free: int = stats["bytes_limit"] - stats["bytes_in_use"]
            return free
    elif tf.config.list_logical_devices("GPU"):
        # `tf.config` tells what is in use, but not the limit of the memory
        # (tensorflow/tensorflow#7537).
        from tensorflow.python.client import device_lib

        devices = device_lib.list_local_devices()
        limits = [d.memory_limit for d in devices if d.device_type == "GPU"]
        used: int = tf.config.experimental.get_memory_info("GPU:0")["current"]
        return int(min(limits)) - used
    return _free_ram() if device_name() == "CPU" else None


def _free_ram() -> int | None:
    """Free bytes of the machine, or of this process where `ulimit -v` has fewer."""
    if sys.platform != "linux":
        return None
    import resource

    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    fields = dict(line.split(":") for line in lines)
    free = 1024 * int(fields["MemAvailable"].split()[0])
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return free
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    return min(free, limit - pages * os.sysconf("SC_PAGE_SIZE"))


def precision_warning(precision: str, device: str) -> str | None:
    """What to say of a device that computes a precision without units for it.

    Returns:
        A line, or None where the device has such units, or it is not known whether.
    """
    if device == "CPU":
        units, words = INSTRUCTIONS.get(precision, set()), _processor_words()
        lacking = bool(units and words) and not units & words
    else:
        known = peak_flops(device, "float32") is not None
        lacking = known and peak_flops(device, precision) is None
    if not lacking:
        return None
    return (
        f"this {device} has no units for `precision` {precision}, which is likely to "
        "be slower than float32"
    )


def _processor_words() -> set[str]:
    """All words of /proc/cpuinfo; none where there is no such file."""
    file = Path("/proc/cpuinfo")
    return set(file.read_text("utf-8").split()) if file.exists() else set()
