"""Read a model from what a user has: a run, a `.keras` file, a checkpoint, a preset."""

from pathlib import Path
from typing import Any

from keras_vit import ResNet, VisionTransformer
from keras_vit.base import ImageModel
from keras_vit.classifier_metadata import complete_classifier, reading_raw_pixels
from keras_vit.common.file_names import BEST_MODEL
from keras_vit.weights.checkpoint import open_checkpoint
from keras_vit.weights.presets import fetch

from ..engine import run_folder
from ..errors import RunError


def read_any_model(name: str, pixels: str | None = None) -> Any:
    """Read a model that reads pixels from 0 to 255, with or without a classifier.

    Args:
        name: A run's folder; a `.keras` file; a checkpoint of any family, or its
            folder; `hf://owner/name`; or published weights, `VARIANT:NAME`.
        pixels: `"raw"` or `"normalized"`, for a model that does not state what it
            reads.

    Raises:
        RunError: There is no such model, or it is not one of keras_vit.
    """
    model = _read(name)
    if not isinstance(model, ImageModel):
        raise RunError(
            f"{name}: must be a VisionTransformer, ResNet or ImageClassifier of "
            f"keras_vit. Received: a {type(model).__name__} of Keras"
        )
    try:
        return reading_raw_pixels(model, pixels)
    except ValueError as error:
        raise RunError(f"{name}: {error}") from None


def read_any_classifier(
    name: str, class_names: str | None = None, pixels: str | None = None
) -> Any:
    """Read a model with a classifier whose classes have names; see `read_any_model`.

    Args:
        name: See `read_any_model`.
        class_names: For a model without; see `run_folder.load_model`.
        pixels: See `read_any_model`.
    """
    try:
        return complete_classifier(_read(name), class_names, pixels)
    except ValueError as error:
        raise RunError(f"{name}: {error}") from None


def _read(name: str) -> Any:
    path = Path(name)
    if (path / run_folder.RECIPE).is_file() or (path / BEST_MODEL).is_file():
        path /= BEST_MODEL
    if path.suffix == ".keras":
        return run_folder.read_model(path)
    try:
        with open_checkpoint(fetch(name)) as checkpoint:
            architecture = checkpoint.described.model
        vit = architecture == VisionTransformer.architecture
        return (VisionTransformer if vit else ResNet).from_preset(name)
    except (ValueError, OSError) as error:
        raise RunError(f"{name}: {' '.join(str(error).split())}") from None
