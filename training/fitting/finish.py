"""What a finished run leaves: scores, pictures, report.json and report.html."""

import os
import platform
import shlex
from dataclasses import asdict

import keras
import tensorflow as tf

import keras_vit
from keras_vit.common import file_names
from keras_vit.common.activity import activity
from keras_vit.typing import Array

from ..architectures.model_reading import read_classifier
from ..data.masking import Masking
from ..data.pipeline import example_images, images_at
from ..data.splits import Splits
from ..engine import run_folder
from ..engine.jax_strategy import AnyStrategy, JaxStrategy
from ..engine.recorder import Recorder, best_epoch
from ..engine.run_folder import Report
from ..engine.strategy import worker_count
from ..evaluation.evaluate import Evaluation, evaluate, print_evaluation
from ..recipe import Recipe
from ..reporting import pictures
from ..reporting.report import mistakes_of, write_pretraining_report, write_report
from ..reporting.throughput import device_name
from ..self_supervision.reconstructions import reconstructions

EXAMPLE_IMAGES = 24  # in the picture of augmented images
RECONSTRUCTIONS = 12  # in the picture of what self-supervision predicts


def finish(recipe: Recipe, splits: Splits, recorder: Recorder, draw: bool) -> Report:
    """Save the last model, evaluate the best one, and write pictures and reports."""
    folder = recorder.folder
    with activity("saving the model"):
        recorder.save_model(file_names.LAST_MODEL)
        if splits.validation is None:
            recorder.save_model(file_names.BEST_MODEL)
    if not recipe.supervised:
        return _finish_pretraining(recipe, splits, recorder, draw)
    with _devices(recorder).scope():
        model = read_classifier(folder / file_names.BEST_MODEL)
        evaluation = evaluate(model, splits.test)
        summary = evaluation.summary()
        report = summary | _run_figures(recipe, splits, recorder)
        if draw:
            with activity("drawing the pictures and report.html"):
                _draw(recipe, splits, recorder, model, evaluation, report)
    run_folder.write_report(folder / file_names.REPORT, report)
    print_evaluation(summary, f"Test images of {recipe.data.source}")
    if draw:
        page = folder / file_names.PAGE
        print(f"model and pictures: {folder}; all on one page: {page}")
        run, versions = (shlex.quote(str(p)) for p in (folder, f"models/{folder.name}"))
        print(f"classify images: keras-vit predict IMAGES --model {run}")
        print(f"serve it: keras-vit export {run} --to {versions}")
    return report


def _devices(recorder: Recorder) -> AnyStrategy:
    """Where the run trained; of several workers, the chief alone.

    It uses all its devices on JAX, and on TensorFlow the first one.
    """
    strategy = recorder.trainer.distribute_strategy
    if isinstance(strategy, JaxStrategy):
        return strategy.on_this_host()
    return strategy if worker_count(strategy) == 1 else tf.distribute.get_strategy()


def _finish_pretraining(
    recipe: Recipe, splits: Splits, recorder: Recorder, draw: bool
) -> Report:
    """Write what a run without labels has: its figures, and what it predicts."""
    folder = recorder.folder
    report = _run_figures(recipe, splits, recorder)
    if draw:
        with activity("drawing the pictures and report.html"):
            _draw_run(recipe, splits, recorder)
            _draw_reconstructions(recipe, splits, recorder)
            write_pretraining_report(folder, report, recipe, recorder.history)
    run_folder.write_report(folder / file_names.REPORT, report)
    print(
        f"encoder: {folder / file_names.BEST_MODEL}; `keras-vit fit --model.weights` "
        "with this file fine-tunes it, `keras-vit probe` evaluates it frozen"
    )
    if draw:
        print(f"pictures: {folder}; all on one page: {folder / file_names.PAGE}")
    return report


def _draw_reconstructions(recipe: Recipe, splits: Splits, recorder: Recorder) -> None:
    """Draw what the last model predicts of masked patches of test images."""
    trainer = recorder.trainer
    with trainer.averaged_weights():
        weights = [keras.ops.convert_to_numpy(w) for w in trainer.model.weights]
    shown = range(min(RECONSTRUCTIONS, len(splits.test)))
    with _devices(recorder).scope():
        rows = reconstructions(
            trainer.model.copy(weights),
            Masking.of(trainer.model.encoder, recipe),
            images_at(splits.test, shown, trainer.model.preprocessing),
        )
    pictures.draw_reconstructions(rows, recorder.folder / file_names.RECONSTRUCTIONS)


def _draw_run(recipe: Recipe, splits: Splits, recorder: Recorder) -> None:
    """Draw the curves and augmented training images."""
    pictures.draw_curves(recorder.history, recorder.folder / file_names.CURVES)
    examples = pictures.example_figure(augmented_examples(recipe, splits, recorder))
    pictures.save(examples, recorder.folder / file_names.EXAMPLES)


def _draw(
    recipe: Recipe,
    splits: Splits,
    recorder: Recorder,
    model: keras.Model,
    evaluation: Evaluation,
    report: Report,
) -> None:
    """Draw the pictures and write report.html."""
    folder = recorder.folder
    _draw_run(recipe, splits, recorder)
    matrix = pictures.confusion_figure(evaluation)
    pictures.save(matrix, folder / file_names.CONFUSION_MATRIX)
    pictures.draw_reliability(evaluation, folder / file_names.RELIABILITY)
    shown = evaluation.mistakes(pictures.MOST_IMAGES)
    wrong = images_at(splits.test, shown, model.preprocessing)
    pictures.draw_misclassified(
        evaluation, shown, wrong, folder / file_names.MISCLASSIFIED
    )
    mistakes = mistakes_of(model, evaluation, shown, wrong, splits.test.names)
    write_report(folder, report, recipe, recorder.history, evaluation, mistakes)


def _run_figures(recipe: Recipe, splits: Splits, recorder: Recorder) -> Report:
    """What report.json says about the run beside the evaluation."""
    trainer = recorder.trainer
    seconds = sum(row["seconds"] for row in recorder.history)
    devices = trainer.distribute_strategy.num_replicas_in_sync
    return {
        "best_epoch": best_epoch(recorder.history),
        "training_images": len(splits.train),
        "bad_images": splits.bad_images,
        "parameters": recorder.saved_model.count_params(),
        "seconds": round(seconds, 1),
        "images_per_second": recorder.history[-1].get("images_per_second"),
        "devices": devices,
        "device_name": device_name(),
        "cores": os.cpu_count() or 1,
        "accelerator_hours": devices * seconds / 3600,
        "seed": recipe.seed,
        "versions": versions(),
        "recipe": asdict(recipe),
    }


def versions() -> dict[str, str]:
    """Versions of the software that the run's numbers depend on."""
    return {
        "keras_vit": keras_vit.__version__,
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "python": platform.python_version(),
    }


def augmented_examples(recipe: Recipe, splits: Splits, recorder: Recorder) -> Array:
    """Augmented training images, as `pipeline.example_images`."""
    preprocessing = recorder.trainer.model.preprocessing
    return example_images(splits.train, recipe, preprocessing, EXAMPLE_IMAGES)
