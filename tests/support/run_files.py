"""What a run leaves in its folder, as its tests compare it."""

import csv

import numpy as np
import pytest

from training.architectures.model_reading import read_classifier
from training.fitting.fit import Recorder, fit


def history(folder):
    """The figures of each epoch that has them, without durations and speed."""
    with (folder / "history.csv").open() as file:
        return [
            {k: float(v) for k, v in row.items() if v and "second" not in k}
            for row in csv.DictReader(file)
        ]


def weights(folder, name="last"):
    """The arrays of the best or last model."""
    return read_classifier(folder / f"{name}.keras").get_weights()


def checkpoint(folder):
    """The arrays of the last checkpoint, and the text that describes it."""
    arrays = dict(np.load(max((folder / "checkpoints").glob("*.npz"))))
    return arrays, str(arrays.pop("__meta__"))


class _Stop(Exception):
    pass


def fit_and_stop(recipe, folder, save=False):
    """Train until the middle of the second epoch, and perhaps save a checkpoint."""

    def stop(recorder, batch, logs=None):
        if len(recorder.history) == 1 and batch == 5:
            if save:
                recorder.save()
            raise _Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "on_train_batch_end", stop)
        with pytest.raises(_Stop):
            fit(recipe, folder, draw=False)
