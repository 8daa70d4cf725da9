"""Image preprocessing, and class names for predictions.

Training and serving both take the policy (size, resampling, crop, normalization) from
the one `ImagePreprocessing` layer that travels inside the saved model.
"""

import functools
import importlib.resources
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_vit.checks import check_choice
from keras_vit.configured_layer import ConfiguredLayer
from keras_vit.specs import image_size_pair
from keras_vit.typing import Images, Logits, Shape, Tensor

__all__ = [
    "ImagePreprocessing",
    "decode_predictions",
    "imagenet_labels",
    "preprocess_input",
]

_Side: TypeAlias = Any  # pixels: a number or a scalar tensor
_Size: TypeAlias = Any  # (H, W): two of them, or a tensor [2]

# (x - 127.5) / 127.5 maps 0..255 to [-1, 1], what every Google ViT was trained on.
MEAN, STD = 127.5, 127.5
# What is added before rounding down: Pillow rounds halves up, which are common as
# scales are ratios of small numbers, and a float32 sum may be a little less than one.
HALF = 0.5 + 2**-12


@keras.saving.register_keras_serializable(package="keras_vit")
class ImagePreprocessing(ConfiguredLayer):
    """Resize, crop and normalize a batch of images: (pixels - mean) / std.

    Resized pixels are rounded to whole numbers from 0 to 255, as where image files
    are decoded. All is computed in float32 whatever the dtype policy is.

    Args:
        image_size: (H, W) or one integer for both, in pixels.
        mean: Number, or one per channel, in units of pixels (0 to 255); ImageNet's
            (0.485, 0.456, 0.406) is (123.675, 116.28, 103.53).
        std: Number, or one per channel, in units of pixels, positive.
        interpolation: `"nearest"`, `"bilinear"`, `"bicubic"`, `"lanczos3"` or
            `"lanczos5"`. Google's models were evaluated with `"bilinear"`.
        antialias: Whether to filter before shrinking. Google's code did not.
        crop_fraction: Fraction of each side that a center crop keeps: 1 resizes
            to `image_size` as it is, 0.875 resizes to 1 / 0.875 of it and crops.
        resize: `"plain"` resizes both sides and changes the aspect ratio; `"small"`
            keeps it and resizes to the smallest image that the crop fits into, which
            is the shorter side where `image_size` is square (big_vision's
            `resize_small(s)|central_crop(c)`, where `crop_fraction` is c / s).
        convention: Whose pixels to reproduce. `"big_vision"` rounds the longer side to
            the nearest and the crop's corner down, and resizes both axes at once.
            `"hugging_face"` rounds both down; `"timm"` the longer side down (to the
            nearest if the crop is not square), the corner to the nearest, halves to
            the even one. With `antialias` these two resize one axis after the other
            and round in between, as Pillow does.

    Call arguments:
        pixels: Tensor [B, h, w, C] of any numeric type, 0 to 255.
        fitted: Whether they are resized and cropped already, as a model's inputs are,
            so that they are normalized only.

    Returns:
        Tensor float32 [B, H, W, C].
    """

    INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5")
    RESIZES = ("plain", "small")
    CONVENTIONS = ("big_vision", "hugging_face", "timm")

    def __init__(
        self,
        image_size: int | tuple[int, int],
        mean: float | Sequence[float] = MEAN,
        std: float | Sequence[float] = STD,
        interpolation: str = "bilinear",
        antialias: bool = False,
        crop_fraction: float = 1.0,
        resize: str = "plain",
        convention: str = "big_vision",
        **kwargs: Any,
    ) -> None:
        kwargs.pop("dtype", None)
        super().__init__(dtype="float32", autocast=False, **kwargs)
        check_choice("interpolation", interpolation, self.INTERPOLATIONS)
        check_choice("resize", resize, self.RESIZES)
        check_choice("convention", convention, self.CONVENTIONS)
        if not 0.0 < crop_fraction <= 1.0:
            raise ValueError(
                "`crop_fraction` must be in (0, 1]. "
                f"Received: crop_fraction={crop_fraction}"
            )
        self.image_size = image_size_pair(image_size)
        self.mean = _numbers("mean", mean)
        self.std = _numbers("std", std)
        self.interpolation = interpolation
        self.antialias = antialias
        self.crop_fraction = crop_fraction
        self.resize = resize
        self.convention = convention
        self.built = True

    @property
    def maps_to_one(self) -> bool:
        """Whether pixels from 0 to 255 become numbers in [-1, 1]."""
        return self.mean == MEAN and self.std == STD

    @property
    def two_passes(self) -> bool:
        """Whether pixels are rounded between rows and columns, as Pillow does."""
        filters = self.antialias and self.interpolation != "nearest"
        return filters and self.convention != "big_vision"

    @property
    def whole_size(self) -> tuple[int, int]:
        """(H, W) of the smallest resized image, of which the crop is the center."""
        # Rounded down, as timm does: 224 / 0.9 gives 248. The term keeps a quotient
        # that is whole but for a floating-point error, which timm does not.
        term = 0.0 if self.convention == "timm" else 1e-6
        height, width = (
            int(side / self.crop_fraction + term) for side in self.image_size
        )
        return height, width

    def resize_size(
        self, height: _Side, width: _Side, numpy: Any = np
    ) -> tuple[_Side, _Side]:
        """(H, W) that an image is resized to, before the crop.

        Args:
            height: Of the image: a number, or a float64 tensor.
            width: Of the image.
            numpy: The module that rounds them: NumPy, TensorFlow or `keras.ops`.

        Returns:
            Two whole numbers, as floating-point ones where they depend on the image.
        """
        rows, columns = self.whole_size
        if self.resize == "plain":
            return rows, columns

        def scaled(side: _Side, of: _Side, to: int) -> _Side:
            if self.convention == "timm" and rows != columns:
                # In the order of its operations. In a graph, a quotient by a constant
                # is made a product, whose last bit may decide a half.
                to = numpy.minimum(of + to, to)
                return numpy.round(side / (of / to))
            half = 0.5 if self.convention == "big_vision" else 0.0
            return numpy.floor(side * to / of + half)

        # Of each pair one number is the side itself, the other a rounded quotient.
        return (
            numpy.maximum(scaled(height, width, columns), rows),
            numpy.maximum(scaled(width, height, rows), columns),
        )

    def columns_first(self, height: _Side, width: _Side, size: _Size) -> Tensor:
        """Whether the columns are resized first: by Pillow 13, which timm calls.

        It does so if the height shrinks by more than twice what the width shrinks by.

        Args:
            height: Of the image: an integer, or an integer tensor.
            width: Of the image.
            size: (H, W) that it is resized to, the same.
        """
        shrunk = height - size[0]
        pillow = self.convention == "timm"
        return pillow and (shrunk > 0) & (shrunk > 2 * (width - size[1]))

    def center(self, image: Images, size: _Size) -> Images:
        """Center crop [..., H, W, C] of `image` [..., h, w, C].

        Args:
            image: A resized image or a batch of them.
            size: Its h and w, integers; see `resize_size`.
        """
        height, width = self.image_size
        top, left = self.corner(size)
        return image[..., top : top + height, left : left + width, :]

    def corner(self, size: _Size) -> tuple[_Side, _Side]:
        """(top, left) of the center crop of an image resized to `size`."""
        height, width = self.image_size
        margins = size[0] - height, size[1] - width
        if self.convention == "timm":  # 1.5 becomes 2, and 2.5 also
            top, left = (margin // 2 + margin % 4 // 3 for margin in margins)
        else:
            top, left = (margin // 2 for margin in margins)
        return top, left

    def call(self, pixels: Images, fitted: bool = False) -> Images:
        pixels = ops.cast(pixels, "float32")
        if not fitted:
            pixels = self._resize_and_crop(pixels)
        mean, std = (np.asarray(value, "float32") for value in (self.mean, self.std))
        return (pixels - mean) / std

    def _resize_and_crop(self, pixels: Images) -> Images:
        _, height, width, channels = ops.shape(pixels)
        size = self._resized_size(height, width)
        if not (isinstance(size[0], int) and size == (height, width)):
            pixels = self._resize(pixels, size)
        return ops.reshape(self.center(pixels, size), (-1, *self.image_size, channels))

    def _resized_size(self, height: _Side, width: _Side) -> _Size:
        if isinstance(height, int) and isinstance(width, int):
            rows, columns = self.resize_size(height, width)
            return int(rows), int(columns)
        height, width = (ops.cast(side, "float64") for side in (height, width))
        size = self.resize_size(height, width, ops)
        return tuple(ops.cast(side, "int32") for side in size)

    def _resize(self, pixels: Images, size: _Size) -> Images:
        """Resize a batch, as `keras_vit.decoding.resample` does one image."""
        if not self.two_passes:
            return ops.clip(ops.round(self._resample(pixels, size)), 0, 255)

        def across(x: Images) -> Images:
            return _rounded(self._resample(x, (ops.shape(x)[1], size[1])))

        def down(x: Images) -> Images:
            return _rounded(self._resample(x, (size[0], ops.shape(x)[2])))

        _, height, width, _ = ops.shape(pixels)
        return ops.cond(
            self.columns_first(height, width, size),
            lambda: across(down(pixels)),
            lambda: down(across(pixels)),
        )

    def _resample(self, pixels: Images, size: _Size) -> Images:
        return ops.image.resize(
            pixels,
            size,
            interpolation=self.interpolation,
            antialias=self.antialias,
            data_format="channels_last",
        )

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], *self.image_size, input_shape[-1])


