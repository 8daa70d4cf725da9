"""Masks of self-supervision: how many, which kinds, and of which example."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import chisquare

from training.data.augment import example_seed
from training.data.masking import Masking, masked_patches
from training.recipe import SelfSupervisionConfig

PATCHES, EXAMPLES = 22, 3000


def masks(masking, epoch=0, examples=EXAMPLES):
    """The indices and masks of many examples: int [n, N], bool [n, N]."""
    seeds = tf.data.Dataset.range(examples).map(
        lambda index: example_seed(masking.seed, tf.constant(epoch), index)
    )
    drawn = seeds.map(masking).batch(examples).get_single_element()
    return drawn[0].numpy(), drawn[1].numpy() > 0


@pytest.fixture(scope="module")
def corrupted():
    return masks(Masking(SelfSupervisionConfig("masked_patches"), PATCHES, seed=5))


def test_half_of_each_images_patches_are_masked_and_each_equally_often(corrupted):
    _, masked = corrupted
    assert (masked.sum(axis=1) == PATCHES // 2).all()
    assert chisquare(masked.sum(axis=0)).pvalue > 1e-3


def test_masked_patches_become_mask_another_patch_or_themselves_80_10_10(corrupted):
    indices, masked = corrupted
    own = np.broadcast_to(np.arange(PATCHES), indices.shape)
    assert (indices[~masked] == own[~masked]).all()
    hidden = (indices == PATCHES)[masked].sum()
    same = (indices == own)[masked].sum()
    other = masked.sum() - hidden - same
    expected = masked.sum() * np.array([0.8, 0.1, 0.1])
    assert chisquare([hidden, other, same], expected).pvalue > 1e-3


def test_the_other_patch_is_any_other_equally_often(corrupted):
    indices, _ = corrupted
    own = np.broadcast_to(np.arange(PATCHES), indices.shape)
    moved = (indices != own) & (indices != PATCHES)
    offsets = (indices - own)[moved] % PATCHES
    counts = np.bincount(offsets, minlength=PATCHES)
    assert counts[0] == 0
    assert chisquare(counts[1:]).pvalue > 1e-3


def test_the_kind_is_independent_of_the_patch(corrupted):
    indices, masked = corrupted
    hidden = ((indices == PATCHES) & masked).sum(axis=0)
    expected = masked.sum(axis=0) * hidden.sum() / masked.sum()
    assert chisquare(hidden, expected).pvalue > 1e-3


def test_mae_orders_all_patches_and_masks_the_last_three_quarters():
    indices, masked = masks(Masking(SelfSupervisionConfig("mae"), PATCHES, seed=1))
    assert (np.sort(indices, axis=1) == np.arange(PATCHES)).all()
    visible = PATCHES - masked.sum(axis=1)
    assert (visible == round(PATCHES / 4)).all()
    for order, mask in zip(indices[:50], masked, strict=False):
        assert set(order[visible[0] :]) == set(np.flatnonzero(mask))
    assert chisquare(np.bincount(indices[:, 0])).pvalue > 1e-3


def test_simmim_replaces_every_masked_patch():
    config = SelfSupervisionConfig("simmim", mask_share=0.3)
    indices, masked = masks(Masking(config, PATCHES, seed=1), examples=20)
    assert (masked.sum(axis=1) == 7).all()
    assert ((indices == PATCHES) == masked).all()


def test_the_mask_follows_from_seed_epoch_and_index_alone():
    config = SelfSupervisionConfig("masked_patches")

    def indices(seed, epoch=0):
        return masks(Masking(config, PATCHES, seed), epoch, examples=9)[0]

    first = indices(1)
    np.testing.assert_array_equal(first, indices(1))
    for other in (indices(2), indices(1, epoch=1)):
        assert (first != other).any(axis=1).all()


def test_evaluated_images_keep_their_masks():
    masking = Masking(SelfSupervisionConfig("masked_patches"), PATCHES, seed=1)
    images = [masking.of_evaluated(tf.constant(i, tf.int64))[0] for i in (0, 0, 1)]
    np.testing.assert_array_equal(images[0], images[1])
    assert (images[0].numpy() != images[2].numpy()).any()


@pytest.mark.parametrize(
    ("task", "share", "patches", "expected"),
    [
        ("masked_patches", None, 196, 98),
        ("mae", None, 196, 147),
        ("simmim", None, 196, 118),
        ("mae", 0.99, 4, 3),  # one stays visible
        ("masked_patches", 0.01, 4, 1),
    ],
)
def test_number_of_masked_patches(task, share, patches, expected):
    assert masked_patches(SelfSupervisionConfig(task, share), patches) == expected
