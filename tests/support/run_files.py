"""What a run leaves in its folder, as its tests compare it."""

import csv
import shutil
import zipfile

import h5py
import keras
import numpy as np


def history(folder):
    """The figures of each epoch that has them, without durations and speed."""
    with (folder / "history.csv").open() as file:
        return [
            {k: float(v) for k, v in row.items() if v and "second" not in k}
            for row in csv.DictReader(file)
        ]


def weights(folder, name="last"):
    """The arrays in the file of the best or last model, by their names there."""
    with (
        zipfile.ZipFile(folder / f"{name}.keras") as archive,
        archive.open("model.weights.h5") as contents,
        h5py.File(contents) as file,
    ):
        arrays = {}
        file.visititems(
            lambda path, item: (
                arrays.update({path: item[()]})
                if isinstance(item, h5py.Dataset)
                else None
            )
        )
    return arrays


def checkpoint(folder):
    """The arrays of the last checkpoint, and the text that describes it."""
    arrays = dict(np.load(max((folder / "checkpoints").glob("*.npz"))))
    return arrays, str(arrays.pop("__meta__"))


class CopyAsKilled(keras.callbacks.Callback):
    """Copies a run's folder in the second epoch: what a kill at this batch leaves."""

    def __init__(self, folder, copy, batch=5):
        super().__init__()
        self.folder, self.copy = folder, copy
        self.place = (1, batch)
        self.epoch = None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.place:
            shutil.copytree(self.folder, self.copy)
