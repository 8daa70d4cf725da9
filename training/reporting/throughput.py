"""Throughput of a run: images per second, and model FLOPs utilization (MFU)."""

import math
import os
import time
from collections import deque

import keras
import tensorflow as tf

import keras_vit
from keras_vit.costs import Costs, resnet_costs, vit_costs

from ..engine.device_peaks import peak_flops
from ..engine.progress import Logs

WINDOW = 5.0  # seconds over which the current throughput is measured


class Throughput(keras.callbacks.Callback):
    """Callback that adds `images_per_second` to the logs.

    Put it before all callbacks that use the figure: Keras passes one dict to all of
    them in their order, its own progress bar and history last. Inside an epoch the
    figure is that of the last seconds, at its end the epoch's. Validation does not
    count, nor does the first call of the step function, which compiles it, as soon as
    there is a second one.

    Args:
        images_per_step: The global batch size.
        first_step: Steps of the whole run that were done before; those that the trainer
            skips in the first epoch do not count.
    """

    def __init__(self, images_per_step: int, first_step: int = 0) -> None:
        super().__init__()
        self.images_per_step = images_per_step
        self.first_step = first_step
        self.step = first_step  # steps of the whole run that are done
        self.images_per_second = math.nan  # in the last seconds
        # Seconds and images of the steps so far, without the first: of the whole run,
        # when the epoch began, and in the last seconds.
        self.total = (0.0, 0)
        self.epoch_began = self.total
        self.recent = deque([self.total])
        self.steps_before = 0
        self.clock = 0.0

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Start the clock."""
        self.steps_before = epoch * self.params["steps"]
        self.epoch_began = self.total
        self.clock = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """Count the steps of this call, of which `batch` is the last."""
        now, step = time.perf_counter(), self.steps_before + batch + 1
        seconds, images = now - self.clock, (step - self.step) * self.images_per_step
        self.clock = now
        if step <= self.first_step:
            # Of an epoch that only its evaluation lacks.
            self.images_per_second = logs.get("images_per_second", math.nan)
            return
        if self.step == self.first_step:
            self.images_per_second = images / seconds
        else:
            self.total = (self.total[0] + seconds, self.total[1] + images)
            self.recent.append(self.total)
            while self.total[0] - self.recent[1][0] >= WINDOW:
                self.recent.popleft()
            self.images_per_second = self._speed(self.recent[0])
        self.step = step
        logs["images_per_second"] = self.images_per_second

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Add the epoch's figure."""
        logs["images_per_second"] = self._speed(self.epoch_began)

    def _speed(self, since: tuple[float, int]) -> float:
        seconds, images = self.total[0] - since[0], self.total[1] - since[1]
        return images / seconds if images else self.images_per_second


def closed_form_costs(model: keras.Model, bytes_per_value: int = 4) -> Costs | None:
    """Costs of a model.

    Returns:
        The costs, or None for a model without a closed form in `keras_vit.costs`.
    """
    if isinstance(model, keras_vit.ResNet):
        sizes = (model.image_size, model.channels, model.classes, bytes_per_value)
        return resnet_costs(model.blocks, model.width_factor, *sizes)
    if not isinstance(model, keras_vit.VisionTransformer):
        return None
    return vit_costs(model, bytes_per_value)


def utilization_factor(
    model: keras.Model, precision: str, devices: int, device_name: str
) -> float | None:
    """Model FLOPs utilization (MFU) at one image per second.

    A training step takes three times the FLOPs of the forward pass: the backward pass
    has two products for each one. Recomputation by rematerialization does not count
    (appendix B of PaLM, arXiv:2204.02311).

    Returns:
        The share of all devices' peak, or None where the peak or the model's FLOPs are
        unknown.
    """
    costs, peak = closed_form_costs(model), peak_flops(device_name, precision)
    if costs is None or peak is None:
        return None
    return 3 * costs.flops / (devices * peak)


def device_name() -> str:
    """Name of the GPU or TPU that the run uses, or CPU."""
    if keras.backend.backend() == "jax":
        import jax

        device = jax.devices()[0]
        return "CPU" if device.platform == "cpu" else device.device_kind
    if tf.config.list_logical_devices("TPU"):
        return f"TPU {os.environ.get('TPU_ACCELERATOR_TYPE', '')}".strip()
    if gpus := tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpus[0])
        return str(details.get("device_name", "GPU"))
    return "CPU"