def _rounded(pixels: Images) -> Images:
    """Pillow's bytes: the nearest, halves up."""
    return ops.clip(ops.floor(pixels + HALF), 0, 255)


def _numbers(name: str, value: Any) -> float | tuple[float, ...]:
    """One finite number, or one for each channel; those of `std` positive."""
    several = isinstance(value, (list, tuple, np.ndarray))
    try:
        numbers = tuple(float(v) for v in (value if several else [value]))
    except (TypeError, ValueError):
        numbers = ()
    if (
        not numbers
        or not all(np.isfinite(numbers))
        or (name == "std" and min(numbers) <= 0)
    ):
        positive = "positive " if name == "std" else "finite "
        raise ValueError(
            f"`{name}` must be one {positive}number, or one for each channel. "
            f"Received: {name}={value!r}"
        )
    return numbers if several else numbers[0]


def preprocess_input(
    x: Images, data_format: str | None = None, mode: str = "google"
) -> Images:
    """Scales pixels to what published weights expect, as in `keras.applications`.

    For models without `preprocessing`; those with it read pixels from 0 to 255.

    Args:
        x: Array or tensor [..., C] of any numeric type, 0 to 255.
        data_format: `None` or `"channels_last"`.
        mode: `"google"` (to [-1, 1]; also big_vision and most of timm's `augreg`), or
            `"imagenet"` (ImageNet's mean and deviation per channel: DeiT, MAE).

    Returns:
        float32 of the same shape and kind (array or tensor).

    Raises:
        ValueError: Another `data_format` or `mode`.
    """
    if data_format not in (None, "channels_last"):
        raise ValueError(
            '`data_format` must be None or "channels_last". '
            f"Received: data_format={data_format!r}"
        )
    check_choice("mode", mode, tuple(MODES))
    mean, std = (np.asarray(value, "float32") for value in MODES[mode])
    if isinstance(x, np.ndarray):
        return (x.astype("float32") - mean) / std
    return (ops.cast(x, "float32") - mean) / std


