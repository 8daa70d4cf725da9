"""Shards: workers and replicas together see the batches of one device."""

import dataclasses

import numpy as np
import pytest
from image_splits import noise_split

from keras_vit import ImagePreprocessing
from training.data.pipeline import Shard, evaluation_batches, training_batches
from training.errors import RecipeError
from training.recipe import AugmentationConfig, DataConfig, Recipe

PREPROCESSING = ImagePreprocessing((9, 7))
RECIPE = Recipe(
    data=DataConfig("digits"),
    seed=5,
    epochs=3,
    batch_size=8,
    augmentation=AugmentationConfig(
        crop_min_area=0.3, flip=True, mixup=0.8, cutmix=1.0, repeats=2
    ),
)
PLAIN = dataclasses.replace(RECIPE, augmentation=AugmentationConfig())
SHARDS = [(2, 2), (4, 1), (1, 4)]  # workers, replicas


@pytest.fixture(scope="module")
def split():
    return noise_split(count=27)


def pieces(dataset):
    return list(dataset.as_numpy_iterator())


def global_batches(workers, replicas, make):
    """Images and labels of each step, concatenated from all workers and replicas."""
    shards = [Shard(index, workers, replicas) for index in range(workers)]
    read = [pieces(make(shard)) for shard in shards]
    assert len({len(own) for own in read}) == 1
    steps = len(read[0]) // replicas
    assert len(read[0]) == steps * replicas
    batches = []
    for step in range(steps):
        part = slice(step * replicas, (step + 1) * replicas)
        own = [piece for each in read for piece in each[part]]
        batches.append(tuple(map(np.concatenate, zip(*own, strict=True))))
    return batches


@pytest.fixture(scope="module")
def whole(split):
    """The batches of one device."""
    return pieces(training_batches(split, RECIPE, PREPROCESSING))


@pytest.mark.parametrize(
    ("workers", "replicas"),
    [SHARDS[0], *(pytest.param(*row, marks=pytest.mark.slow) for row in SHARDS[1:])],
)
def test_the_global_batch_does_not_depend_on_the_shards(
    split, whole, workers, replicas
):
    cut = global_batches(
        workers,
        replicas,
        lambda shard: training_batches(split, RECIPE, PREPROCESSING, shard=shard),
    )
    assert len(whole) == 3 * 3
    np.testing.assert_equal(cut, whole)


@pytest.mark.parametrize(
    ("workers", "replicas", "batch_size"),
    [(1, 1, 7), (2, 2, 8), (4, 1, 64), (1, 4, 7), (3, 2, 8)],
)
def test_evaluation_counts_each_image_once(split, workers, replicas, batch_size):
    steps = global_batches(
        workers,
        replicas,
        lambda shard: evaluation_batches(split, batch_size, PREPROCESSING, shard),
    )
    labels = np.concatenate([labels for _, labels, _ in steps])
    weights = np.concatenate([weights for _, _, weights in steps])
    assert set(weights) <= {0.0, 1.0}
    np.testing.assert_array_equal(labels[weights == 1].argmax(axis=1), range(27))
    assert not labels[weights == 0].any()


def test_evaluation_pixels_do_not_depend_on_the_shards(split):
    whole = pieces(evaluation_batches(split, 8, PREPROCESSING))
    cut = global_batches(
        2, 2, lambda shard: evaluation_batches(split, 8, PREPROCESSING, shard)
    )
    images = [[batch[0] for batch in batches] for batches in (cut, whole)]
    np.testing.assert_equal(*images)


@pytest.mark.slow
def test_each_worker_resumes_at_a_step(split):
    shard, step = Shard(1, 2, 2), 4  # the second epoch's second
    whole = pieces(training_batches(split, RECIPE, PREPROCESSING, shard=shard))
    rest = pieces(training_batches(split, RECIPE, PREPROCESSING, step, shard=shard))
    np.testing.assert_equal(rest, whole[2 * step :])


def test_batches_have_static_shapes(split):
    dataset = training_batches(split, RECIPE, PREPROCESSING, shard=Shard(0, 2, 2))
    assert [tuple(spec.shape) for spec in dataset.element_spec] == [
        (2, 9, 7, 3),
        (2, 27),
    ]
    evaluation = evaluation_batches(split, 8, PREPROCESSING, Shard(0, 2, 2))
    assert [tuple(spec.shape) for spec in evaluation.element_spec] == [
        (2, 9, 7, 3),
        (2, 27),
        (2,),
    ]


def test_a_batch_that_replicas_do_not_divide_is_an_error(split):
    with pytest.raises(RecipeError, match="multiple of the 3 replicas. Received: 8"):
        training_batches(split, PLAIN, PREPROCESSING, shard=Shard(0, 3, 1))


def test_mixup_needs_an_even_batch_on_each_replica(split):
    with pytest.raises(RecipeError, match="even number.*Received: 8 for 8 replicas"):
        training_batches(split, RECIPE, PREPROCESSING, shard=Shard(0, 4, 2))
