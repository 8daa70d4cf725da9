"""Detection of images in another pixel range than a model reads."""

import keras
import numpy as np

CHECKED = 32  # images at most, of an array
# ImageNet's statistics map no pixel beyond 2.7, a user's own rarely beyond this.
NORMALIZED = 10.0


def problem(images, raw: bool) -> str | None:
    """Say why images do not fit a model, judged from their range of values.

    Args:
        images: What a model is called with, fitted to, and so on: an array, a tensor, a
            `tf.data.Dataset` (of which only the dtype is checked), or anything else.
        raw: Whether the model reads pixels from 0 to 255, or normalized ones.

    Returns:
        A sentence; `""` for images that fit; `None` where the range does not tell, as
        of black or constant images, symbolic tensors and generators.
    """
    if hasattr(images, "element_spec"):
        return None if raw or not _of_bytes(images.element_spec) else _raw("of uint8")
    values = _values(images)
    if values is None:
        return None
    low, high = float(values.min()), float(values.max())
    if low == high or not np.isfinite(low + high):
        return None
    largest, said = max(-low, high), f"from {low:.3g} to {high:.3g}"
    if not raw:
        return _raw(said) if largest > NORMALIZED else ""
    if low >= 0 and high <= 1 and np.array_equal(values, np.round(values)):
        return None  # black pixels, and nearly black ones
    if (low < 0 and largest <= NORMALIZED) or high <= 1:
        return (
            f"the images are {said}, but this model reads pixels from 0 to 255 and "
            "normalizes them itself: pass them as they are, without preprocess_input"
        )
    return ""


def _raw(said: str) -> str:
    return (
        f"the images are {said}, but this model reads normalized pixels: pass "
        "keras_vit.preprocess_input(images), or model.preprocessing(images) where the "
        "model keeps its own; or build it with "
        "preprocessing=keras_vit.ImagePreprocessing(image_size)"
    )


def _of_bytes(spec) -> bool:
    """Whether a data set's images, which come before its labels, are uint8."""
    images = spec[0] if isinstance(spec, tuple) else spec
    return getattr(getattr(images, "dtype", None), "name", "") == "uint8"


def _values(images) -> np.ndarray | None:
    """Some of the images as an array, or None for symbolic tensors and the like."""
    if isinstance(images, np.ndarray):
        images = images[:CHECKED]
    elif not keras.ops.is_tensor(images):
        return None
    try:
        # A slice of a symbolic tensor would be a part of the graph.
        values = np.asarray(images)[:CHECKED].astype("float32")
    except Exception:  # symbolic, or spread over machines: each backend has its own
        return None
    return values if values.size else None
