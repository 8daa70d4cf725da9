"""Image operations, compared with Pillow and with NumPy."""

import math
import sys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage
from sklearn.datasets import load_sample_image

from training.data import image_operations
from training.data.image_operations import OPERATIONS
from training.errors import TrainingError

HEIGHT, WIDTH = 43, 59
GRAY = 128


@pytest.fixture(scope="module")
def picture():
    return np.ascontiguousarray(load_sample_image("china.jpg")[150:193, 200:259])


@pytest.fixture(autouse=True)
def official(request):
    if not any(word in request.node.name for word in ("missing", "warp")):
        pytest.importorskip("official.vision.ops.augment")


def apply(name, image, level, sign=1.0, center=(0.5, 0.5)):
    return OPERATIONS[name](
        tf.constant(image), level, sign, tf.constant(center)
    ).numpy()


def enhanced(kind):
    return lambda image, level: kind(image).enhance(level * 0.18 + 0.1)


def threshold(level):
    return int(level * 25.6) % 256


# Pillow's version, levels, largest difference
PILLOW = {
    "AutoContrast": (lambda image, level: ImageOps.autocontrast(image), 1),
    "Equalize": (lambda image, level: ImageOps.equalize(image), 0),
    "Invert": (lambda image, level: ImageOps.invert(image), 0),
    "Posterize": (lambda image, level: ImageOps.posterize(image, int(level * 0.4)), 0),
    "Solarize": (lambda image, level: ImageOps.solarize(image, threshold(level)), 0),
    "Color": (enhanced(ImageEnhance.Color), 2),
    "Contrast": (enhanced(ImageEnhance.Contrast), 3),
    "Brightness": (enhanced(ImageEnhance.Brightness), 1),
    "Sharpness": (enhanced(ImageEnhance.Sharpness), 2),
}


@pytest.mark.parametrize("level", [3.0, 10.0, 15.0])
@pytest.mark.parametrize("name", PILLOW)
def test_an_operation_matches_pillow(picture, name, level):
    reference, tolerance = PILLOW[name]
    expected = np.asarray(reference(Image.fromarray(picture), level), int)
    result = apply(name, picture, level)
    assert result.dtype == np.uint8
    assert np.abs(result - expected).max() <= tolerance


