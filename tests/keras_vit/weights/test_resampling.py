"""Resampling against scipy, jax and the formulas written out as loops."""

import math

import jax
import ml_dtypes
import numpy as np
import pytest
import scipy.ndimage
from long_cases import long_after

from keras_vit.weights.resampling import (
    RESIZES,
    adapt_channels,
    resample_patches,
    resample_positions,
)

pytestmark = pytest.mark.backend


def embedding(grid, prefix_tokens=0, dtype="float64"):
    random = np.random.default_rng(3)
    shape = (1, prefix_tokens + math.prod(grid), 3)
    return random.normal(size=shape).astype(dtype)


def check_patches(array, grids, method, expected, prefix_tokens=0, atol=1e-12):
    """`expected` maps the image [H, W, D] of the patches to the resized one."""
    old, new = grids
    found = resample_positions(array, old, new, prefix_tokens, method)
    assert found.shape == (1, prefix_tokens + math.prod(new), 3)
    prefix, patches = np.split(found[0], [prefix_tokens])
    np.testing.assert_array_equal(prefix, array[0, :prefix_tokens])
    image = expected(array[0, prefix_tokens:].reshape(*old, 3))
    np.testing.assert_allclose(patches.reshape(*new, 3), image, rtol=0, atol=atol)


def zoom(grids, mode="nearest"):
    (h, w), new = grids
    return lambda x: scipy.ndimage.zoom(
        x, (new[0] / h, new[1] / w, 1), order=1, mode=mode
    )


def test_method_google_equals_scipys_zoom(grids, prefix_tokens):
    array = embedding(grids[0], prefix_tokens)
    check_patches(array, grids, "google", zoom(grids), prefix_tokens)


@pytest.mark.parametrize(("old", "new"), [(7, 12), (14, 24), (16, 32), (16, 37)])
def test_method_google_equals_the_official_call_at_published_sizes(old, new):
    grids = (old, old), (new, new)
    expected = zoom(grids, mode="constant")
    check_patches(embedding(grids[0]), grids, "google", expected)


def cubic(x, a):
    x = abs(x)
    if x < 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def interpolate(kernel, grids):
    """Without antialiasing: border pixels stand for those beyond."""

    def axis(x, new):
        old = len(x)
        y = np.zeros((new, *x.shape[1:]))
        for i in range(new):
            center = (i + 0.5) * old / new - 0.5
            for j in range(math.floor(center) - 1, math.floor(center) + 3):
                y[i] += kernel(center - j) * x[min(max(j, 0), old - 1)]
        return y

    _, (h, w) = grids
    return lambda x: axis(axis(x, h).swapaxes(0, 1), w).swapaxes(0, 1)


def test_bicubic_equals_the_formula(grids):
    expected = interpolate(lambda x: cubic(x, a=-0.75), grids)
    check_patches(embedding(grids[0]), grids, "bicubic", expected)


def test_bilinear_equals_the_formula(grids):
    expected = interpolate(lambda x: max(0, 1 - abs(x)), grids)
    check_patches(embedding(grids[0]), grids, "bilinear", expected)


@pytest.mark.parametrize(
    ("method", "theirs"), [("timm", "cubic"), ("antialiased", "linear")]
)
def test_an_antialiased_method_equals_jaxs(method, theirs, grids):
    def expected(x):
        return jax.image.resize(x, (*grids[1], 3), theirs, antialias=True)

    array = embedding(grids[0], dtype="float32")
    check_patches(array, grids, method, expected, atol=5e-6)


@pytest.mark.parametrize("method", RESIZES)
def test_the_same_grid_gives_the_same_array(method):
    array = embedding((5, 3), 1)
    assert resample_positions(array, (5, 3), (5, 3), 1, method) is array


@pytest.mark.parametrize("dtype", ["float16", "float32", ml_dtypes.bfloat16])
def test_the_dtype_is_kept(dtype):
    array = embedding((5, 3), 1, dtype)
    exact = resample_positions(array.astype("float64"), (5, 3), (7, 2), 1)
    found = resample_positions(array, (5, 3), (7, 2), 1)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, exact.astype(dtype))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((5, 3), (7, 2), 0), "each prefix token and each patch"),
        (((4, 4), (7, 2), 1), "each prefix token and each patch"),
        (((5, 3), (0, 2), 1), r"at least \(1, 1\)"),
        (((5, 3), (7, 2), 1, "nearest"), "`method` must be one of 'google'"),
    ],
)
def test_invalid_arguments_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        resample_positions(embedding((5, 3), 1), *arguments)


