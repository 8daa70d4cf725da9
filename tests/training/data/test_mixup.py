"""Mixup and CutMix against NumPy in float64, their ratios against Beta."""

import numpy as np
import pytest
import tensorflow as tf
from image_splits import drawn, noise_split
from long_cases import long_after
from scipy import stats

from keras_vit import ImagePreprocessing
from training.data.augment import example_seed
from training.data.mixup import beta, cutmix, mix, mix_pair, mixup
from training.data.pipeline import training_batches
from training.recipe import AugmentationConfig, DataConfig, Recipe

SHAPE = (23, 31, 3)
RANDOM = np.random.default_rng(4)
IMAGE, OTHER = RANDOM.integers(0, 256, (2, *SHAPE)).astype("uint8")


def seeds(count):
    return example_seed(3, 0, tf.range(count, dtype=tf.int64))


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0])
def test_ratios_are_distributed_as_beta(alpha):
    ratios = drawn(lambda seed: beta(seed, alpha), seeds(4000))
    assert stats.kstest(ratios, stats.beta(alpha, alpha).cdf).pvalue > 0.001


def test_tiny_alphas_give_one_image_or_the_other():
    ratios = drawn(lambda seed: beta(seed, 0.01), seeds(2000))
    assert 0.45 < ratios.mean() < 0.55
    assert ((ratios > 0.1) & (ratios < 0.9)).mean() < 0.05  # Beta's: 0.02


def test_mixup_is_the_rounded_weighted_mean():
    for seed in tf.unstack(seeds(20)):
        mixed, ratio = mixup(tf.constant(IMAGE), tf.constant(OTHER), seed, 0.8)
        weight = float(ratio)
        expected = weight * IMAGE.astype("float64") + (1 - weight) * OTHER
        assert np.abs(mixed.numpy() - expected).max() <= 0.5001


def test_cutmix_pastes_a_rectangle_whose_area_is_its_label_share():
    inside = []
    for mixed, share in zip(
        *drawn(lambda seed: cutmix(IMAGE, OTHER, seed, 1.0), seeds(200)), strict=True
    ):
        taken = (mixed != IMAGE).any(axis=-1)
        rows, columns = (np.flatnonzero(taken.any(axis=axis)) for axis in (1, 0))
        assert np.isclose(1 - share, taken.mean(), atol=0.004)
        if taken.any():
            box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            np.testing.assert_array_equal(mixed[box], OTHER[box])
            inside.append((rows[0], columns[0], rows[-1] < 22, columns[-1] < 30))
    assert len(inside) > 180
    assert len({row for row, *_ in inside}) > 10


def test_cutmix_areas_before_clipping_follow_beta():
    """Boxes inside the image have sides of sqrt(1 - ratio) of the image's."""
    sides = (200, 200, 1)
    image = tf.zeros(sides, tf.uint8)
    shares = []
    for mixed, share in zip(
        *drawn(lambda seed: cutmix(image, image + 1, seed, 1.0), seeds(600)),
        strict=True,
    ):
        taken = mixed[..., 0]
        rows, columns = (np.flatnonzero(taken.any(axis=axis)) for axis in (1, 0))
        touches = len(rows) and (
            min(rows[0], columns[0]) == 0 or max(rows[-1], columns[-1]) == 199
        )
        if len(rows) and not touches:
            assert len(rows) == len(columns)
            shares.append(float(share))
    # A box of side s is inside with probability (1 - s)^2. With areas uniform, as
    # Beta(1, 1) is, sides have the density 2 s, and those inside that of s (1 - s)^2.
    sides = np.sqrt(1 - np.array(shares))
    assert stats.kstest(sides, stats.beta(2, 3).cdf).pvalue > 0.001


def mixed_pairs(config, count=40):
    """Images [2, H, W, C] and labels [2, 2] of each pair."""
    pairs = tf.reshape(seeds(2 * count), [count, 2, 2])
    images = np.stack([IMAGE, OTHER])
    mixed = drawn(lambda pair: mix_pair(images, tf.eye(2), pair, config), pairs)
    return zip(*mixed, strict=True)


def test_each_image_of_a_pair_has_its_own_ratio():
    shares = []
    for images, labels in mixed_pairs(AugmentationConfig(mixup=0.8)):
        np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-6)
        for image, label in zip(images, labels, strict=True):
            expected = label[0].astype("float64") * IMAGE + label[1] * OTHER
            assert np.abs(image - expected).max() <= 0.501
        shares.append([labels[0, 0], labels[1, 1]])
    assert abs(np.corrcoef(np.array(shares).T)[0, 1]) < 0.4
    assert labels.dtype == np.float32


@pytest.mark.parametrize("share", long_after(1, [0.3, 0.0, 1.0]))
def test_cutmix_share_is_the_share_of_images_with_cutmix(share):
    config = AugmentationConfig(mixup=0.8, cutmix=1.0, cutmix_share=share)
    cut = []
    for images, _ in mixed_pairs(config, 60):
        for image in images:
            pure = (image == IMAGE).all(axis=-1) | (image == OTHER).all(axis=-1)
            cut.append(pure.all())
    assert abs(np.mean(cut) - share) < 0.13


def test_mixing_is_the_same_eagerly_and_in_a_pipeline():
    config = AugmentationConfig(mixup=0.8, cutmix=1.0)

    def mixed(seed):
        return mix(tf.constant(IMAGE), tf.constant(OTHER), seed, config)

    dataset = tf.data.Dataset.from_tensor_slices(seeds(30)).map(
        mixed, num_parallel_calls=4
    )
    for seed, (image, share) in zip(
        tf.unstack(seeds(30)), dataset.as_numpy_iterator(), strict=True
    ):
        expected, expected_share = mixed(seed)
        np.testing.assert_array_equal(image, expected)
        np.testing.assert_allclose(share, expected_share, atol=1e-7)


def test_neighbors_in_a_batch_are_mixed():
    """Each image is the mean of itself and its neighbor, weighted as its label."""
    split = noise_split(size=(9, 7))
    recipe = Recipe(
        data=DataConfig("digits"),
        batch_size=8,
        epochs=2,
        augmentation=AugmentationConfig(mixup=0.8),
    )
    whole = np.stack([split.read(tf.constant(n)).numpy() for n in range(23)])
    preprocessing = ImagePreprocessing((9, 7))
    for images, labels in training_batches(
        split, recipe, preprocessing
    ).as_numpy_iterator():
        expected = np.einsum("bn,nhwc->bhwc", labels.astype("float64"), whole)
        assert np.abs(images - expected).max() <= 0.501
        mixed = [set(np.flatnonzero(label)) for label in labels]
        assert all(len(numbers) <= 2 for numbers in mixed)
        pairs = [one | two for one, two in zip(mixed[::2], mixed[1::2], strict=True)]
        assert all(len(pair) == 2 for pair in pairs)
        assert len(set.union(*pairs)) == 8
