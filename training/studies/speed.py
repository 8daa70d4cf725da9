"""Speed of an untrained model on this device, and the largest batch (Figure 12)."""

import functools
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from keras_vit.costs import Costs
from keras_vit.typing import Array

from ..architectures.compiling import compile_trainer
from ..architectures.recipe_model import build_model
from ..engine.run_folder import Report
from ..recipe import Recipe
from ..reporting.throughput import device_name
from .estimates import CLASSES, model_config_costs

LARGEST = 4096  # images in a batch
GROWTH = 8  # from one batch size to the next; each is compiled anew
GAIN = 1.05  # below which a larger batch is not worth its memory
SECONDS = 0.5  # from which on a step is no longer repeated
MORE_STEPS = 8
# Of a core of TPUv3, the paper's device. In training each weight takes four numbers:
# its value, its gradient and Adam's two averages.
MEMORY = 16e9
BYTES_OF_A_WEIGHT = 4 * 4
Steps = Callable[[int, int], None]  # computes batches: images in each, number


def measure(recipe: Recipe) -> Report:
    """Measure the forward pass and the training step, each at its best batch size.

    Returns:
        What report.json has: images per second are the peak over batch sizes;
        `largest_batch` is tried on a GPU, and otherwise in closed form for 16 GB.
    """
    names = tuple(map(str, range(CLASSES)))
    model = build_model(recipe.model, names, recipe.precision)
    forward = _forward(model)
    train = _training(model, recipe)
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    costs = model_config_costs(recipe.model, len(names))
    largest = None if costs is None else closed_form_batch(costs)
    return {
        "forward_images_per_second": peak_speed(forward),
        "images_per_second": peak_speed(train),
        "largest_batch": largest_batch(train) if on_gpu else largest,
        "largest_batch_is": "measured" if on_gpu else "closed form, 16 GB",
        "tokens": None if costs is None else costs.tokens or None,  # of a ResNet
        "parameters": model.count_params(),
        "classes": names,
        "device_name": device_name(),
    }


def closed_form_batch(costs: Costs) -> int:
    """Images of a training step in `MEMORY`, in closed form."""
    free = MEMORY - BYTES_OF_A_WEIGHT * costs.parameters
    return max(0, int(free // costs.training_bytes))


def peak_speed(steps: Steps, clock: Callable[[], float] = time.perf_counter) -> float:
    """Images per second of the fastest of the batch sizes 1, 8, 64, ...

    It ends with a batch that takes longer than `SECONDS`, that does not fit, or that is
    less than `GAIN` faster than the ones before.
    """
    best, batch = 0.0, 1
    while batch <= LARGEST:
        try:
            seconds = _step_seconds(steps, batch, clock)
        except tf.errors.ResourceExhaustedError:
            break
        before, best = best, max(best, batch / seconds)
        if seconds > SECONDS or best < GAIN * before:
            break
        batch *= GROWTH
    return best


def _step_seconds(steps: Steps, batch: int, clock: Callable[[], float]) -> float:
    """Seconds of one more step, each duration the shorter of two."""

    def duration(count: int) -> float:
        began = clock()
        steps(batch, count)
        return clock() - began

    steps(batch, 1)  # compiles
    once = min(duration(1), duration(1))
    if once > SECONDS:
        return once
    more = MORE_STEPS
    often = min(duration(1 + more), duration(1 + more))
    # What a call takes beside its steps, such as that of `fit`, is in both.
    return max((often - once) / more, often / (1 + more) / MORE_STEPS)


def largest_batch(steps: Steps) -> int:
    """The largest power of two of images that fits, up to 65,536; 0 for none."""
    batch = 0
    for power in range(17):
        try:
            steps(2**power, 1)
        except tf.errors.ResourceExhaustedError:
            break
        batch = 2**power
    return batch


def _forward(model: keras.Model) -> Steps:
    call = tf.function(lambda images: model(images, training=False), autograph=False)
    images = functools.lru_cache(1)(lambda batch: tf.constant(_pixels(model, batch)))

    def steps(batch: int, count: int) -> None:
        for _ in range(count):
            scores = call(images(batch))
        scores.numpy()

    return steps


def _training(model: keras.Model, recipe: Recipe) -> Steps:
    trainer = compile_trainer(model, recipe, 1_000_000, 1000)

    @functools.lru_cache(1)
    def data(batch: int) -> tf.data.Dataset:
        labels = np.eye(CLASSES, dtype="float32")[np.arange(batch) % CLASSES]
        return tf.data.Dataset.from_tensors((_pixels(model, batch), labels)).repeat()

    def steps(batch: int, count: int) -> None:
        trainer.fit(data(batch), steps_per_epoch=count, epochs=1, verbose=0)

    return steps


def _pixels(model: keras.Model, batch: int) -> Array:
    """Random images, float32 [batch, H, W, C] of 0 to 255."""
    size = (*model.preprocessing.image_size, model.channels)
    random = np.random.default_rng(0)
    return random.integers(0, 256, (batch, *size)).astype("float32")