MODES = {
    "google": (MEAN, STD),
    # Mean and deviation of ImageNet's training images, times 255.
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
}


@functools.cache
def imagenet_labels() -> tuple[tuple[str, str], ...]:
    """ImageNet-1k's 1,000 classes in the order of the models' outputs.

    Returns:
        Pairs of WordNet id and name, such as `("n01440764", "tench, Tinca tinca")`.
    """
    folder = importlib.resources.files("keras_vit")
    text = (folder / "imagenet2012_labels.tsv").read_text("utf-8")
    pairs = (line.split("\t") for line in text.splitlines())
    return tuple((wordnet_id, name) for wordnet_id, name in pairs)


def decode_predictions(
    preds: Logits, top: int = 5, class_names: Sequence[str] | None = None
) -> list[list[tuple[str, str, float]]]:
    """Name the best classes of each row, as in `keras.applications`.

    Args:
        preds: Array or tensor [B, classes]: scores, probabilities or logits.
        top: How many classes to return for each row.
        class_names: Names of the classes; ImageNet's 1,000 when absent.

    Returns:
        One list for each row, best first, of tuples (identifier, name, score): the
        identifier is the WordNet id, or the class's index for `class_names`.

    Raises:
        ValueError: `preds` does not have one column for each class.
    """
    scores = np.asarray(ops.convert_to_numpy(preds))
    labels: Sequence[tuple[str, str]] = imagenet_labels()
    if class_names is not None:
        labels = [(str(index), name) for index, name in enumerate(class_names)]
    if scores.ndim != 2 or scores.shape[1] != len(labels):
        raise ValueError(
            f"`preds` must have the shape (batch, {len(labels)}), one column for each "
            f"class. Received: preds.shape={scores.shape}"
        )
    best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return [
        [(*labels[index], float(row[index])) for index in indices]
        for row, indices in zip(scores, best, strict=True)
    ]
