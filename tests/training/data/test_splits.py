"""Splits: slices in TensorFlow Datasets' grammar, shares, and their errors."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from image_splits import noise_split

from training.data.labeled_images import Source
from training.data.splits import divide, load_splits
from training.errors import DataError
from training.recipe import DataConfig


@pytest.fixture
def source():
    """100 training, 40 validation and 30 test images, not sorted."""
    sizes = {"train": 100, "validation": 40, "test": 30}
    return Source(
        tuple("abc"),
        {name: noise_split(size) for name, size in sizes.items()},
        test_part="test",
    )


def ids(split):
    return [int(name.split()[1]) for name in split.names]


def config(**kwargs):
    return DataConfig("python:some:source", **{"validation": 0.0, **kwargs})


def test_slices_count_in_the_parts_order(source):
    train, validation, test = divide(
        source,
        config(train="train[:98%]", validation="train[98%:]", test="validation[10:15]"),
    )
    assert ids(train) == list(range(98))
    assert ids(validation) == [98, 99]
    assert ids(test) == [10, 11, 12, 13, 14]


def test_slices_can_be_added(source):
    train, validation, test = divide(
        source, config(train="train[:8]+validation[:5]", validation="train[-10:]")
    )
    assert ids(train) == [*range(8), *range(5)]
    assert ids(validation) == list(range(90, 100))
    assert len(test) == 30
    labels = [*source.parts["train"].labels[:8], *source.parts["validation"].labels[:5]]
    np.testing.assert_array_equal(train.labels, labels)


def test_added_slices_read_the_images_of_their_parts(source):
    train, *_ = divide(
        source, config(train="train[90:93]+validation[:5]+test[7:9]", test="test[:2]")
    )
    parts = [("train", n) for n in (90, 91, 92)]
    parts += [("validation", n) for n in range(5)] + [("test", n) for n in (7, 8)]
    dataset = tf.data.Dataset.range(len(train)).map(train.read)
    for image, (part, number) in zip(dataset, parts, strict=True):
        expected = source.parts[part].read(tf.constant(number, tf.int64))
        np.testing.assert_array_equal(image, expected)


def test_slices_match_tensorflow_datasets(source):
    tfds = pytest.importorskip("tensorflow_datasets")
    info = tfds.core.splits.SplitInfo(name="train", shard_lengths=[100], num_bytes=0)
    infos = {"train": info}
    for text in ("train[3%:17%]", "train[-33%:]", "train[:-20]", "train[5:6]"):
        one = tfds.core.ReadInstruction.from_spec(text).to_absolute(infos)[0]
        train, *_ = divide(source, config(train=text))
        assert ids(train) == list(range(100))[one.from_ : one.to]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"train": "train[:60]", "validation": "train[50:]"},
            "`data.train` and `data.validation` .*'train.:60.' .*share 10 images",
        ),
        (
            {"validation": "train[:5]"},
            "`data.train` and `data.validation` must not",
        ),
        ({"validation": "test[:5]"}, "`data.validation` and `data.test` must not"),
        ({"train": "train[:5]+train[3:9]"}, "`data.train` must not have an image"),
        (
            {"train": "training[:5]"},
            "`data.train` must be a slice of train, valid",
        ),
        ({"train": "train[:5"}, "`data.train` must be a slice.*Received: 'train.:5'"),
        (
            {"train": "train[:500]"},
            "`data.train` must be .*incompatible with 100",
        ),
        ({"train": "train[5:5]"}, "`data.train`: there are no images in 'train.5:5.'"),
        ({"test": "nothing"}, "`data.test` must be a slice"),
    ],
)
def test_a_wrong_slice_is_a_one_line_error(source, settings, message):
    with pytest.raises(DataError, match=message) as error:
        divide(source, config(**settings))
    assert "\n" not in str(error.value)


def test_digits_are_shuffled_before_they_are_sliced():
    config = DataConfig("digits", "train[:50%]", "train[50%:60%]", "train[60%:]")
    parts, again = load_splits(config, 1), load_splits(config, 1)
    other = load_splits(dataclasses.replace(config, split_seed=1), 1)
    splits = (parts.train, parts.validation, parts.test)
    assert sum(map(len, splits)) == 1797
    assert len({name for split in splits for name in split.names}) == 1797
    assert ids(parts.train) != sorted(ids(parts.train))
    assert parts.train.names == again.train.names != other.train.names
    assert np.bincount(parts.train.labels).min() > 60


def test_a_share_depends_on_the_split_seed_alone():
    first, again, other = (
        load_splits(DataConfig("digits", validation=0.1, split_seed=seed), 1)
        for seed in (0, 0, 1)
    )
    assert first.validation.names == again.validation.names
    assert first.validation.names != other.validation.names
    assert first.test.names == again.test.names
    assert set(first.test.names) != set(other.test.names)


def test_a_share_and_a_slice_can_be_combined():
    splits = load_splits(
        DataConfig("digits", train="train[:1000]", validation=0.1, test="train[1000:]"),
        1,
    )
    parts = (splits.train, splits.validation, splits.test)
    assert [len(part) for part in parts] == [900, 100, 797]
    assert len({name for part in parts for name in part.names}) == 1797


def test_parts_that_another_source_lacks_become_shares(source):
    """A recipe for ImageNet, which tests on its validation images, takes a folder."""
    labels = np.arange(100) % 3
    images = dataclasses.replace(source.parts["train"], labels=labels)
    only_train = Source(source.class_names, {"train": images}, None)
    train, validation, test = divide(
        only_train, config(test="validation", validation="validation")
    )
    assert (len(train), len(validation), len(test)) == (72, 8, 20)
    assert not set(ids(train)) & set(ids(test))


def test_a_validation_part_is_used_unless_the_recipe_wants_none(source):
    own = dataclasses.replace(source, validation_part="validation")
    train, validation, _ = divide(own, config(validation=0.1))
    assert (len(train), len(validation)) == (100, 40)
    assert divide(own, config(validation=0.0))[1] is None
    _, validation, _ = divide(own, config(train="train[:80]", validation="train[80:]"))
    assert len(validation) == 20


def test_other_names_that_a_source_lacks_are_refused(source):
    with pytest.raises(DataError, match=r"`data\.test` must be a slice of train"):
        divide(source, config(test="tset"))
