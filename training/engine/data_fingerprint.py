"""Fingerprints of a run's images and weights: other ones are noticed."""

import hashlib
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from ..data.labeled_images import Split
from ..data.pipeline import parallel, ready
from ..data.read_errors import read_errors
from ..data.splits import Splits


def weights_fingerprint(model: keras.Model) -> str:
    """A hash of all weights but the classifier's: 16 characters."""
    digest = hashlib.sha256()
    head = {id(w) for w in model.get_layer("head").weights} if model.classes else set()
    for weight in model.weights:
        if id(weight) not in head:
            array = keras.ops.convert_to_numpy(weight)
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def names_fingerprint(splits: Splits) -> str:
    """A hash of the names and labels in each split, independent of their folder."""
    digest = hashlib.sha256()
    for part in (splits.train, splits.validation, splits.test):
        digest.update(b"part")
        if part is not None:
            digest.update(np.asarray(part.labels, np.int64).tobytes())
            names = ("/".join(name.split("/")[-2:]) for name in part.names)
            digest.update("\0".join(names).encode())
    return digest.hexdigest()[:16]


def contents_fingerprint(splits: Splits, source: str) -> str:
    """A hash of the files that a run trains with and chooses by.

    Of a folder's images it is that of their digests: sizes, first and last 16 KiB. A
    copy has the same, whatever its times; and an image that is edited is another one,
    unless it keeps its size and both ends. Of other sources it is that of all bytes.

    Test images, which are read after the last step, do not count: a run whose test
    evaluation found a damaged one continues once it is mended.

    Returns:
        The hash; an empty text for scikit-learn's digits and TensorFlow Datasets, whose
        prepared files are never changed and may not fit into memory.

    Raises:
        DataError: An image cannot be read.
    """
    if source.startswith("tfds:"):
        return ""
    digests = []
    for part in (splits.train, splits.validation):
        if part is not None:
            if part.encoded is None:
                return ""
            digests.append(
                _contents(part, part.encoded)
                if part.digests is None
                else hashlib.sha256(part.digests.tobytes()).digest()
            )
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]


def _contents(split: Split, encoded: Callable[[tf.Tensor], tf.Tensor]) -> bytes:
    digest = hashlib.sha256()
    files = parallel(tf.data.Dataset.range(len(split)), encoded)
    with read_errors(split):
        for file in ready(files).as_numpy_iterator():
            digest.update(hashlib.sha256(file).digest())
    return digest.digest()
