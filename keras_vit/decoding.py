"""Decoding and resizing of image files in TensorFlow operations.

The one module of this package that needs TensorFlow, which it imports when a function
is first called. Every function works in a `tf.data` pipeline and in a SavedModel.
"""

import functools
import io
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from keras_vit.common.tensorflow_messages import reason_of
from keras_vit.errors import ImageFileError
from keras_vit.typing import Array, Image, Images, StrPath, Tensor, TensorLike

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

    from keras_vit.preprocessing import ImagePreprocessing

__all__ = [
    "decode_and_crop",
    "decode_and_resize",
    "decode_image",
    "load_image",
    "resample",
    "resize_image",
    "resized_size",
    "tiff_to_png",
]

_Pair: TypeAlias = TensorLike  # rows and columns: a tuple, or a tensor [2]

CHANNELS = (1, 3)
# TIFF and BigTIFF of either byte order.
TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# Pillow's modes that PNG has, too. The others (CMYK, YCbCr, LAB, ...) become RGB.
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I;16B")
_BITS_PER_SAMPLE = 258  # tag of TIFF
FAR = 2**12  # pixels before a crop that need not be computed
MAX_RESIZED = 2**25  # pixels of an image that is resized whole and then cropped
_KERNELS = {"bilinear": "triangle", "bicubic": "keyscubic"}  # TensorFlow's names
# A graph that many threads trace at once is traced many times, with warnings.
_TRACING = threading.Lock()


def decode_image(
    image_bytes: Tensor, channels: int = 3, detail: Sequence[str | Tensor] = ()
) -> Image:
    """Decode a JPEG, PNG, GIF, BMP or WebP file, the right way up.

    The pixels are those of Pillow: an animation gives its first frame, transparency is
    dropped, CMYK becomes RGB (within one level). 16 bits are reduced to the upper 8,
    where Pillow clips gray ones. EXIF's orientation, as phones store it, is applied.

    Args:
        image_bytes: Scalar string tensor: the file's contents.
        channels: 3 for RGB, 1 for gray (luma of ITU-R BT.601).
        detail: Texts and tensors that follow the message where the file is refused
            before it is decoded, such as its index.

    Returns:
        uint8 tensor [h, w, channels].

    Raises:
        ValueError: `channels` is neither 1 nor 3.
        tf.errors.InvalidArgumentError: Not an image, a damaged one, one of more than
            178,956,970 pixels (Pillow's limit), 64 scans (JPEG) or 16 compressed texts
            (PNG), or a BMP file with compression.
    """
    from keras_vit.image_files import formats

    _check_channels(channels)
    # Always through RGB: each decoder has its own idea of gray, and GIF and BMP none.
    return _with_channels(formats.decode(image_bytes, *detail), channels)


def decode_and_crop(
    image_bytes: Tensor, choose_window: Callable[[Tensor], Tensor], channels: int = 3
) -> Image:
    """Decode the part of an image file that a function chooses.

    Only that part of a JPEG is decoded, which costs less. Where its colors have half
    the resolution, the outermost columns may differ from `decode_image` by a few
    levels, as they are interpolated without the pixels outside.

    Args:
        image_bytes: Scalar string tensor: the file's contents.
        choose_window: From the image's shape, int32 [3], to int32 [4]: top, left,
            height and width of the part. Both are those of the upright image.
        channels: 3 or 1.

    Returns:
        uint8 tensor [height, width, channels].
    """
    from keras_vit.image_files import formats

    _check_channels(channels)
    return _with_channels(formats.decode_part(image_bytes, choose_window), channels)


def _check_channels(channels: int) -> None:
    if channels not in CHANNELS:
        raise ValueError(f"`channels` must be 1 or 3. Received: channels={channels}")


def _with_channels(image: Image, channels: int) -> Image:
    """RGB [h, w, 3] to [h, w, channels], with a static shape."""
    import tensorflow as tf

    image = tf.ensure_shape(image, [None, None, 3])
    return tf.image.rgb_to_grayscale(image) if channels == 1 else image


def resize_image(image: Image, preprocessing: "ImagePreprocessing") -> Image:
    """Resize and crop one image by the model's preprocessing policy.

    Args:
        image: Tensor [h, w, C], 0 to 255.
        preprocessing: The layer that holds size, interpolation and crop.

    Returns:
        uint8 tensor [H, W, C], rounded to the nearest, so that it does not matter
        whether a client, the training pipeline or the server resized the image.
    """
    import tensorflow as tf

    size = resized_size(image, preprocessing)
    crop = preprocessing.corner(size), preprocessing.image_size
    image = resample(image, size, preprocessing, crop)
    return tf.ensure_shape(image, [*preprocessing.image_size, image.shape[-1]])