def nearest(image, source):
    """Move pixels: each comes from (row, column), or is gray where that is outside."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH].astype("float64")
    rows, columns = source(rows, columns)
    # Half a pixel past the border is still rounded into the image.
    inside = (rows >= -0.5) & (rows < HEIGHT - 0.5)
    inside &= (columns >= -0.5) & (columns < WIDTH - 0.5)
    rows, columns = (np.round(part).astype(int) for part in (rows, columns))
    taken = image[rows.clip(0, HEIGHT - 1), columns.clip(0, WIDTH - 1)]
    return np.where(inside[..., np.newaxis], taken, GRAY)


def rotated(angle):
    cos, sin = math.cos(angle), math.sin(angle)
    middle = (HEIGHT - 1) / 2, (WIDTH - 1) / 2

    def source(rows, columns):
        rows, columns = rows - middle[0], columns - middle[1]
        return (
            sin * columns + cos * rows + middle[0],
            cos * columns - sin * rows + middle[1],
        )

    return source


# From the level to each output pixel's source.
GEOMETRIC = {
    "Rotate": lambda level: rotated(math.radians(3 * level)),
    "ShearX": lambda level: lambda y, x: (y, x + 0.03 * level * y),
    "ShearY": lambda level: lambda y, x: (y + 0.03 * level * x, x),
    "TranslateX": lambda level: lambda y, x: (y, x + 10 * level),
    "TranslateY": lambda level: lambda y, x: (y + 10 * level, x),
}


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("level", [1.3, 4.1, 14.7])
@pytest.mark.parametrize("name", GEOMETRIC)
def test_a_geometric_operation_moves_pixels_correctly(picture, name, level, sign):
    expected = nearest(picture, GEOMETRIC[name](sign * level))
    result = apply(name, picture, level, sign)
    # A source between two pixels may be rounded to either.
    assert (result != expected).any(axis=-1).mean() < 0.02


@pytest.mark.parametrize("center", [(0.0, 0.0), (0.5, 0.25), (0.99, 0.99)])
def test_cutout_is_a_square_clipped_at_the_border(picture, center):
    half = 8  # 4 pixels for each unit of the level
    expected = picture.copy()
    row, column = int(center[0] * HEIGHT), int(center[1] * WIDTH)
    expected[max(row - half, 0) : row + half, max(column - half, 0) : column + half] = (
        GRAY
    )
    result = apply("Cutout", picture, 2.0, center=center)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("level", [4.0, 15.0])
def test_solarize_add_brightens_the_dark_half(picture, level):
    added = np.minimum(picture.astype(int) + int(level * 11), 255)
    expected = np.where(picture < 128, added, picture)
    np.testing.assert_array_equal(apply("SolarizeAdd", picture, level), expected)


@pytest.mark.parametrize(
    ("magnitude", "bits", "threshold"),
    [(0.0, 1, 0), (10.0, 4, 0), (15.0, 6, 128), (20.0, 8, 0)],
)
def test_magnitudes_have_augregs_scale(picture, magnitude, bits, threshold):
    """Bits and threshold of the first published code, whose threshold is a byte."""
    posterized = picture >> (8 - bits) << (8 - bits)
    np.testing.assert_array_equal(apply("Posterize", picture, magnitude), posterized)
    solarized = np.where(picture < threshold, picture, 255 - picture)
    np.testing.assert_array_equal(apply("Solarize", picture, magnitude), solarized)


def test_the_operations_are_randaugments_sixteen():
    from official.vision.ops.augment import RandAugment

    assert set(OPERATIONS) == set(RandAugment().available_ops)
    assert len(OPERATIONS) == 16


@pytest.mark.parametrize("name", OPERATIONS)
def test_levels_may_be_tensors_in_a_pipeline(picture, name):
    def changed(level):
        return OPERATIONS[name](tf.constant(picture), level, 1.0, tf.fill([2], 0.3))

    levels = [0.0, 7.0, 30.0]
    results = tf.data.Dataset.from_tensor_slices(levels).map(changed)
    for level, result in zip(levels, results.as_numpy_iterator(), strict=True):
        expected = apply(name, picture, level, 1.0, [0.3] * 2)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0])
def test_blur_matches_scipys_gaussian(picture, sigma):
    expected = ndimage.gaussian_filter(
        picture.astype("float64"), (sigma, sigma, 0), mode="mirror", radius=(6, 6, 0)
    )
    blurred = image_operations.gaussian_blur(tf.constant(picture), sigma).numpy()
    assert np.abs(blurred - expected).max() <= 0.51


def test_missing_operations_name_the_package_to_install(monkeypatch):
    image_operations.official.cache_clear()
    monkeypatch.setitem(sys.modules, "official.vision.ops", None)
    with pytest.raises(TrainingError, match=r'pip install .*"\.\[models\]"') as error:
        image_operations.official()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("matrix", "shift"),
    [
        ([[1, 0], [0, 1]], (0, 0)),
        ([[1, 0], [0, 1]], (2, -3)),
        ([[0.9, 0.3], [-0.2, 1.1]], (2, -3)),
        ([[-0.6, 1.4], [0.3, 0.7]], (0.25, 5)),
    ],
)
def test_an_affine_warp_is_scipys(picture, matrix, shift):
    warped = image_operations.affine_warp(
        tf.constant(picture),
        tf.constant(matrix, tf.float32),
        tf.constant(shift, tf.float32),
    )
    center = (np.array(picture.shape[:2]) - 1) / 2
    offset = center + shift - np.array(matrix) @ center
    expected = [
        ndimage.affine_transform(channel, matrix, offset, order=1, mode="nearest")
        for channel in np.moveaxis(picture.astype("float64"), -1, 0)
    ]
    difference = warped.numpy() - np.stack(expected, axis=-1)
    assert np.abs(difference).max() < 0.51  # rounded to the nearest