SIZES = [((5, 3), (11, 4)), ((7, 7), (3, 5)), ((1, 4), (2, 2)), ((8, 8), (16, 16))]
JAX_METHODS = {"bilinear": "linear", "timm": "cubic"}


def resize(patch, new, method):
    """A patch [P, Q] by jax, as in FlexiViT's code."""
    return np.asarray(jax.image.resize(patch, new, JAX_METHODS[method]), "float64")


@pytest.mark.parametrize("method", JAX_METHODS)
@pytest.mark.parametrize(("old", "new"), long_after(2, SIZES))
def test_patches_are_resampled_by_the_pseudo_inverse(old, new, method):
    """B of the whole patch from jax, one pixel after the other; least squares."""
    pixels = np.eye(math.prod(old), dtype="float32").reshape(-1, *old)
    matrix = np.stack([resize(p, new, method).ravel() for p in pixels])  # B^T
    kernel = np.random.default_rng(5).normal(size=(*old, 2, 3))
    expected, *_ = np.linalg.lstsq(matrix, kernel.reshape(len(matrix), -1), 1e-5)
    found = resample_patches(kernel, new, method)
    np.testing.assert_allclose(
        found, expected.reshape(*new, 2, 3), rtol=0, atol=3e-6 * abs(expected).max()
    )


@pytest.mark.parametrize("method", JAX_METHODS)
def test_enlarged_patches_give_the_same_tokens(method):
    """Section 3.4 of FlexiViT: <x, w> = <B x, w'> for every patch x."""
    random = np.random.default_rng(7)
    patch, kernel = random.normal(size=(5, 3)), random.normal(size=(5, 3, 1, 2))
    larger = resize(patch.astype("float32"), (7, 11), method)
    token = np.einsum("pq,pqcd->cd", patch, kernel)
    found = np.einsum("pq,pqcd->cd", larger, resample_patches(kernel, (7, 11), method))
    np.testing.assert_allclose(found, token, rtol=0, atol=1e-5)


def test_patches_of_the_same_size_are_unchanged():
    kernel = np.random.default_rng(7).normal(size=(5, 3, 2, 7)).astype("float32")
    assert resample_patches(kernel, (5, 3)) is kernel
    assert resample_patches(kernel, (4, 4)).dtype == "float32"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(((0, 4),), "`new_size`"), (((4, 4), "google"), "`method`.*'bilinear', 'timm'")],
)
def test_an_invalid_patch_size_is_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        resample_patches(np.ones((5, 3, 2, 7)), *arguments)


@pytest.fixture
def rgb():
    return np.random.default_rng(9).normal(size=(5, 2, 3, 7)).astype("float32")


def test_one_channel_gives_the_output_of_three_equal_ones(rgb):
    image = np.random.default_rng(1).normal(size=(5, 2))
    expected = np.einsum("pq,pqcd->d", image, rgb)
    found = np.einsum("pq,pqcd->d", image, adapt_channels(rgb, 1))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("channels", "sources"), [(2, [0, 1]), (5, [0, 1, 2, 0, 1])])
def test_more_channels_repeat_the_three_rescaled(rgb, channels, sources):
    found = adapt_channels(rgb, channels)
    assert found.dtype == "float32"
    for channel, source in enumerate(sources):
        expected = rgb[:, :, source] * (3 / channels)
        np.testing.assert_allclose(found[:, :, channel], expected, rtol=1e-6)


def test_three_channels_are_unchanged(rgb):
    assert adapt_channels(rgb, 3) is rgb


@pytest.mark.parametrize(("have", "want"), [(4, 1), (1, 3), (3, 0)])
def test_only_three_channels_are_adapted(have, want):
    with pytest.raises(ValueError, match=rf"3 channels.*channels={want}"):
        adapt_channels(np.ones((5, 2, have, 7)), want)
