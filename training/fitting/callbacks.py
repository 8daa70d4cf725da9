"""The callbacks of a run: console lines, TensorBoard, pictures, few-shot accuracy."""

import functools

import keras
import numpy as np

from keras_vit.base import ImageModel
from keras_vit.common.file_names import TENSORBOARD

from ..data.labeled_images import Split
from ..data.pipeline import images_at
from ..data.splits import Splits
from ..engine.forward_pass import ForwardPass
from ..engine.recorder import Recorder
from ..engine.strategy import is_chief, worker_count
from ..engine.trainer import Trainer
from ..evaluation.evaluate import Evaluation, evaluate, evaluation_pass
from ..probe.fewshot_curve import FewShotCurve
from ..recipe import Recipe
from ..reporting.chance_warning import ChanceWarning
from ..reporting.model_pictures import ModelPictures
from ..reporting.progress_line import EpochLines
from ..reporting.tensorboard import RunBoard
from ..reporting.throughput import Throughput, device_name
from .finish import augmented_examples

PICTURED_IMAGES = 32  # whose attention `report.attention_every` shows


def fewshot_curve(
    recipe: Recipe, splits: Splits, model: ImageModel, trainer: Trainer
) -> list[keras.callbacks.Callback]:
    """The callback of `report.fewshot_every`, or none."""
    every, strategy = recipe.report.fewshot_every, trainer.distribute_strategy
    if not every:
        return []
    return [FewShotCurve(model, splits, every, trainer.local_weights, strategy)]


def tensorboard_callbacks(
    recipe: Recipe,
    splits: Splits,
    learned: Splits,
    recorder: Recorder,
    profile: tuple[int, int] | None,
    draw: bool,
) -> list[keras.callbacks.Callback]:
    """The callbacks that write scalars and images for TensorBoard; for the chief.

    Args:
        recipe: The run's recipe.
        splits: Its images.
        learned: What it is trained on: these, or their features.
        recorder: Its recorder.
        profile: First and last step to profile.
        draw: Whether to write images.
    """
    trainer, strategy = recorder.trainer, recorder.trainer.distribute_strategy

    def evaluate_averaged(images: Split, forward: ForwardPass) -> Evaluation:
        with trainer.averaged_weights():
            return evaluate(trainer.model, images, forward)

    validation = None
    # Of several workers each would have to evaluate, not only the chief.
    alone = worker_count(strategy) == 1 and recipe.supervised
    if draw and learned.validation is not None and alone:
        validation = functools.partial(
            evaluate_averaged,
            learned.validation,
            evaluation_pass(trainer.model, learned.validation),
        )
    throughput = Throughput(recipe.batch_size, trainer.progress.first_step)
    board = RunBoard(
        recorder.folder,
        recipe,
        trainer.model,
        throughput,
        example_images=(
            (lambda: augmented_examples(recipe, splits, recorder)) if draw else None
        ),
        validation=validation,
        profile=profile,
        devices=strategy.num_replicas_in_sync,
        device_name=device_name(),
    )
    return [throughput, board]


def console_lines(
    recipe: Recipe, splits: Splits, recorder: Recorder
) -> list[keras.callbacks.Callback]:
    """The callbacks that print each epoch's figures, and that a run does not learn."""
    lines = [EpochLines(recorder.history)]
    if splits.validation is not None and recipe.supervised:
        lines.append(ChanceWarning(splits.validation.labels))
    return lines


def model_pictures(
    recipe: Recipe, splits: Splits, recorder: Recorder
) -> list[keras.callbacks.Callback]:
    """The callback of `report.attention_every`, or none."""
    trainer, images = recorder.trainer, splits.validation or splits.train
    if not recipe.report.attention_every:
        return []
    shown = range(min(PICTURED_IMAGES, len(images)))
    return [
        ModelPictures(
            recorder.folder / TENSORBOARD / "model",
            np.stack(images_at(images, shown, trainer.model.preprocessing)),
            recipe.report.attention_every,
            is_chief(trainer.distribute_strategy),
        )
    ]
