"""TensorBoard of a run: scalars by step and by epoch, images, a profile.

The folder has three of TensorBoard's runs: `steps` against the step of the whole run,
`train` and `validation` against the epoch, named as by Keras's TensorBoard callback.
That one starts from 0 again in a resumed run, and counts calls of the step function
instead of steps.
"""

import math
import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from keras_vit.analysis import figures
from keras_vit.common.file_names import TENSORBOARD
from keras_vit.typing import Array

from .. import storage
from ..engine.progress import Logs
from ..engine.schedule import learning_rate
from ..evaluation.evaluate import Evaluation
from ..recipe import Recipe
from . import pictures
from .throughput import Throughput, utilization_factor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Seconds between two writes of scalars, of which one takes about 2 ms, and the number
# of writes from which on this interval grows with the run.
WRITE_INTERVAL = 0.5
MANY_WRITES = 10_000
MOST_MATRICES = 20  # confusion matrices in a run


class RunBoard(keras.callbacks.Callback):
    """Callback that writes for `tensorboard --logdir runs`; for the chief only.

    Args:
        folder: The run's folder; `tensorboard/` in it is written.
        recipe: `precision` is used.
        plain_model: The model, whose FLOPs are counted.
        throughput: The callback before this one.
        example_images: Returns augmented images, uint8 [n, H, W, C]; called when a run
            begins.
        validation: Returns the validation images' evaluation; called at the end of
            epochs with a confusion matrix.
        profile: The first and the last step to profile, counted from 1 in the whole
            run; `pip install tensorboard-plugin-profile` shows it.
        devices: Number of devices.
        device_name: Their name; see `throughput.device_name`.
    """

    def __init__(
        self,
        folder: epath.PathLike,
        recipe: Recipe,
        plain_model: keras.Model,
        throughput: Throughput,
        *,
        example_images: Callable[[], Array] | None = None,
        validation: Callable[[], Evaluation] | None = None,
        profile: tuple[int, int] | None = None,
        devices: int,
        device_name: str,
    ) -> None:
        super().__init__()
        self.folder = epath.Path(folder) / TENSORBOARD
        self.throughput = throughput
        self.utilization = utilization_factor(
            plain_model, recipe.precision, devices, device_name
        )
        self.example_images = example_images
        self.validation = validation
        self.profile = profile
        # Steps that were done before; what a killed run wrote of later ones is removed.
        self.first_step = self.written = throughput.first_step
        self.writers: dict[str, tf.summary.SummaryWriter] = {}
        # Of a run that is stopped, before the process ends.
        weakref.finalize(self, _close, self.writers)
        self.profiling = False
        self.began = self.next_write = 0.0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Remove events after the step that the run resumes from."""
        self.began = time.perf_counter()
        if self.first_step:
            epochs_done = self.first_step // self.params["steps"]
            cut_events(self.folder / "steps", self.first_step)
            cut_events(self.folder / "train", epochs_done)
            cut_events(self.folder / "validation", epochs_done)
        elif self.example_images is not None:
            grid = pictures.example_figure(self.example_images())
            self._write_image("train", "augmented images", grid)

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Start profiling before the first step to profile."""
        step = self.throughput.steps_before + batch + 1
        if self.profile and self.profile[0] <= step <= self.profile[1]:
            self._start_profile()

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """Write the logs, if the last write is long enough ago."""
        step = self.throughput.step
        if step == self.first_step:
            return
        if self.profile and step >= self.profile[1]:
            self._stop_profile()
        now = time.perf_counter()
        step -= self.model.progress.lag  # whose figures these are
        if now >= self.next_write and step > self.written:
            self._write_scalars("steps", "", self._completed(logs, step), step)
            self.written = step
            interval = max(WRITE_INTERVAL, (now - self.began) / MANY_WRITES)
            self.next_write = now + interval

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Write the epoch's logs and, in some epochs, the confusion matrix."""
        train = {k: v for k, v in logs.items() if not k.startswith("val_")}
        train = self._completed(train, self.throughput.step)
        self._write_scalars("train", "epoch_", train, epoch + 1)
        validation = {k[4:]: v for k, v in logs.items() if k.startswith("val_")}
        self._write_scalars("validation", "epoch_", validation, epoch + 1)
        every = math.ceil(self.params["epochs"] / MOST_MATRICES)
        last = epoch + 1 == self.params["epochs"]
        if self.validation is not None and (last or (epoch + 1) % every == 0):
            matrix = pictures.confusion_figure(self.validation())
            self._write_image("validation", "confusion matrix", matrix, epoch + 1)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Close the files."""
        self._stop_profile()
        _close(self.writers)

    def _completed(self, logs: Logs, step: int) -> Logs:
        """A step's logs with learning rate and utilization."""
        rate = learning_rate(self.model.optimizer, step - 1)
        figures = {**logs, "learning_rate": rate}
        if self.utilization is not None:
            figures["mfu"] = logs["images_per_second"] * self.utilization
        return figures

    def _writer(self, run: str) -> tf.summary.SummaryWriter:
        if run not in self.writers:
            path = os.fspath(self.folder / run)
            self.writers[run] = tf.summary.create_file_writer(path)
        return self.writers[run]

    def _write_scalars(self, run: str, prefix: str, figures: Logs, step: int) -> None:
        if not figures:
            return
        with self._writer(run).as_default(step):
            for name, value in figures.items():
                tf.summary.scalar(prefix + name, value)

    def _write_image(
        self, run: str, name: str, figure: "Figure", step: int = 0
    ) -> None:
        with self._writer(run).as_default(step):
            tf.summary.image(name, figures.pixels(figure)[np.newaxis])

    def _start_profile(self) -> None:
        if not self.profiling:
            _profiler()[0](os.fspath(self.folder / "steps"))
            self.profiling = True

    def _stop_profile(self) -> None:
        if self.profiling:
            _profiler()[1]()
            self.profiling = False


def _close(writers: dict[str, tf.summary.SummaryWriter]) -> None:
    for writer in writers.values():
        writer.close()


def _profiler() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """The backend's functions that start and stop a profile."""
    if keras.backend.backend() != "jax":
        return tf.profiler.experimental.start, tf.profiler.experimental.stop
    import jax

    return jax.profiler.start_trace, jax.profiler.stop_trace


def cut_events(run: epath.Path, last: int) -> None:
    """Remove events after step `last`, and an incomplete one, from a folder's files.

    TensorBoard's data server would ignore them, but not a reader in Python.
    """
    storage.remove_unfinished(run)
    for path in run.glob("*tfevents*"):
        records = list(_records(path))
        kept = [r for r in records if tf.compat.v1.Event.FromString(r).step <= last]
        with (
            storage.atomic_write(path) as local,
            tf.io.TFRecordWriter(os.fspath(local)) as writer,
        ):
            for record in kept:
                writer.write(record)


def _records(path: epath.Path) -> Iterator[bytes]:
    """The complete records of a file; a killed run may have left an incomplete one."""
    try:
        yield from tf.data.TFRecordDataset(os.fspath(path)).as_numpy_iterator()
    except tf.errors.DataLossError:
        return
