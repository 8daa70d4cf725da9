"""Augmentation: distributions, and equal results eagerly and in tf.data."""

import contextlib
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from image_splits import drawn, jpeg_split, noise_split
from long_cases import long_after
from scipy import stats

from keras_vit import ImagePreprocessing
from training.data import augment as augmentation
from training.data import augmentation_policies
from training.data.augment import (
    PURPOSES,
    SHIFT,
    augment,
    crop_window,
    example_seed,
    for_purpose,
    random_erase,
    random_shift,
    random_warp,
    resized_crop,
    simple_crop,
)
from training.errors import RecipeError
from training.recipe import AugmentationConfig

PREPROCESSING = ImagePreprocessing((24, 18))
NOISE, JPEGS = noise_split(size=(31, 37)), jpeg_split()

# Each option at least once, in as few pipelines as options exclude each other.
KINDS = {
    "simple_crop": AugmentationConfig(simple_crop=True, flip=True),
    "crop_from": AugmentationConfig(crop_from=29, flip=True),
    "warp": AugmentationConfig(rotate=20.0, scale=0.2, shift=2),
    "autoaugment": AugmentationConfig(policy="autoaugment"),
    "three_augment": AugmentationConfig(policy="three_augment", shift=3),
    "all": AugmentationConfig(
        crop_min_area=0.05,
        flip=True,
        shift=1,
        policy="randaugment",
        layers=2,
        magnitude=9.0,
        magnitude_std=0.5,
        color_jitter=0.3,
        erase=0.5,
    ),
}

QUICK = ("warp",)


def seeds(count, purpose=0):
    """Seeds of examples, int64 [count, 2]."""
    return for_purpose(example_seed(3, 0, tf.range(count, dtype=tf.int64)), purpose)


def eager(split, config, count):
    with functions_eagerly():
        images = [
            augment(split, tf.constant(n % 6, tf.int64), seed, config, PREPROCESSING)
            for n, seed in enumerate(seeds(count))
        ]
    return np.stack(images)


