"""Few-shot accuracy while a model trains, as the curves of the paper's Figure 4."""

import contextlib
from collections.abc import Callable

import keras

from keras_vit.base import ImageModel

from ..data.splits import Splits
from ..engine.jax_strategy import AnyStrategy
from ..engine.progress import Logs
from ..errors import RecipeError
from .features import FeatureExtractor
from .fewshot import FewShotTask, mean_and_deviation

NAME = "val_fewshot_{}"  # in history.csv; in TensorBoard under `validation`


class FewShotCurve(keras.callbacks.Callback):
    """Callback that adds few-shot accuracies to the logs of every n-th epoch.

    It stands before the callbacks that write the logs. The shots are training images
    without augmentation, the same in each epoch; the accuracy is of the validation
    images, the mean of three seeds. It draws no random numbers of the training, so a
    resumed run has the same figures.

    Args:
        model: The plain model to evaluate, which may be the encoder of the trained one:
            it reads pixels from 0 to 255, with or without classes.
        splits: The run's images.
        every: Epochs between two evaluations; the last epoch has one as well.
        averaged_weights: Makes a context in which the model has its averaged weights.
        strategy: The strategy in whose scope the model was created.

    Raises:
        RecipeError: There are no validation images.
        DataError: A class has no training images.
        RunError: The model has no pooled features.
    """

    def __init__(
        self,
        model: ImageModel,
        splits: Splits,
        every: int,
        averaged_weights: Callable[[], contextlib.AbstractContextManager[None]],
        strategy: AnyStrategy,
    ) -> None:
        super().__init__()
        if splits.validation is None:
            raise RecipeError(
                "`report.fewshot_every` must be 0 where there are no validation images "
                f"(`data.validation`). Received: {every}"
            )
        self.extractor = FeatureExtractor(model, strategy)
        self.task = FewShotTask(splits.train, splits.validation, splits.class_names)
        self.every = every
        self.averaged_weights = averaged_weights

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Add the accuracies to the logs."""
        last = epoch + 1 == self.params["epochs"]
        if (epoch + 1) % self.every and not last:
            return
        with self.averaged_weights():
            support = self.extractor(self.task.support)
            test = self.extractor(self.task.test)
        for (shots, _), values in self.task.accuracies(support, test).items():
            logs[NAME.format(shots)] = mean_and_deviation(values)[0]
