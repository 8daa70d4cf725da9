"""The exported Keras model: its description for the manifest, its golden answers."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit._version import __version__
from keras_vit.analysis.inspection import preprocessing_of
from keras_vit.base import ImageModel
from keras_vit.common.command_line import CommandError
from keras_vit.decoding import decode_and_resize
from keras_vit.typing import Array, Arrays

from ..rollout import manifest
from .options import ExportOptions
from .signatures import class_labels

GENERATED = 8  # generated golden images, in addition to `--check_images`
BATCH = 8  # images per call
# By precision: above it a probability depends on the batch by more than rounding.
NOISE_LIMIT = {"float64": 1e-3, "float32": 1e-3, "bfloat16": 5e-2, "float16": 5e-2}


def describe(model: ImageModel) -> manifest.Manifest:
    """Describe a model for the manifest."""
    return {
        "packages": {
            "keras_vit": __version__,
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
        },
        "backend": keras.backend.backend(),
        "model": {
            "class": type(model).__name__,
            "name": model.name,
            "image_size": list(model.image_size),
            "channels": model.channels,
            "parameters": model.count_params(),
            "dtype_policy": model.dtype_policy.name,
            "inputs": model.input_pixels,
            "config": _plain(model.get_config()),
        },
        "preprocessing": _plain(preprocessing_of(model).get_config()),
        "labels": manifest.labels_entry(class_labels(model)),
    }


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """The numbers, texts and tuples of a config."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in config.items()
        if not isinstance(value, (dict, list))
    }


def golden_answers(
    model: ImageModel, options: ExportOptions, check_images: Sequence[pathlib.Path]
) -> Arrays:
    """Compute the Keras model's outputs, which every export must reproduce.

    Args:
        options: Generated images beyond its limits are omitted.
        check_images: More image files; at least one where none is generated.

    Returns:
        For N images their `files` (object array of bytes), `images` uint8 and
        normalized `pixels` float32 [N, H, W, C]; `logits` and `probabilities`
        [N, classes], `embedding` [N, D], the model's own `outputs`, and `names`
        [classes]; `logits_noise` and so on: the largest difference between an answer in
        a batch of 8 and that for the image alone.

    Raises:
        CommandError: An image cannot be read, or the answers depend on the batch.
    """
    generated = list(generated_images(model, options))
    files = [*generated, *(_read("check_images", path) for path in check_images)]
    paths = [*(None for _ in generated), *check_images]
    images = [
        _decode(model, data, "check_images", path)
        for data, path in zip(files, paths, strict=True)
    ]
    arrays: Arrays = {
        "files": np.array([*files, None], object)[:-1],
        "images": np.stack(images),
        "names": np.array(class_labels(model)),
    }
    arrays["pixels"] = _normalized(model, arrays["images"])
    return arrays | _answers(model, arrays)


def _answers(model: ImageModel, arrays: Arrays) -> Arrays:
    distilled = getattr(model, "distilled", False)
    names = ("head", "head_dist") if distilled else ("head",)
    heads = [model.get_layer(name) for name in names]
    inside = keras.Model(model.input, [*(head.input for head in heads), model.output])
    inputs = arrays["images" if model.reads_raw_pixels else "pixels"]
    weights = [
        [
            keras.ops.convert_to_numpy(keras.ops.cast(weight, "float32"))
            for weight in (head.kernel, head.bias)
        ]
        for head in heads
    ]

    def answers(size: int) -> Arrays:
        batches = [
            # Not on a GPU, whose TF32 products have 10 bits of mantissa.
            _on_cpu(inside, inputs[start : start + size])
            for start in range(0, len(inputs), size)
        ]
        *features, outputs = map(np.concatenate, zip(*batches, strict=True))
        scores = [
            x @ kernel + bias
            for x, (kernel, bias) in zip(features, weights, strict=True)
        ]
        logits = sum(scores) / len(scores)
        probabilities = outputs
        if model.classifier_activation is None:
            probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
        return {
            "embedding": features[0],
            "logits": logits,
            "probabilities": probabilities,
            "outputs": outputs,
        }

    limit = NOISE_LIMIT[model.compute_dtype]
    return _with_noise(answers(BATCH), answers(1), limit)


def _with_noise(answers: Arrays, alone: Arrays, limit: float) -> Arrays:
    """Answers in batches, and how much those of images alone differ from them."""
    noise = {
        f"{name}_noise": np.max(np.abs(alone[name] - values))
        for name, values in answers.items()
    }
    largest = noise["probabilities_noise"]
    if largest > limit:
        raise CommandError(
            "the Keras model's probabilities for an image must not depend on the other "
            f"images of a batch by more than {limit:g}. Received: a difference of "
            f"{largest:g}; nothing was published"
        )
    return answers | noise


def _on_cpu(model: keras.Model, batch: Array) -> list[Array]:
    with tf.device("/CPU:0"):
        outputs = model(batch, training=False)
        return [tf.cast(output, tf.float32).numpy() for output in outputs]


def read_images(model: ImageModel, flag: str, paths: Sequence[pathlib.Path]) -> Array:
    """Read image files as uint8 [n, H, W, C] in the model's size."""
    return np.stack([_decode(model, _read(flag, path), flag, path) for path in paths])


def model_inputs(model: ImageModel, images: Array) -> Array:
    """uint8 images [n, H, W, C] as float32, in the range that the model reads."""
    if model.reads_raw_pixels:
        return images.astype("float32")
    return _normalized(model, images)


def _normalized(model: ImageModel, images: Array) -> Array:
    pixels = preprocessing_of(model)(images, fitted=True)
    normalized: Array = keras.ops.convert_to_numpy(pixels)
    return normalized


def _read(flag: str, path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(
            f"--{flag} {path}: cannot be read: {error.strerror}"
        ) from None


def _decode(
    model: ImageModel, data: bytes, flag: str, path: pathlib.Path | None
) -> Array:
    contents = tf.constant(data)
    try:
        image = decode_and_resize(contents, preprocessing_of(model), model.channels)
        pixels: Array = image.numpy()
    except tf.errors.InvalidArgumentError:
        raise CommandError(f"--{flag} {path}: not a readable image") from None
    return pixels


def generated_images(model: ImageModel, options: ExportOptions) -> Iterator[bytes]:
    """Generate smooth patterns of several sizes, alternately as PNG and JPEG."""
    random = np.random.default_rng(0)
    for index in range(GENERATED):
        coarse = random.uniform(-64, 319, (1, 4, 5, model.channels)).astype("float32")
        size = [side + 13 * index for side in model.image_size]
        smooth = tf.image.resize(coarse, size, "bicubic")[0]
        image = tf.cast(tf.clip_by_value(smooth, 0, 255), tf.uint8)
        encode = tf.io.encode_jpeg if index % 2 else tf.io.encode_png
        data = encode(image).numpy()
        fits = len(data) <= options.max_image_bytes
        if fits and size[0] * size[1] <= options.max_image_pixels:
            yield data