@contextlib.contextmanager
def functions_eagerly():
    """No graph of `augmentation_policies` is used or kept."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow)
        for kind in KINDS
    ],
)
def test_every_augmentation_is_the_same_eagerly_and_in_a_pipeline(kind):
    if "augment" in kind or kind == "all":
        pytest.importorskip("official.vision.ops.augment")
    config, split = KINDS[kind], JPEGS if "crop" in kind or kind == "all" else NOISE

    def changed(number):
        seed = example_seed(3, 0, number)
        return augment(split, number % 6, seed, config, PREPROCESSING)

    pipeline = tf.data.Dataset.range(12).map(changed, num_parallel_calls=4).batch(12)
    images = next(pipeline.as_numpy_iterator())
    assert images.dtype == np.uint8
    assert images.shape == (12, 24, 18, 3)
    np.testing.assert_array_equal(images, eager(split, config, 12))


@pytest.mark.parametrize("kind", KINDS)
def test_every_augmentation_takes_gray_images(kind):
    if "augment" in kind or kind == "all":
        pytest.importorskip("official.vision.ops.augment")
    gray = noise_split(size=(31, 37), channels=1)
    assert eager(gray, KINDS[kind], 3).shape == (3, 24, 18, 1)


def test_seeds_differ_for_every_example():
    indices = tf.range(50, dtype=tf.int64)
    purposes = [
        for_purpose(example_seed(7, epoch, indices, copy), purpose).numpy()
        for copy, epoch in itertools.product(range(3), range(4))
        for purpose in PURPOSES
    ]
    found = {tuple(seed) for seed in np.concatenate(purposes)}
    assert len(found) == 50 * 3 * 4 * len(PURPOSES)


@pytest.fixture(scope="module")
def windows():
    """Height and width of 3000 crops of at least 5 % of a 375x500 image."""
    shape = tf.constant([375, 500, 3])
    windows = drawn(lambda seed: crop_window(shape, seed, 0.05), seeds(3000))
    top, left, height, width = windows.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 375).all()
    assert (left + width <= 500).all()
    return windows


def reference_crops(count):
    """Inception's published crop: a ratio, then a height within the area's limits."""
    random, crops = np.random.default_rng(0), []
    while len(crops) < count:
        ratio = random.uniform(3 / 4, 4 / 3)
        lowest = math.sqrt(0.05 * 375 * 500 / ratio)
        highest = min(375, 500 / ratio, math.sqrt(375 * 500 / ratio))
        height = random.uniform(lowest, highest)
        crops.append((height, height * ratio))
    return np.array(crops)


def test_crop_areas_have_inceptions_distribution(windows):
    heights, widths = windows[:, 2:].T
    areas = heights * widths / (375 * 500)
    expected = reference_crops(20000).prod(axis=1) / (375 * 500)
    assert areas.min() > 0.045
    assert areas.min() < 0.06
    assert areas.max() > 0.95
    assert stats.ks_2samp(areas, expected).pvalue > 0.001


def test_crop_ratios_are_uniform_in_three_quarters_to_four_thirds(windows):
    ratios = windows[:, 3] / windows[:, 2]
    expected = stats.uniform(3 / 4, 4 / 3 - 3 / 4)
    # Sides are whole pixels, so ratios of small crops are slightly off.
    assert ratios.min() > 0.73
    assert ratios.max() < 1.36
    assert stats.kstest(ratios, expected.cdf).pvalue > 0.001


def test_crop_positions_cover_the_image(windows):
    top, left, height, width = windows.T
    for begin, room in ((top, 375 - height), (left, 500 - width)):
        places = (begin[room > 40] + 0.5) / (room[room > 40] + 1)
        assert stats.kstest(places, "uniform").pvalue > 0.001


@pytest.mark.parametrize("channels", long_after(1, [3, 1]))
def test_a_jpeg_is_cropped_while_it_is_decoded(channels):
    split = jpeg_split(channels=channels)
    config = AugmentationConfig(crop_min_area=0.2)
    for number, seed in enumerate(seeds(30)):
        index = tf.constant(number % 6, tf.int64)
        part = augmentation.read(split, index, seed, config)
        whole = split.read(index)
        window = crop_window(tf.shape(whole), for_purpose(seed, augmentation.CROP), 0.2)
        top, left, height, width = window.numpy()
        expected = whole[top : top + height, left : left + width]
        inner = np.s_[:, 1:-1]  # at its sides, colors are interpolated without the rest
        np.testing.assert_array_equal(part[inner], expected[inner])
        difference = part.numpy().astype(int) - expected.numpy().astype(int)
        assert np.abs(difference).max() <= 24


@pytest.mark.parametrize("largest", [1, 2])
def test_a_shift_moves_whole_pixels_and_repeats_the_border(largest):
    image = np.arange(5 * 4, dtype="uint8").reshape(5, 4, 1)
    padded = np.pad(image, ((largest,) * 2, (largest,) * 2, (0, 0)), mode="edge")
    places = range(2 * largest + 1)
    windows = {padded[y : y + 5, x : x + 4].tobytes() for y in places for x in places}
    shifted = drawn(lambda seed: random_shift(image, seed, largest), seeds(500))
    assert {each.tobytes() for each in shifted} == windows


RAMP = np.stack(  # each pixel's row and column, and a channel of nothing
    [*np.meshgrid(np.arange(211), np.arange(241), indexing="ij"), np.zeros((211, 241))],
    axis=-1,
).astype("uint8")


@pytest.fixture(scope="module")
def warps():
    """Matrix [2, 2] and shift [2] of 400 warps, measured from where pixels came."""
    config = AugmentationConfig(rotate=20.0, scale=0.2, shift=3)
    images = drawn(lambda seed: random_warp(RAMP, seed, config), seeds(400))
    middle, (y, x) = images[..., :2].astype("float64"), (105, 120)
    down = (middle[:, y + 40, x] - middle[:, y - 40, x]) / 80
    right = (middle[:, y, x + 40] - middle[:, y, x - 40]) / 80
    return np.stack([down, right], axis=-1), middle[:, y, x] - (y, x)


def test_a_warp_rotates_and_scales_uniformly(warps):
    matrix, _ = warps
    # The matrix is diag(1 / sides) @ rotation, from output to input pixels.
    sides = 1 / np.linalg.norm(matrix, axis=2)
    angles = np.degrees(np.arctan2(matrix[:, 0, 1], matrix[:, 0, 0]))
    for values, begin, end in (
        (sides[:, 0], 0.8, 1.2),
        (sides[:, 1], 0.8, 1.2),
        (angles / 20, -1.0, 1.0),
    ):
        assert stats.kstest(values, stats.uniform(begin, end - begin).cdf).pvalue > 1e-3
        inside = (values > begin - 0.03) & (values < end + 0.03)  # measured to 1/80
        assert inside.all()
    assert abs(np.corrcoef([*sides.T, angles]) - np.eye(3)).max() < 0.2
    rotation = matrix * sides[..., np.newaxis]
    np.testing.assert_allclose(np.linalg.det(rotation), 1, atol=2e-3)


def test_a_warp_shifts_by_the_pixels_of_the_shift_alone(warps):
    _, shift = warps
    rows = RAMP[..., :1]
    moved = drawn(lambda seed: random_shift(rows, seed, 3), seeds(400, SHIFT))
    np.testing.assert_array_equal(shift[:, 0], moved[:, 105, 120, 0] - 105.0)
    assert set(shift[:, 1]) == {*range(-3, 4)}


def test_a_warp_repeats_the_border():
    image = np.full((13, 17, 1), 201, "uint8")
    config = AugmentationConfig(rotate=45.0, scale=0.5, shift=5)
    warped = drawn(lambda seed: random_warp(image, seed, config), seeds(20))
    assert (warped == 201).all()


def test_half_of_the_images_are_flipped():
    image = NOISE.read(tf.constant(0))
    results = [augmentation.random_flip(image, seed).numpy() for seed in seeds(200)]
    mirrored = [np.array_equal(result, image[:, ::-1]) for result in results]
    unchanged = [np.array_equal(result, image) for result in results]
    assert sum(mirrored) + sum(unchanged) == 200
    assert 70 < sum(mirrored) < 130


def test_the_simple_crop_is_a_window_of_the_reflected_image():
    image = tf.constant(
        np.random.default_rng(1).integers(0, 256, (24, 31, 3)), tf.uint8
    )
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
    windows = {
        padded[y : y + 24, x : x + 18].tobytes(): (y, x)
        for y in range(9)
        for x in range(31 + 8 - 18 + 1)
    }
    crops = drawn(lambda seed: simple_crop(image, seed, PREPROCESSING), seeds(150))
    found = [windows[crop.tobytes()] for crop in crops]
    assert {y for y, _ in found} == set(range(9))
    assert len({x for _, x in found}) > 18


def test_the_resized_crop_is_a_window_of_the_resized_image():
    image = tf.constant(
        np.random.default_rng(1).integers(0, 256, (33, 47, 3)), tf.uint8
    )
    whole = np.round(tf.image.resize(image, (27, 27)).numpy()).astype("uint8")
    windows = {
        whole[y : y + 24, x : x + 18].tobytes(): (y, x)
        for y in range(27 - 24 + 1)
        for x in range(27 - 18 + 1)
    }
    crops = drawn(lambda seed: resized_crop(image, seed, PREPROCESSING, 27), seeds(400))
    found = {windows[crop.tobytes()] for crop in crops}
    assert found == set(windows.values())


def test_a_crop_from_a_smaller_image_is_an_error():
    config = AugmentationConfig(crop_from=23)
    with pytest.raises(RecipeError, match="crop_from.*at least model.image_size"):
        augment(NOISE, tf.constant(0), seeds(1)[0], config, PREPROCESSING)


def test_the_simple_crop_resizes_the_shorter_side():
    ramp = np.repeat(np.linspace(0, 255, 96)[np.newaxis, :, np.newaxis], 48, 0)
    image = tf.constant(np.repeat(ramp, 3, -1), tf.uint8)
    cropped = simple_crop(image, seeds(1)[0], ImagePreprocessing(24)).numpy()
    # From 48x96 to 24x48: neighbors are two of the original's pixels apart.
    steps = np.diff(cropped[:, 5:-5, 0].astype(float), axis=1)
    assert abs(np.abs(steps).mean() - 2 * 255 / 95) < 0.3


@pytest.fixture(scope="module")
def erased():
    """Masks [n, 40, 60] of what random erasing changed."""
    image = tf.zeros([40, 60, 3], tf.uint8)
    return drawn(lambda seed: random_erase(image, seed, 0.5), seeds(1500))


def test_erased_rectangles_have_the_published_areas_and_ratios(erased):
    masks = erased.any(axis=-1)
    rows, columns = (masks.any(axis=axis).sum(axis=1) for axis in (2, 1))
    chosen = rows > 0
    assert 0.45 < chosen.mean() < 0.55
    rows, columns = rows[chosen], columns[chosen]
    areas = rows * columns / (40 * 60)
    assert masks.sum() > 0.99 * (rows * columns).sum()  # without gaps
    assert 0.015 < areas.min() < 0.035
    assert 0.3 < areas.max() < 0.345
    ratios = rows / columns
    assert 0.25 < ratios.min() < 0.4
    assert 2.4 < ratios.max() < 4.0
    # Tall rectangles do not fit, so there are slightly more wide ones.
    assert -0.3 < np.log(ratios).mean() < 0.05


def test_erased_rectangles_are_filled_with_noise(erased):
    values = erased[erased.any(axis=-1)]
    assert stats.kstest((values[:4000, 0] + 0.5) / 256, "uniform").pvalue > 0.001
    assert len(np.unique(erased[erased.any(axis=(1, 2, 3))], axis=0)) > 600


def test_erased_rectangles_cover_the_image(erased):
    masks = erased.any(axis=(2, 3))  # [n, rows]
    masks = masks[masks.any(axis=1)]
    top = masks.argmax(axis=1)
    room = 40 - masks.sum(axis=1)
    places = (top + 0.5) / (room + 1)
    assert stats.kstest(places, "uniform").pvalue > 0.001


def counts(function, names, draws, monkeypatch):
    """How often each operation is chosen, from images that identify it."""
    operations = {
        name: lambda image, *_, number=number: tf.fill(
            tf.shape(image), tf.cast(number, tf.uint8)
        )
        for number, name in enumerate(names)
    }
    monkeypatch.setattr(augmentation_policies, "OPERATIONS", operations)
    image = tf.fill([2, 2, 3], tf.constant(200, tf.uint8))
    chosen = seeds(draws, augmentation.POLICY)
    with functions_eagerly():
        values = drawn(lambda seed: function(image, seed)[0, 0, 0], chosen)
    return np.bincount(values, minlength=201)


def test_randaugment_chooses_operations_uniformly(monkeypatch):
    names = list(augmentation_policies.OPERATIONS)
    found = counts(
        lambda image, seed: augmentation_policies.randaugment(image, seed, 1, 9.0),
        names,
        1600,
        monkeypatch,
    )
    assert found[:16].sum() == 1600
    assert stats.chisquare(found[:16]).pvalue > 0.001


def test_autoaugment_applies_the_pairs_of_the_paper(monkeypatch):
    """Frequency of the last applied operation against Table 9's probabilities."""
    official = pytest.importorskip("official.vision.ops.augment")
    names = list(augmentation_policies.OPERATIONS)
    pairs = official.AutoAugment.policy_reduced_imagenet()
    assert pairs[0] == [("Posterize", 0.4, 8), ("Rotate", 0.6, 9)]
    assert pairs[-1] == [("Equalize", 0.8, 8), ("Equalize", 0.6, 3)]
    expected = np.zeros(201)
    for (one, p, _), (two, q, _) in pairs:
        expected[names.index(two)] += q
        expected[names.index(one)] += p * (1 - q)
        expected[200] += (1 - p) * (1 - q)
    found = counts(augmentation_policies.autoaugment, names, 2500, monkeypatch)
    possible = expected > 0
    assert not found[~possible].any()
    expected = expected[possible] * 2500 / len(pairs)
    assert stats.chisquare(found[possible], expected).pvalue > 0.001


