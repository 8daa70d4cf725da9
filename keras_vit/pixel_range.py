"""Detection of images in another pixel range than a model reads."""

import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import keras
import numpy as np

from keras_vit.typing import Array, Images, Tensor

_Batches: TypeAlias = Any  # images, or whatever `fit` takes that yields them
_Check: TypeAlias = Callable[[Images], None]

CHECKED = 32  # images at most, of an array
# ImageNet's statistics map no pixel beyond 2.7, a user's own rarely beyond this.
NORMALIZED = 10.0


def at_first_batch(x: _Batches, check: _Check) -> _Batches:
    """Check images now, or those of a source of batches once its first one is read.

    Reading one ahead would decode it twice, shuffle in another order, or consume it
    from a generator. A PyDataset is indexed, and Keras reads its first batch itself.

    Args:
        x: Images, or a source of batches: a `tf.data.Dataset`, a generator or a
            `keras.utils.PyDataset`.

    Returns:
        `x`, or the same batches from a data set or generator that checks the first.
    """
    if isinstance(x, types.GeneratorType):
        return _checked_generator(x, check)
    if isinstance(x, keras.utils.PyDataset):
        check(_images(x[0]))
    elif hasattr(x, "element_spec"):
        return _checked_dataset(x, check)
    else:
        check(_images(x))
    return x


def _checked_generator(batches: Iterator[Any], check: _Check) -> Iterator[Any]:
    for batch in itertools.islice(batches, 1):
        check(_images(batch))
        yield batch
    yield from batches


def _checked_dataset(dataset: _Batches, check: _Check) -> _Batches:
    import tensorflow as tf

    def look(images: Images) -> bool:
        check(images)
        return True

    def pass_on(index: Tensor, batch: Any) -> Any:
        images = _images(batch)[:CHECKED]
        tf.cond(
            index == 0,
            lambda: tf.numpy_function(look, [images], tf.bool),
            lambda: True,
        )
        return batch

    spec = _images(dataset.element_spec)
    if not isinstance(dataset, tf.data.Dataset) or not isinstance(spec, tf.TensorSpec):
        return dataset
    return dataset.enumerate().map(pass_on)


def _images(batch: Any) -> Images:
    """A batch's images, before its labels; also as a list or a dictionary of one."""
    while isinstance(batch, (tuple, list, dict)) and batch:
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return batch


def problem(images: Images, raw: bool, name: str = "images") -> str | None:
    """Say why images do not fit a model, judged from their range of values.

    Args:
        images: What a model is called with, fitted to, and so on: an array, a tensor,
            or anything else.
        raw: Whether the model reads pixels from 0 to 255, or normalized ones.
        name: What the sentence calls them.

    Returns:
        A sentence; `""` for images that fit; `None` where the range does not tell, as
        of black or constant images and symbolic tensors.
    """
    values = _values(images)
    if values is None:
        return None
    low, high = float(values.min()), float(values.max())
    if low == high or not np.isfinite(low + high):
        return None
    largest = max(-low, high)
    said = f"the {name} are from {low:.3g} to {high:.3g}"
    if not raw:
        advice = (
            "but this model reads normalized pixels: pass "
            "keras_vit.preprocess_input(images), or model.preprocessing(images) where "
            "the model keeps its own; or build it with "
            "preprocessing=keras_vit.ImagePreprocessing(image_size)"
        )
        return f"{said}, {advice}" if largest > NORMALIZED else ""
    if low >= 0 and high <= 1 and np.array_equal(values, np.round(values)):
        return None  # black pixels, and nearly black ones
    if (low < 0 and largest <= NORMALIZED) or high <= 1:
        return (
            f"{said}, but this model reads pixels from 0 to 255 and "
            "normalizes them itself: pass them as they are, without preprocess_input"
        )
    return ""


def _values(images: Images) -> Array | None:
    """Some of the images as an array, or None for symbolic tensors and the like."""
    if isinstance(images, np.ndarray):
        images = images[:CHECKED]
    elif not keras.ops.is_tensor(images):
        return None
    try:
        # A slice of a symbolic tensor would be a part of the graph.
        values = np.asarray(images)[:CHECKED].astype("float32")
    except Exception:  # symbolic, or spread over machines: each backend has its own  # noqa: BLE001
        return None
    return values if values.size else None
