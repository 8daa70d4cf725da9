"""The source tfds:NAME: data sets of TensorFlow Datasets, in memory or on disk."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tensorflow as tf

from keras_vit.common.similar_names import did_you_mean
from keras_vit.typing import Array

from ..errors import DataError
from .labeled_images import Source, Split, encoded_split, python_bytes
from .read_errors import read_errors

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

# Bytes up to which the encoded images of a part are kept in memory; larger parts are
# read from disk image by image.
MEMORY_LIMIT = 16 * 2**30

# Examples, dictionaries of arrays: an iterator, or a data source with random access.
Records: TypeAlias = Any


def open_tfds(
    name: str,
    channels: int = 3,
    download: bool = False,
    slices: Sequence[str] = ("train",),
    with_test: bool = True,
) -> Source:
    """Open a data set of TensorFlow Datasets with images and class labels.

    Its order is that of the data set's files, as in TensorFlow Datasets: `train[:800]`
    has the same images here and there.

    Args:
        name: The argument of `tfds.builder`: `cifar10`, `voc/2007`.
        channels: 1 for gray images, 3 for RGB.
        download: Whether it may be downloaded.
        slices: The slices that will be taken: only the parts that they name are read.
        with_test: Whether to read the test images too: `test`, or `validation` where
            there is no `test`.
    """
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, try_gcs=False)
    except (tfds.core.registered.DatasetNotFoundError, ValueError) as error:
        hint = did_you_mean(name, tfds.list_builders(), "tfds:")
        raise DataError(f"tfds:{name}: {first_line(error)}{hint}") from None
    if download:
        _download(builder)
    image_key, label_key = _keys(builder)
    # tfds.testing.mock_data lists no splits, but accepts every name.
    known = list(builder.info.splits)
    parts = [part for text in slices for part in _named(name, text, known)]
    names = known or ["train", "test"]
    test = next((part for part in ("test", "validation") if part in names), None)
    test = test if with_test else None
    parts += [test] if test else []
    opened = {
        part: _open_part(builder, part, image_key, label_key, channels)
        for part in dict.fromkeys(parts)
    }
    return Source(_class_names(builder, label_key), opened, test_part=test)


def _named(name: str, text: str, known: list[str]) -> list[str]:
    """Names of the parts in a slice."""
    words = re.findall(r"[A-Za-z]\w*", text)
    named = [part for part in words if part in known or not known]
    if not named:
        raise DataError(
            f"tfds:{name}: a slice must be of {', '.join(known)}. Received: {text!r}"
        )
    return named


def _download(builder: "tfds.core.DatasetBuilder") -> None:
    try:
        builder.download_and_prepare()
    except Exception as error:
        # A data set's own script, the network or the disk may raise anything.
        raise DataError(
            f"tfds:{builder.name}: download failed: {first_line(error)}"
        ) from error


def _keys(builder: "tfds.core.DatasetBuilder") -> tuple[str, str]:
    """The names of the image and of the class label."""
    import tensorflow_datasets as tfds

    keys = builder.info.supervised_keys or ("image", "label")
    features = dict(builder.info.features.items())
    image, label = (features.get(key) for key in keys)
    if isinstance(image, tfds.features.Image) and isinstance(
        label, tfds.features.ClassLabel
    ):
        return keys
    raise DataError(
        f"tfds:{builder.name}: must have an image and a class label. "
        f"Received: {', '.join(features)}"
    )


def _class_names(
    builder: "tfds.core.DatasetBuilder", label_key: str
) -> tuple[str, ...]:
    return tuple(builder.info.features[label_key].names)


def _open_part(
    builder: "tfds.core.DatasetBuilder",
    part: str,
    image_key: str,
    label_key: str,
    channels: int,
) -> Split:
    """Open one part as encoded images with labels."""
    size = builder.info.splits[part].num_bytes if builder.info.splits else 0
    records = _records(builder, part, image_key, label_key)
    read = _in_memory if size <= MEMORY_LIMIT else _on_disk
    with read_errors(origin=f"tfds:{builder.name}: {part}"):
        encoded, labels = read(records, image_key, label_key, f"{builder.name} {part}")
    return encoded_split(
        f"tfds:{builder.name}: {part}",
        encoded,
        labels,
        len(_class_names(builder, label_key)),
        [f"{builder.name} {part} {index}" for index in range(len(labels))],
        channels,
    )


def _records(
    builder: "tfds.core.DatasetBuilder", part: str, image_key: str, label_key: str
) -> Records:
    """The examples in order, with encoded images."""
    import tensorflow_datasets as tfds

    as_it_is = {image_key: tfds.decode.SkipDecoding()}
    try:
        if builder.info.file_format is tfds.core.FileFormat.ARRAY_RECORD:
            return builder.as_data_source(split=part, decoders=as_it_is)
        wanted = {image_key: True, label_key: True}
        return builder.as_dataset(
            split=part,
            decoders=tfds.decode.PartialDecoding(wanted, decoders=as_it_is),
            # One file after the other: the order in which slices count.
            read_config=tfds.ReadConfig(interleave_cycle_length=1),
        ).as_numpy_iterator()
    except AssertionError:
        raise DataError(
            f"tfds:{builder.name}: not on this machine ({builder.data_path}). "
            "--data.download true downloads it; TFDS_DATA_DIR names a folder of "
            "prepared data sets"
        ) from None


Part: TypeAlias = tuple[Callable[[tf.Tensor], tf.Tensor], Array]


def _in_memory(records: Records, image_key: str, label_key: str, origin: str) -> Part:
    pairs = [(example[image_key], example[label_key]) for example in records]
    files = tf.constant([image for image, _ in pairs], tf.string)
    labels = np.array([label for _, label in pairs], np.int64)
    return lambda index: files[index], labels


def _on_disk(records: Records, image_key: str, label_key: str, origin: str) -> Part:
    """Random access to a part that is too large for memory."""
    if not hasattr(records, "__getitems__"):
        name, part = origin.split()
        raise DataError(
            f"tfds:{name}: {part} has more than {MEMORY_LIMIT:,} bytes, which needs "
            "random access, so the file format array_record. Prepare it again: "
            f"tfds build {name} --file_format=array_record"
        )

    def encoded(index: tf.Tensor) -> tf.Tensor:
        return python_bytes(lambda number: records[number][image_key], index)

    return encoded, _labels_on_disk(records, label_key)


def _labels_on_disk(records: Records, label_key: str, chunk: int = 8192) -> Array:
    """Read every label, and print the progress, as a large set takes minutes."""
    count, labels = len(records), []
    for begin in range(0, count, chunk):
        numbers = range(begin, min(begin + chunk, count))
        labels += [example[label_key] for example in records.__getitems__(numbers)]
        print(f"\rlabels: {len(labels):,} of {count:,}", end="", flush=True)
    print()
    return np.array(labels, np.int64)


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return str(error).strip().split("\n")[0]