def test_magnitudes_are_normal_and_signs_uniform(monkeypatch):
    seen = []

    def note(image, *decisions):
        seen.append(decisions)
        return image

    def operation(number):
        def apply(image, level, sign, center):
            decisions = [
                tf.cast(n, tf.float32) for n in (level, sign, center[0], center[1])
            ]
            noted = tf.numpy_function(note, [image, number, *decisions], tf.uint8)
            return tf.ensure_shape(noted, image.shape)

        return apply

    two = {"one": operation(0), "two": operation(1)}
    monkeypatch.setattr(augmentation_policies, "OPERATIONS", two)
    image = tf.zeros([2, 2, 3], tf.uint8)
    with functions_eagerly():
        drawn(
            lambda seed: augmentation_policies.randaugment(image, seed, 2, 9.0, 0.5),
            seeds(400, augmentation.POLICY),
        )
    numbers, levels, signs, rows, columns = np.array(seen).T
    assert len(levels) == 800
    assert stats.kstest(levels, stats.norm(9.0, 0.5).cdf).pvalue > 0.001
    assert 0.42 < (signs == 1).mean() < 0.58
    for places in (rows, columns):
        assert stats.kstest(places, "uniform").pvalue > 0.001
    # The decisions are independent.
    together = np.corrcoef([numbers, levels, signs, rows, columns])
    assert np.abs(together - np.eye(5)).max() < 0.12


