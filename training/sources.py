"""The sources of images by name: digits, folder:PATH, tfds:NAME."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_vit import decoding

from .errors import DataError
from .folder import open_folder
from .recipe import DataConfig
from .splits import Source, Split

# An encoded TensorFlow Datasets set is held in memory, which gives random access.
TFDS_MEMORY_LIMIT = 16 * 2**30


def open_source(config: DataConfig, channels: int) -> Source:
    """Opens the source that `config.source` names.

    Args:
        config: The recipe's `data`.
        channels: 1 for gray images, 3 for RGB.

    Returns:
        The source, its bad images left out.

    Raises:
        DataError: There are no images, or not where they should be, or bad ones.
    """
    kind, _, rest = config.source.partition(":")
    if kind == "digits":
        return open_digits(channels)
    if kind == "folder":
        return open_folder(Path(rest), channels, config.on_bad_image)
    return open_tfds(rest, channels, config.download)


def open_digits(channels: int = 1) -> Source:
    """scikit-learn's 1,797 handwritten digits, 8x8 pixels (UCI, optdigits test set).

    Their values 0 to 16 become round(value * 255 / 16); round(pixel * 16 / 255) gives
    each back exactly.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
    images = np.repeat(images, channels, axis=-1)
    names = [f"digit {index}" for index in range(len(images))]
    pixels = tf.constant(images)
    return Source(
        tuple(map(str, digits.target_names)),
        Split(digits.target, 10, lambda index: pixels[index], names),
    )


def open_tfds(name: str, channels: int = 3, download: bool = False) -> Source:
    """A data set of TensorFlow Datasets with an image and a class label.

    The files are kept in memory as they are, encoded. The test set is `test`, or
    `validation` where there is no `test`.
    """
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, try_gcs=False)
    except (tfds.core.registered.DatasetNotFoundError, ValueError) as error:
        raise DataError(f"tfds:{name}: {_first_line(error)}") from None
    if builder.info.dataset_size > TFDS_MEMORY_LIMIT:
        raise DataError(
            f"tfds:{name}: must be at most {TFDS_MEMORY_LIMIT:,} bytes, as it is held "
            f"in memory. Received: {builder.info.dataset_size:,} bytes"
        )
    if download:
        _download(builder)
    # tfds.testing.mock_data knows no splits, but answers to these two.
    splits = set(builder.info.splits) or {"train", "test"}
    test = next((split for split in ("test", "validation") if split in splits), None)
    class_names, train = _read_tfds(builder, "train", channels)
    return Source(
        class_names, train, _read_tfds(builder, test, channels)[1] if test else None
    )


def _download(builder) -> None:
    try:
        builder.download_and_prepare()
    except Exception as error:
        # Whatever a data set's own script, the network or the disk may raise.
        raise DataError(
            f"tfds:{builder.name}: the download failed: {_first_line(error)}"
        ) from error


def _read_tfds(builder, split: str, channels: int) -> tuple[tuple[str, ...], Split]:
    """The class names and the encoded images of one split."""
    import tensorflow_datasets as tfds

    keys = builder.info.supervised_keys
    if keys is None or not isinstance(
        builder.info.features[keys[1]], tfds.features.ClassLabel
    ):
        raise DataError(f"tfds:{builder.name}: has no image with a class label")
    image_key, label_key = keys
    try:
        examples = builder.as_dataset(
            split=split, decoders={image_key: tfds.decode.SkipDecoding()}
        )
    except AssertionError:
        raise DataError(
            f"tfds:{builder.name}: not on this machine ({builder.data_path}). "
            "--data.download true downloads it; TFDS_DATA_DIR names a folder that "
            "holds prepared data sets"
        ) from None
    pairs = [(e[image_key], e[label_key]) for e in examples.as_numpy_iterator()]
    encoded = tf.constant([image for image, _ in pairs])
    labels = np.array([label for _, label in pairs], np.int64)
    class_names = tuple(builder.info.features[label_key].names)
    return class_names, Split(
        labels,
        len(class_names),
        lambda index: decoding.decode_image(encoded[index], channels),
        [f"{builder.name} {split} {index}" for index in range(len(labels))],
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
