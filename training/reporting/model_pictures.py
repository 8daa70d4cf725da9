"""What a model has learned so far, as pictures in TensorBoard."""

import contextlib
import os

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from keras_vit.analysis import figures
from keras_vit.analysis.inspection import inspect_model
from keras_vit.typing import Array

from ..engine.progress import Logs
from ..engine.strategy import worker_count
from ..engine.trainer import Trainer
from .tensorboard import cut_events


class ModelPictures(keras.callbacks.Callback):
    """Callback that writes the pictures of `keras-vit inspect` into TensorBoard.

    They are filters, position similarity, attention distance, attention of the output
    and rollout, as far as they apply to the model: one of keras_vit in stock Keras's
    `fit`, or in a `Trainer`, whose averaged weights are shown. A training that goes on
    from a later epoch (`initial_epoch`) replaces the pictures of those that follow.

    Args:
        folder: Where the events are written, such as `logs/model`.
        images: uint8 [n, H, W, C], of the model's size, 0 to 255. Attention distance
            is of all, the other pictures of the first few.
        every: Epochs between two sets of pictures; the last epoch has one too.
        chief: Whether this process writes. Of several workers each needs the callback,
            because they exchange averaged weights together.

    Raises:
        ImportError: matplotlib is not installed.
    """

    def __init__(
        self,
        folder: epath.PathLike,
        images: Array,
        every: int = 1,
        chief: bool = True,
    ) -> None:
        super().__init__()
        figures.figure(1, 1)  # report a missing extra before the training
        self.folder = epath.Path(folder)
        self.images = images
        self.every = every
        self.chief = chief
        self.writer: tf.summary.SummaryWriter | None = None  # only the chief's

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Remove the pictures of later epochs, at the first one."""
        if self.chief and self.writer is None:
            if epoch:
                cut_events(self.folder, epoch)
            self.writer = tf.summary.create_file_writer(os.fspath(self.folder))

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Draw, in some epochs."""
        if (epoch + 1) % self.every and epoch + 1 < self.params["epochs"]:
            return
        trainer = self.model
        of_trainer = isinstance(trainer, Trainer)
        weights = trainer.local_weights if of_trainer else contextlib.nullcontext
        # So that what is made of the model computes where it does.
        devices = contextlib.nullcontext()
        if of_trainer and worker_count(trainer.distribute_strategy) == 1:
            devices = trainer.distribute_strategy.scope()
        with weights(), devices:
            if self.writer is not None:
                model = trainer.model if of_trainer else trainer
                # With self-supervision, what the model to train is made around.
                model = getattr(model, "encoder", model)
                self._write(self.writer, model, epoch + 1)

    def _write(
        self, writer: tf.summary.SummaryWriter, model: keras.Model, step: int
    ) -> None:
        found = inspect_model(model, self.images)
        with writer.as_default(step):
            for name, drawn in found.figures.items():
                picture = figures.pixels(drawn)[np.newaxis]
                tf.summary.image(name.replace("_", " "), picture)
        writer.flush()

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None
