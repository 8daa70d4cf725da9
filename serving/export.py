"""From a trained `.keras` file to the next version of a served model."""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .publish import staged_version, versions

# Agreement that is asked of the SavedModel and the live model, on probabilities.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 5e-3}


class ExportError(Exception):
    """An export that cannot be done; the message is for the user."""


def main(argv: list[str]) -> int:
    """Runs `python -m serving export`.

    Args:
        argv: The arguments after `export`.

    Returns:
        The exit status: 0, or 1 when nothing was published.
    """
    parser = argparse.ArgumentParser(
        prog="python -m serving export",
        description="Writes a trained model as the next version of a served model.",
    )
    parser.add_argument(
        "model", type=pathlib.Path, help="a .keras file, or a run's folder"
    )
    parser.add_argument(
        "--to",
        type=pathlib.Path,
        required=True,
        metavar="FOLDER",
        help="the model's folder, which holds one sub-folder for each version",
    )
    parser.add_argument(
        "--top-k",
        type=int,
        default=5,
        metavar="K",
        help="classes in each answer, best first; default 5",
    )
    parser.add_argument(
        "--check-images",
        nargs="+",
        type=pathlib.Path,
        metavar="IMAGE",
        help="images to compare the written model with the live one; default: the "
        "photographs that scikit-learn carries",
    )
    arguments = parser.parse_args(argv)
    try:
        path, difference = export(
            load(arguments.model),
            arguments.to,
            top_k=arguments.top_k,
            check_images=arguments.check_images or sample_images(),
        )
    except ExportError as error:
        print(f"serving export: {error}", file=sys.stderr)
        return 1
    print(f"{path}: published; agrees with {arguments.model} to {difference:.1e}")
    return 0


def load(path: pathlib.Path) -> Any:
    """Loads a trained classifier.

    Args:
        path: A `.keras` file, or a folder that holds `best.keras`.

    Returns:
        The `keras_vit.VisionTransformer`.

    Raises:
        ExportError: No such file, no such format, or another kind of model.
    """
    if path.is_dir():
        path = path / "best.keras"
    if not path.is_file():
        raise ExportError(f"{path}: no such file")
    import keras

    import keras_vit

    if keras.backend.backend() != "tensorflow":
        raise ExportError(
            "needs KERAS_BACKEND=tensorflow; a .keras file of another backend opens "
            f"there. Received: KERAS_BACKEND={keras.backend.backend()}"
        )
    try:
        model = keras.models.load_model(path, compile=False)
    except Exception as error:  # Keras raises many kinds for a damaged file.
        reason = str(error).strip().splitlines()[0]
        raise ExportError(f"{path}: not a readable .keras file: {reason}") from None
    if not isinstance(model, keras_vit.VisionTransformer) or not model.classes:
        raise ExportError(
            f"{path}: must hold a keras_vit.VisionTransformer with classes. "
            f"Received: {type(model).__name__} {model.name!r}"
        )
    return model


def sample_images() -> list[pathlib.Path]:
    """The photographs that scikit-learn carries.

    Raises:
        ExportError: scikit-learn is not installed.
    """
    try:
        import sklearn.datasets
    except ImportError:
        raise ExportError(
            "`--check-images` is needed where scikit-learn, which carries two "
            'photographs, is not installed: pip install "keras-vit[train]"'
        ) from None
    folder = pathlib.Path(sklearn.datasets.__file__).parent / "images"
    return sorted(folder.glob("*.jpg"))


def export(
    model: Any,
    base_path: pathlib.Path,
    *,
    top_k: int = 5,
    check_images: Sequence[pathlib.Path],
) -> tuple[pathlib.Path, float]:
    """Writes a model as the next version, after comparing it with the live one.

    Args:
        model: A `keras_vit.VisionTransformer` with classes.
        base_path: The model's folder, which holds the versions.
        top_k: Number of classes K in each answer, best first.
        check_images: Image files for the comparison.

    Returns:
        The version's folder, and the largest difference of a score.

    Raises:
        ExportError: The folder cannot be written, or what was written does not agree
            with the live model. Nothing is published then.
    """
    import tensorflow as tf

    if not top_k >= 1:
        raise ExportError(f"`--top-k` must be at least 1. Received: {top_k}")
    try:
        with staged_version(base_path) as folder:
            _save(model, folder, min(top_k, model.classes))
            difference = _compare(model, folder, check_images)
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise ExportError(f"{base_path}: cannot be written: {reason}") from None
    return base_path / str(versions(base_path)[-1]), difference


