"""Prediction: classify image files with a trained model."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from PIL import Image
from rich.console import Console
from rich.table import Table

import keras_vit
from keras_vit import decoding
from keras_vit.common.activity import activity
from keras_vit.typing import Array

from .. import storage
from ..engine.forward_pass import ForwardPass, even_batches
from ..errors import RecipeError
from .attention_pictures import attention_maps, has_attention, heat_map
from .prediction_files import STDIN, Prediction, picture_names, standard_input

BATCH_SIZE = 64
SIDE = 448  # pixels; smaller images are enlarged to it in pictures of attention


def predict(
    model: keras.Model,
    files: Sequence[Path],
    top: int = 1,
    attention: Path | None = None,
) -> list[Prediction]:
    """Classify image files; long work shows its progress on stderr.

    Raises:
        RecipeError: Attention is wanted of a model without attention between all
            patches.
    """
    if attention is not None and not has_attention(model):
        raise RecipeError(
            "--attention: needs a VisionTransformer with attention='full'. Received: "
            f"{type(model).__name__} {model.name}"
        )
    predictions: list[Prediction] = []
    size = even_batches(len(files), BATCH_SIZE)
    forward = ForwardPass(model, batch_size=size)
    names = picture_names(files)
    for start in range(0, len(files), size):
        part = slice(start, start + size)
        with activity(f"classifying images, {start} of {len(files)} are done"):
            found, images = _predict_batch(forward, files[part], top)
            predictions += found
            if attention is not None and images:
                pairs = zip(names[part], found, strict=True)
                good = [attention / name for name, p in pairs if not p.error]
                _draw_attention(model, images, good)
    return predictions


def _predict_batch(
    forward: ForwardPass, files: Sequence[Path], top: int
) -> tuple[list[Prediction], list[Array]]:
    """The predictions, and the images among the files as the model sees them."""
    model = forward.network
    read = [_read(model, path) for path in files]
    images = [image for image in read if not isinstance(image, str)]
    best: list[list[tuple[str, str, float]]] = []
    if images:
        probabilities = model.probabilities(forward(np.stack(images)))
        best = keras_vit.decode_predictions(probabilities, top, model.class_names)
    rows = iter([(name, score) for _, name, score in row] for row in best)
    predictions = [
        Prediction(file, [], image)
        if isinstance(image, str)
        else Prediction(file, next(rows))
        for file, image in zip(files, read, strict=True)
    ]
    return predictions, images


def _read(model: keras.Model, path: Path) -> Array | str:
    """The image as the model sees it, or why there is none."""
    if path == STDIN:
        return _read_standard_input(model)
    try:
        image = decoding.load_image(path, model.channels)
    except ValueError as error:
        return str(error)
    resized: Array = decoding.resize_image(
        tf.constant(image), model.preprocessing
    ).numpy()
    return resized


def _read_standard_input(model: keras.Model) -> Array | str:
    """As `_read`, of the image on standard input."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, STDIN.name)
        file.write_bytes(standard_input())
        image = _read(model, file)
    return image.replace(str(file), str(STDIN)) if isinstance(image, str) else image


def _draw_attention(
    model: keras.Model, images: list[Array], paths: Sequence[Path]
) -> None:
    """Write each image, and beside it its attention rollout over the image."""
    maps = attention_maps(model, np.stack(images))
    for image, weights, path in zip(images, maps, paths, strict=True):
        factor = max(1, SIDE // max(image.shape[:2]))
        large = np.broadcast_to(image, (*image.shape[:2], 3)).repeat(factor, 0)
        large = large.repeat(factor, 1)  # the pixels that the model got stay visible
        gray = large.mean(axis=-1, keepdims=True)
        heat = heat_map(weights, large.shape[:2])
        over = (0.4 * gray + 0.6 * heat).round().astype("uint8")
        path.parent.mkdir(parents=True, exist_ok=True)
        with storage.atomic_write(path) as local:
            Image.fromarray(np.hstack([large, over])).save(local, "png")


def print_predictions(predictions: Sequence[Prediction]) -> None:
    """Print the classes of each valid image."""
    table = Table("image", "class", "probability")
    for file, classes, _ in predictions:
        for rank, (name, probability) in enumerate(classes):
            table.add_row("" if rank else str(file), name, f"{probability:.4f}")
    Console().print(table)