def resized_size(image: Image, preprocessing: "ImagePreprocessing") -> Tensor:
    """Size of an image [h, w, C] before the crop: int32 [2]."""
    import tensorflow as tf

    height, width = tf.unstack(tf.cast(tf.shape(image)[:2], tf.float64))
    return tf.cast(preprocessing.resize_size(height, width, tf), tf.int32)


def resample(
    image: Image,
    size: _Pair,
    preprocessing: "ImagePreprocessing",
    crop: tuple[_Pair, _Pair] | None = None,
) -> Image:
    """Resize one image with the layer's interpolation, and round to bytes.

    With two passes as Pillow does: all rows, rounded, and then all columns, or in the
    order of `ImagePreprocessing.columns_first`.

    Args:
        image: Tensor [h, w, C], 0 to 255.
        size: (H, W): integers or an int32 tensor [2].
        preprocessing: The layer.
        crop: Corner and size of the part of the resized image that is wanted; all of it
            by default. With filters only that part is computed: an image of 1 x 2,000
            pixels, cropped to its center, would take gigabytes.

    Returns:
        uint8 tensor [H, W, C], or of the crop's size.

    Raises:
        tf.errors.InvalidArgumentError: Without `antialias`, an image so long that the
            whole resized one would have more than `MAX_RESIZED` pixels.
    """
    import tensorflow as tf

    from keras_vit.preprocessing import HALF

    method = preprocessing.interpolation
    (top, left), (height, width) = crop or ((0, 0), (size[0], size[1]))
    if not preprocessing.antialias or method == "nearest":
        image = _resized_whole(image, size, method)[
            top : top + height, left : left + width
        ]
    elif not preprocessing.two_passes:
        images = image[tf.newaxis]
        image = _filtered(images, size, method, (top, left), (height, width))[0]
        image = tf.round(image)
    if not preprocessing.two_passes:
        return tf.cast(tf.clip_by_value(image, 0, 255), tf.uint8)

    def resize(pixels: Images, side: Tensor, start: Tensor, count: Tensor) -> Images:
        pixels = _filtered(pixels, (side, 1), method, (start, 0), (count, 1))
        return tf.cast(tf.clip_by_value(tf.floor(pixels + HALF), 0, 255), tf.uint8)

    # One axis after the other, in a shape with a long last axis: the operation's
    # innermost loop, which makes it twice as fast.
    def across(image: Image) -> Image:
        pixels = tf.transpose(image)[:, :, tf.newaxis]  # [C, w, 1, h]
        return tf.transpose(resize(pixels, size[1], left, width)[:, :, 0])

    def down(image: Image) -> Image:
        _, columns, channels = tf.unstack(tf.shape(image))
        pixels = tf.reshape(image, [1, -1, 1, columns * channels])
        pixels = resize(pixels, size[0], top, height)
        return tf.reshape(pixels, [height, columns, image.shape[-1]])

    if preprocessing.convention != "timm":
        return down(across(image))
    rows, columns = tf.unstack(tf.shape(image)[:2])
    return tf.cond(
        preprocessing.columns_first(rows, columns, size),
        lambda: across(down(image)),
        lambda: down(across(image)),
    )


def _resized_whole(image: Image, size: _Pair, method: str) -> Image:
    """Float32 pixels of a whole image that is resized without a filter, rounded."""
    import tensorflow as tf

    pixels = tf.cast(size[0], tf.int64) * tf.cast(size[1], tf.int64)
    most = tf.constant(MAX_RESIZED, tf.int64)
    words = f"too long and thin: resized, it would have more than {MAX_RESIZED} pixels"
    with tf.control_dependencies([tf.debugging.assert_less_equal(pixels, most, words)]):
        return tf.cast(tf.round(tf.image.resize(image, size, method)), tf.float32)


def _filtered(
    images: Images, size: _Pair, method: str, corner: _Pair, crop: _Pair
) -> Images:
    """A part of `tf.image.resize(images, size, method, antialias=True)`.

    The pixels are the same to the last bit, except for images so long that what is
    before the part is not computed: sums are then rounded otherwise.
    """
    import tensorflow as tf

    size, corner, crop = (
        tf.cast(tf.stack([pair[0], pair[1]]), tf.int32) for pair in (size, corner, crop)
    )
    left_out = tf.where(tf.reduce_any(corner > FAR), corner, 0)
    kept = corner - left_out
    scale = tf.cast(size, tf.float32) / tf.cast(tf.shape(images)[1:3], tf.float32)
    pixels = tf.raw_ops.ScaleAndTranslate(
        images=images,
        size=kept + crop,
        scale=scale,
        translation=-tf.cast(left_out, tf.float32),
        kernel_type=_KERNELS.get(method, method),
        antialias=True,
    )
    return pixels[:, kept[0] :, kept[1] :]