def class_labels(model: Any) -> list[str]:
    """The model's class names, ImageNet's for 1,000 classes, or the class indices."""
    import keras_vit

    if model.class_names is not None:
        return list(model.class_names)
    if model.classes == 1000:
        return [name for _, name in keras_vit.imagenet_labels()]
    return [str(index) for index in range(model.classes)]


def _save(model: Any, folder: pathlib.Path, top_k: int) -> None:
    """Writes the SavedModel with its two signatures."""
    import tensorflow as tf

    from keras_vit import ImagePreprocessing
    from keras_vit.decoding import decode_and_resize

    height, width = model.image_size
    image_shape = [height, width, model.channels]
    preprocessing = model.preprocessing or ImagePreprocessing(model.image_size)
    labels = tf.constant(class_labels(model))

    def classify(images):
        pixels = tf.cast(images, tf.float32)
        if model.preprocessing is None:
            pixels = preprocessing(pixels)
        scores = tf.cast(model(pixels, training=False), tf.float32)
        if model.classifier_activation is None:
            scores = tf.nn.softmax(scores)
        scores, class_ids = tf.math.top_k(scores, top_k)
        return {
            "classes": tf.ensure_shape(tf.gather(labels, class_ids), [None, top_k]),
            "class_ids": tf.cast(class_ids, tf.int64),
            "scores": scores,
        }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "image_bytes")])
    def serving_default(image_bytes):
        with tf.control_dependencies([_assert_not_empty(image_bytes, "image_bytes")]):
            images = tf.map_fn(
                lambda data: decode_and_resize(data, preprocessing, model.channels),
                image_bytes,
                fn_output_signature=tf.TensorSpec(image_shape, tf.uint8),
            )
        return classify(images)

    @tf.function(
        input_signature=[tf.TensorSpec([None, *image_shape], tf.uint8, "images")]
    )
    def serve_images(images):
        # tf.ensure_shape is left out where the shape is known to Python, but a server
        # feeds whatever a client sends.
        images = tf.raw_ops.EnsureShape(input=images, shape=[None, *image_shape])
        with tf.control_dependencies([_assert_not_empty(images, "images")]):
            return classify(tf.identity(images))

    # The bare variables, not the Keras model: Keras would store each of them twice.
    module = tf.Module()
    module.variables_ = [variable.value for variable in model.variables]
    tf.saved_model.save(
        module,
        str(folder),
        signatures={"serving_default": serving_default, "serve_images": serve_images},
    )


def _assert_not_empty(batch: Any, name: str) -> Any:
    import tensorflow as tf

    return tf.debugging.assert_positive(
        tf.shape(batch)[0], message=f"`{name}` must hold at least one image"
    )


def _compare(
    model: Any, folder: pathlib.Path, check_images: Sequence[pathlib.Path]
) -> float:
    """The largest difference between the live model's scores and the written ones."""
    import keras
    import tensorflow as tf

    from keras_vit import ImagePreprocessing
    from keras_vit.decoding import load_image, resize_image

    preprocessing = model.preprocessing or ImagePreprocessing(model.image_size)
    try:
        images = [load_image(path, model.channels) for path in check_images]
    except ValueError as error:
        raise ExportError(f"`--check-images`: {error}") from None
    pixels = np.stack([resize_image(image, preprocessing) for image in images])
    live = model(
        pixels if model.preprocessing else preprocessing(pixels), training=False
    )
    live = keras.ops.cast(live, "float32")
    if model.classifier_activation is None:
        live = keras.ops.softmax(live)
    served = tf.saved_model.load(str(folder)).signatures["serving_default"](
        image_bytes=tf.constant([path.read_bytes() for path in check_images])
    )
    expected = np.take_along_axis(
        keras.ops.convert_to_numpy(live), served["class_ids"].numpy(), axis=1
    )
    difference = float(np.max(np.abs(expected - served["scores"].numpy())))
    tolerance = TOLERANCE[model.compute_dtype]
    if not difference <= tolerance:  # also true for NaN
        raise ExportError(
            "the written model must agree with the live one to "
            f"{tolerance:g} on {len(check_images)} images. "
            f"Received: a difference of {difference:g}; nothing was published"
        )
    return difference
