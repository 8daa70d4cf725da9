"""The input pipeline: order and pixels are functions of (seed, step, position)."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from image_splits import jpeg_split, noise_split
from long_cases import long_after
from sklearn.datasets import load_digits

from keras_vit import ImagePreprocessing, decoding
from training.data.pipeline import (
    evaluation_batches,
    example_images,
    in_memory,
    resized_once,
    training_batches,
)
from training.data.splits import load_splits
from training.errors import DataError
from training.recipe import AugmentationConfig, DataConfig, Recipe

PREPROCESSING = ImagePreprocessing((9, 7))
RECIPE = Recipe(
    data=DataConfig("digits"),
    seed=5,
    epochs=3,
    batch_size=4,
    augmentation=AugmentationConfig(crop_min_area=0.3, flip=True, shift=2),
)


@pytest.fixture(scope="module")
def split():
    return noise_split()


@pytest.fixture(scope="module")
def digits():
    return load_splits(DataConfig("digits", validation=0.1), channels=1)


def batches(dataset):
    """Lists of (image, label), without examples of weight 0."""
    return [
        (image, label.argmax())
        for images, labels, *weights in dataset.as_numpy_iterator()
        for image, label, weight in zip(
            images, labels, *(weights or [np.ones(len(images))]), strict=True
        )
        if weight
    ]


def assert_same(ours, theirs):
    np.testing.assert_equal(batches(ours), batches(theirs))


def test_pixels_do_not_depend_on_the_number_of_threads(split):
    dataset = training_batches(split, RECIPE, PREPROCESSING)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    assert_same(dataset, dataset.with_options(options))


def test_no_thread_tunes_a_pipeline(split):
    """At the end of an iterator TensorFlow may wait for it, for up to a minute."""
    datasets = (
        training_batches(split, RECIPE, PREPROCESSING),
        evaluation_batches(split, 4, PREPROCESSING),
    )
    for dataset in datasets:
        assert dataset.repeat().options().autotune.enabled is False


@pytest.mark.parametrize("step", [5, 14])
def test_a_resumed_run_sees_the_batches_of_an_uninterrupted_one(split, step):
    whole = batches(training_batches(split, RECIPE, PREPROCESSING))
    resumed = training_batches(split, RECIPE, PREPROCESSING, first_step=step)
    np.testing.assert_equal(batches(resumed), whole[4 * step :])


def test_a_run_ends_after_its_steps(split):
    short = training_batches(split, RECIPE, PREPROCESSING, total_steps=7)
    by_recipe = dataclasses.replace(RECIPE, steps=7)
    assert len(batches(short)) == 7 * 4
    assert_same(short, training_batches(split, by_recipe, PREPROCESSING))


def test_pixels_depend_on_seed_and_epoch(split):
    examples = batches(training_batches(split, RECIPE, PREPROCESSING))
    other = dataclasses.replace(RECIPE, seed=6)
    others = batches(training_batches(split, other, PREPROCESSING))
    epochs = [dict(reversed(pair) for pair in examples[i : i + 20]) for i in (0, 20)]
    seeds = [epochs[0], dict(reversed(pair) for pair in others[:20])]
    for one, two in (epochs, seeds):
        assert list(one) != list(two)
        common = set(one) & set(two)
        equal = [np.array_equal(one[number], two[number]) for number in common]
        assert np.mean(equal) < 0.2


def test_an_epoch_has_only_full_batches_and_no_image_twice(split):
    numbers = [n for _, n in batches(training_batches(split, RECIPE, PREPROCESSING))]
    assert len(numbers) == 3 * 20
    assert all(len(set(numbers[i : i + 20])) == 20 for i in (0, 20, 40))
    assert set(numbers) == set(range(23))


def test_repeated_images_are_in_one_batch_and_differ(split):
    augmentation = dataclasses.replace(RECIPE.augmentation, repeats=3)
    recipe = dataclasses.replace(RECIPE, batch_size=6, augmentation=augmentation)
    dataset = training_batches(split, recipe, PREPROCESSING)
    for images, labels in dataset.as_numpy_iterator():
        numbers = labels.argmax(axis=1)
        np.testing.assert_array_equal(numbers, np.tile(numbers[:2], 3))
        assert numbers[0] != numbers[1]
        assert len(np.unique(images[[0, 2, 4]], axis=0)) > 1


def test_evaluation_pads_its_last_batch_with_weight_0(split):
    *_, (images, labels, weights) = evaluation_batches(
        split, 4, PREPROCESSING
    ).as_numpy_iterator()
    np.testing.assert_array_equal(weights, [1, 1, 1, 0])
    assert not images[3].any()
    assert not labels[3].any()


def test_evaluation_images_match_the_models_own_resizing(split):
    images, *_ = next(evaluation_batches(split, 23, PREPROCESSING).as_numpy_iterator())
    originals = np.stack([split.read(tf.constant(i)).numpy() for i in range(23)])
    expected = PREPROCESSING(originals).numpy() * 127.5 + 127.5
    assert np.abs(images - expected).max() <= 0.501


@pytest.mark.parametrize("resize", long_after(1, ["small", "plain"]))
def test_evaluation_images_match_the_servers(resize):
    split = jpeg_split()
    preprocessing = ImagePreprocessing(24, crop_fraction=0.8, resize=resize)
    images, *_ = next(evaluation_batches(split, 6, preprocessing).as_numpy_iterator())
    for index, image in enumerate(images):
        contents = split.encoded(tf.constant(index, tf.int64))
        served = decoding.decode_and_resize(contents, preprocessing)
        np.testing.assert_array_equal(image, served)


def test_images_in_memory_are_the_same(split):
    preprocessing = ImagePreprocessing((9, 7), crop_fraction=0.75)
    cached = evaluation_batches(in_memory(split, preprocessing), 5, preprocessing)
    assert_same(cached, evaluation_batches(split, 5, preprocessing))


def test_training_on_images_in_memory_is_the_same(split):
    preprocessing = ImagePreprocessing((9, 7), crop_fraction=0.75)
    recipe = dataclasses.replace(RECIPE, augmentation=AugmentationConfig(flip=True))
    cached = training_batches(in_memory(split, preprocessing), recipe, preprocessing)
    assert_same(cached, training_batches(split, recipe, preprocessing))


CROPS = [{"crop_min_area": 0.3}, {"simple_crop": True}, {"crop_from": 29}]


@pytest.mark.parametrize("crop", CROPS, ids=lambda crop: next(iter(crop)))
def test_images_are_not_resized_once_where_each_epoch_crops_them(split, crop):
    recipe = dataclasses.replace(RECIPE, augmentation=AugmentationConfig(**crop))
    assert resized_once(split, recipe, ImagePreprocessing(24)) is split


def test_images_that_are_warped_are_resized_once(split):
    warp = AugmentationConfig(rotate=20.0, scale=0.1, shift=1)
    recipe = dataclasses.replace(RECIPE, augmentation=warp)
    assert resized_once(split, recipe, ImagePreprocessing(24)).fitted


def test_example_images_are_the_first_training_images(split):
    images = example_images(split, RECIPE, PREPROCESSING, 6)
    examples = batches(training_batches(split, RECIPE, PREPROCESSING))
    np.testing.assert_array_equal(images, [image for image, _ in examples[:6]])


def test_fewer_images_than_a_batch_is_an_error(split):
    recipe = dataclasses.replace(RECIPE, batch_size=24)
    with pytest.raises(DataError, match="batch_size=24, 23 training images"):
        training_batches(split, recipe, PREPROCESSING)


def test_digits_keep_their_values():
    splits = load_splits(DataConfig("digits", validation=0.0), channels=1)
    pixels = np.stack(
        [
            image
            for part in (splits.train, splits.test)
            for image, _ in batches(
                evaluation_batches(part, 100, ImagePreprocessing(8))
            )
        ]
    )
    values = np.round(pixels[..., 0] * (16 / 255))
    numbers = [int(n.split()[1]) for p in (splits.train, splits.test) for n in p.names]
    np.testing.assert_array_equal(values, load_digits().images[numbers])


def test_the_splits_of_digits_are_disjoint_and_complete(digits):
    parts = [set(p.names) for p in (digits.train, digits.validation, digits.test)]
    assert [len(part) for part in parts] == [1293, 144, 360]
    assert len(set.union(*parts)) == 1797


def test_splits_are_stratified(digits):
    whole = np.bincount(load_digits().target)
    for part, share in ((digits.test, 0.2), (digits.validation, 0.08)):
        assert np.abs(np.bincount(part.labels) - share * whole).max() < 1
