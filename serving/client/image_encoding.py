"""Encoding of images for a request.

Files and bytes are sent unchanged: the server decodes them as training did. Arrays and
PIL images become PNG, which is lossless. Arrays of floats are refused, since white may
be 1 or 255.
"""

import io
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, Union

from .errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image as PILImage

Image: TypeAlias = Union[str, os.PathLike[str], bytes, "np.ndarray", "PILImage"]

# Modes of PNG; others (CMYK, HSV, ...) become RGB.
_PNG_MODES = {"1", "L", "LA", "I;16", "P", "RGB", "RGBA"}
# 32 bits per pixel, of an unknown range.
_RANGELESS_MODES = {"I", "F"}
_FLOATS_HINT = (
    "; floats have no agreed range: for 0 to 1, send (255 * pixels).round()"
    '.astype("uint8"), normalized ones go to `predict` with "serve_pixels"'
)


def encode_image(image: Image) -> bytes:
    """Encode one image.

    Args:
        image: Path of an image file; its bytes; a PIL image; or pixels, uint8
            [H, W], [H, W, 1], [H, W, 3] or [H, W, 4].

    Raises:
        OSError: The file cannot be read.
        TypeError, ValueError: An unsupported image.
        ModuleNotFoundError: Pixels or a PIL image, but no Pillow.
    """
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | os.PathLike):
        return Path(image).read_bytes()
    if _is_array(image):
        return _png(_pil_image(image))
    if _is_pil_image(image):
        return _png(image)
    raise TypeError(
        "An image must be a path, bytes, a PIL image or a uint8 array. "
        f"Received: {type(image).__name__}"
    )


def encode_images(images: Iterable[Image]) -> list[bytes]:
    """Encode images as `encode_image`; a single one is a TypeError."""
    _check_images(images)
    return [encode_image(image) for image in images]


def unusable(error: Exception) -> InvalidArgument:
    """The result of an image that `encode_image` refuses, among many."""
    refused = InvalidArgument(str(error))
    refused.__cause__ = error
    return refused


def in_batches(
    images: Iterable[Image], batch_size: int, concurrency: int
) -> Iterator[list[Image]]:
    """Divide images lazily, after a check of the arguments of `classify_many`."""
    for name, value in {"batch_size": batch_size, "concurrency": concurrency}.items():
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
    _check_images(images)
    iterator = iter(images)
    return iter(lambda: list(itertools.islice(iterator, batch_size)), [])


def _check_images(images: Iterable[Image]) -> None:
    """Check that there are several, before any of them is read."""
    # Iterating over a single array [H, W, C] would send its rows.
    several = images.ndim == 4 if _is_array(images) else isinstance(images, Iterable)
    if not several or isinstance(images, str | bytes):
        raise TypeError(
            "`images` must be a list of images or an array [N, H, W, C]. "
            f"Received: one {type(images).__name__}; write [image] for a single image"
        )


def _is_array(value: Any) -> TypeGuard["np.ndarray"]:
    """Whether it is a NumPy array, without importing NumPy."""
    return hasattr(value, "dtype") and hasattr(value, "ndim")


def _is_pil_image(value: Any) -> TypeGuard["PILImage"]:
    return hasattr(value, "mode") and hasattr(value, "save")


def _pil_image(pixels: "np.ndarray") -> "PILImage":
    if pixels.dtype != "uint8" or not _is_image_shape(pixels.shape):
        raise ValueError(
            "An image array must be uint8 [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]. "
            f"Received: {pixels.dtype} {list(pixels.shape)}"
            + (_FLOATS_HINT if pixels.dtype.kind == "f" else "")
        )
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Sending arrays needs Pillow: pip install pillow", name=error.name
        ) from error
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return Image.fromarray(pixels)


def _is_image_shape(shape: tuple[int, ...]) -> bool:
    channels = shape[2:] or (1,)
    return len(shape) in (2, 3) and channels[0] in (1, 3, 4) and 0 not in shape


def _png(image: "PILImage") -> bytes:
    if image.mode in _RANGELESS_MODES:
        raise ValueError(
            "A PIL image must have 8 or 16 bits per channel. "
            f"Received: mode {image.mode!r}"
        )
    image = upright(image)
    if image.mode not in _PNG_MODES:
        image = image.convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def upright(image: "PILImage") -> "PILImage":
    """Turn an image as its EXIF states, unless that is damaged, as the server does."""
    from PIL import ImageOps

    image.load()
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # Pillow's readers of tags raise what they meet  # noqa: BLE001
        return image