def decode_and_resize(
    image_bytes: Tensor,
    preprocessing: "ImagePreprocessing",
    channels: int = 3,
    detail: Sequence[str | Tensor] = (),
) -> Image:
    """Decode an image file and resize it to the model's input.

    Args:
        image_bytes: Scalar string tensor: the file's contents.
        preprocessing: The layer that holds size, interpolation and crop.
        channels: 3 or 1.
        detail: As of `decode_image`.

    Returns:
        uint8 tensor [H, W, channels].
    """
    return resize_image(decode_image(image_bytes, channels, detail), preprocessing)


def load_image(path: StrPath, channels: int = 3) -> Array:
    """Read one image file.

    Args:
        path: The file: of a format of `decode_image`, or TIFF (with Pillow).
        channels: 3 or 1.

    Returns:
        uint8 array [h, w, channels].

    Raises:
        ImageFileError: The file cannot be read or decoded; the message names it.
    """
    import tensorflow as tf

    from keras_vit.image_files import formats

    try:
        with open(path, "rb") as file:
            image_bytes = file.read()
    except OSError as error:
        raise ImageFileError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        image_bytes = tiff_to_png(image_bytes)
        with _TRACING:
            decode = _graph(channels, formats.format_of(image_bytes))
        image: Array = decode(tf.constant(image_bytes)).numpy()
    except ValueError as error:
        raise ImageFileError(f"{path}: not a readable image: {error}") from None
    except tf.errors.InvalidArgumentError as error:
        reason = reason_of(error)
        raise ImageFileError(f"{path}: not a readable image: {reason}") from None
    return image


@functools.cache
def _graph(channels: int, kind: str | None) -> Callable[[Tensor], Image]:
    """`decode_image` as one graph, which runs without Python between its operations.

    Args:
        kind: The format that it decodes; None for all.
    """
    import tensorflow as tf

    from keras_vit.image_files import formats

    _check_channels(channels)

    def decode(image_bytes: Tensor) -> Image:
        return _with_channels(formats.decode(image_bytes, kind=kind), channels)

    signature = [tf.TensorSpec([], tf.string)]
    graph: Callable[[Tensor], Image] = tf.function(
        decode, input_signature=signature, autograph=False
    ).get_concrete_function()
    return graph


def tiff_to_png(image_bytes: bytes) -> bytes:
    """Convert a TIFF file to PNG, as TensorFlow decodes no TIFF.

    Args:
        image_bytes: The file's contents; of a TIFF with several pages the first counts.

    Returns:
        A PNG file of 8 or 16 bits, as the TIFF has, the right way up. Files of other
        formats stay as they are.

    Raises:
        ValueError: A damaged TIFF file, one of more than 178,956,970 pixels, or one of
            neither 16 nor up to 8 bits for each channel.
    """
    if image_bytes[:4] not in TIFF_SIGNATURES:
        return image_bytes
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ValueError("TIFF files need Pillow: pip install Pillow") from None
    try:
        with Image.open(io.BytesIO(image_bytes)) as image:
            problem = _problem_of_tiff(image)
            png = b"" if problem else _png(image)
    except UnidentifiedImageError:
        problem = "a TIFF file that cannot be converted: its tags are damaged"
    except Exception as error:  # each of Pillow's decoders has its own  # noqa: BLE001
        problem = f"a TIFF file that cannot be converted: {error}"
    if problem:
        raise ValueError(problem)
    return png


def _problem_of_tiff(image: "PillowImage") -> str:
    """Why a TIFF file of Pillow is not read; empty where it is."""
    bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (1,))[0]
    if bits in (1, 2, 4, 8, 16) and image.mode not in ("I", "F"):
        return ""
    return (
        "a TIFF file must have 16 or up to 8 unsigned bits for each channel. "
        f"Received: {bits} (Pillow's mode {image.mode})"
    )


def _png(image: "PillowImage") -> bytes:
    """Encode an image of Pillow, which turns TIFF files upright as it loads them."""
    file = io.BytesIO()
    (image if image.mode in _PNG_MODES else image.convert("RGB")).save(file, "png")
    return file.getvalue()