def test_three_augment_is_gray_solarized_or_blurred():
    image = JPEGS.read(tf.constant(0, tf.int64))
    image = tf.ensure_shape(image, [60, 80, 3])
    pixels = image.numpy()
    gray = np.repeat(tf.image.rgb_to_grayscale(image), 3, -1)
    solarized = np.where(pixels < 128, pixels, 255 - pixels)
    kinds = []
    for seed in seeds(120):
        result = augmentation_policies.three_augment(image, seed).numpy()
        if np.array_equal(result, gray):
            kinds.append("gray")
        elif np.array_equal(result, solarized):
            kinds.append("solarized")
        else:
            kinds.append("blurred")
            assert abs(result.mean() - pixels.mean()) < 2
    assert all(
        25 <= kinds.count(kind) <= 56 for kind in ("gray", "solarized", "blurred")
    )


def test_color_jitter_matches_torchvision_in_any_order():
    """Every result is one of the six orders of Pillow's operations."""
    from itertools import permutations

    from PIL import Image, ImageEnhance

    image = tf.ensure_shape(JPEGS.read(tf.constant(1, tf.int64)), [60, 80, 3])
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    orders = set()
    for seed in seeds(40):
        numbers = tf.random.stateless_uniform([2, 3], seed).numpy()
        factors = 1 + 0.4 * (2 * numbers[0] - 1)
        result = (
            augmentation_policies.color_jitter(image, seed, 0.4).numpy().astype(int)
        )
        best = None
        for order in permutations(range(3)):
            expected = Image.fromarray(image.numpy())
            for kind in order:
                expected = kinds[kind](expected).enhance(factors[kind])
            difference = np.abs(np.asarray(expected, int) - result).mean()
            best = min(best or (99, None), (difference, order))
        assert best[0] < 1.5
        orders.add(best[1])
    assert len(orders) == 6


def test_without_augmentation_an_image_is_only_resized():
    from training.data.augment import fit_to_model

    index = tf.constant(2, tf.int64)
    plain = augment(JPEGS, index, seeds(1)[0], AugmentationConfig(), PREPROCESSING)
    expected = fit_to_model(JPEGS.read(index), PREPROCESSING)
    np.testing.assert_array_equal(plain, expected)


def test_a_random_crop_ignores_the_evaluations_crop():
    preprocessing = ImagePreprocessing((24, 18), crop_fraction=0.5, resize="small")
    config, seed = AugmentationConfig(crop_min_area=0.05), seeds(1)[0]
    index = tf.constant(2, tf.int64)
    cropped = augment(JPEGS, index, seed, config, preprocessing)
    expected = augment(JPEGS, index, seed, config, PREPROCESSING)
    np.testing.assert_array_equal(cropped, expected)
