"""Divisions, batches and augmentation: pure functions of (seed, epoch, index)."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

from keras_vit import ImagePreprocessing
from training.augment import augment, random_crop, random_shift
from training.data import (
    evaluation_batches,
    in_memory,
    load_splits,
    training_batches,
)
from training.errors import DataError
from training.recipe import AugmentationConfig, DataConfig, Recipe
from training.splits import Split

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
    """23 images of noise, each with its own number as its only label."""
    random = np.random.default_rng(0)
    images = tf.constant(random.integers(0, 256, (23, 13, 11, 3)), tf.uint8)
    return Split(np.arange(23), 23, lambda index: images[index], [""] * 23)


@pytest.fixture(scope="module")
def digits():
    return load_splits(DataConfig("digits", validation=0.1), channels=1)


def batches(dataset):
    """Lists of (image, number)."""
    return [
        (image, label.argmax())
        for images, labels in dataset.as_numpy_iterator()
        for image, label in zip(images, labels, strict=True)
    ]


def same(ours, theirs):
    return len(ours) == len(theirs) and all(
        number == other and np.array_equal(image, picture)
        for (image, number), (picture, other) in zip(ours, theirs, strict=True)
    )


def test_the_same_seed_gives_the_same_pixels(split):
    first = batches(training_batches(split, RECIPE, PREPROCESSING))
    again = batches(training_batches(split, RECIPE, PREPROCESSING))
    assert same(first, again)


def test_pixels_do_not_depend_on_the_number_of_threads(split):
    dataset = training_batches(split, RECIPE, PREPROCESSING)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.autotune.enabled = False
    assert same(batches(dataset), batches(dataset.with_options(options)))


def test_pixels_do_not_depend_on_the_place_in_the_run(split):
    whole = batches(training_batches(split, RECIPE, PREPROCESSING))
    resumed = batches(training_batches(split, RECIPE, PREPROCESSING, first_epoch=2))
    assert same(whole[40:], resumed)


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


def test_evaluation_has_every_image_once_and_in_order(split):
    dataset = evaluation_batches(split, 4, PREPROCESSING)
    assert [number for _, number in batches(dataset)] == list(range(23))


def test_evaluation_images_are_what_the_model_would_resize_itself(split):
    images, _ = next(evaluation_batches(split, 23, PREPROCESSING).as_numpy_iterator())
    originals = np.stack([split.read(tf.constant(i)).numpy() for i in range(23)])
    expected = PREPROCESSING(originals).numpy() * 127.5 + 127.5
    assert np.abs(images - expected).max() <= 0.501


def test_images_in_memory_are_the_same(split):
    cached = evaluation_batches(in_memory(split, PREPROCESSING), 5, PREPROCESSING)
    assert same(batches(cached), batches(evaluation_batches(split, 5, PREPROCESSING)))


def test_fewer_images_than_a_batch_is_an_error(split):
    recipe = dataclasses.replace(RECIPE, batch_size=24)
    with pytest.raises(DataError, match="batch_size=24, 23 training images"):
        training_batches(split, recipe, PREPROCESSING)


def test_digits_keep_their_values():
    splits = load_splits(DataConfig("digits", validation=0.0), channels=1)
    pixels = np.concatenate(
        [
            images
            for part in (splits.train, splits.test)
            for images, _ in evaluation_batches(
                part, 100, ImagePreprocessing(8)
            ).as_numpy_iterator()
        ]
    )
    values = np.round(pixels[..., 0] * (16 / 255))
    numbers = [int(n.split()[1]) for p in (splits.train, splits.test) for n in p.names]
    np.testing.assert_array_equal(values, load_digits().images[numbers])


def test_the_parts_of_digits_are_disjoint_and_complete(digits):
    parts = [set(p.names) for p in (digits.train, digits.validation, digits.test)]
    assert [len(part) for part in parts] == [1293, 144, 360]
    assert len(set.union(*parts)) == 1797


def test_each_class_has_its_share_of_each_part(digits):
    whole = np.bincount(load_digits().target)
    for part, share in ((digits.test, 0.2), (digits.validation, 0.08)):
        assert np.abs(np.bincount(part.labels) - share * whole).max() < 1


def test_the_division_does_not_follow_the_seed_of_the_run(digits):
    again = load_splits(DataConfig("digits", validation=0.1), channels=1)
    other = load_splits(DataConfig("digits", split_seed=1), channels=1)
    assert again.test.names == digits.test.names
    assert set(other.test.names) != set(digits.test.names)


@pytest.mark.parametrize("largest", [1, 2])
def test_a_shift_moves_whole_pixels_and_repeats_the_border(largest):
    image = np.arange(5 * 4, dtype="uint8").reshape(5, 4, 1)
    padded = np.pad(image, ((largest,) * 2, (largest,) * 2, (0, 0)), mode="edge")
    places = range(2 * largest + 1)
    windows = {padded[y : y + 5, x : x + 4].tobytes() for y in places for x in places}
    shifted = {
        random_shift(tf.constant(image), tf.constant([0, seed]), largest)
        .numpy()
        .tobytes()
        for seed in range(500)
    }
    assert shifted == windows


def test_a_crop_keeps_at_least_the_smallest_area():
    rows, columns = np.mgrid[:60, :80]
    image = tf.constant(np.stack([rows, columns, rows], -1), tf.uint8)
    shapes = [
        random_crop(image, tf.constant([1, seed]), 0.25).shape for seed in range(100)
    ]
    areas = np.array([height * width for height, width, _ in shapes]) / (60 * 80)
    ratios = np.array([width / height for height, width, _ in shapes])
    assert areas.min() > 0.23
    assert areas.min() < 0.4 < 0.8 < areas.max()
    assert ratios.min() > 0.7
    assert ratios.max() < 1.4


def test_half_of_the_images_are_mirrored():
    image = tf.constant(np.arange(9 * 7 * 3).reshape(9, 7, 3) % 256, tf.uint8)
    config = AugmentationConfig(flip=True)
    results = [
        augment(image, tf.constant([2, seed]), config, PREPROCESSING).numpy()
        for seed in range(100)
    ]
    mirrored = [np.array_equal(result, image[:, ::-1]) for result in results]
    unchanged = [np.array_equal(result, image) for result in results]
    assert sum(mirrored) + sum(unchanged) == 100
    assert 30 < sum(mirrored) < 70


def test_augmentation_is_the_same_eagerly_and_in_a_pipeline(split):
    config, image = RECIPE.augmentation, split.read(tf.constant(3))
    eager = augment(image, tf.constant([4, 4]), config, PREPROCESSING)
    pipeline = tf.data.Dataset.from_tensors(image).map(
        lambda picture: augment(picture, tf.constant([4, 4]), config, PREPROCESSING)
    )
    np.testing.assert_array_equal(eager, next(iter(pipeline)))
