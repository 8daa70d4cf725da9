"""Principal components of the first filters, against scikit-learn's."""

import keras
import numpy as np
import pytest
from sklearn.decomposition import PCA
from tiny_model import build_vit, numpy, with_random_weights

import keras_vit
from keras_vit.analysis import NotApplicableError, embedding_filters

pytestmark = pytest.mark.backend


def principal_components(kernel, count):
    """scikit-learn's components of the filters [P, P, C, D]."""
    filters = kernel.reshape(-1, kernel.shape[-1]).T
    components = PCA(count, svd_solver="full").fit(filters).components_
    return components.reshape(count, *kernel.shape[:-1])


def check(filters, kernel, count):
    expected = principal_components(np.asarray(kernel, "float64"), count)
    signs = np.sign((filters * expected).sum(axis=(1, 2, 3), keepdims=True))
    np.testing.assert_allclose(filters, signs * expected, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_they_are_scikit_learns_principal_components(dtype):
    model = build_vit(width=35, patch_size=2, dtype=dtype)
    filters = embedding_filters(model, components=5)
    assert filters.shape == (5, 2, 2, 3)
    check(filters, numpy(model.get_layer("embedding").kernel), 5)


def test_there_are_no_more_than_the_filters_have():
    few = build_vit(width=15, patch_size=2, channels=1)
    assert embedding_filters(few).shape == (4, 2, 2, 1)
    narrow = build_vit(width=5, heads=5, patch_size=2)
    assert embedding_filters(narrow).shape == (4, 2, 2, 3), "five points, four axes"


def test_the_largest_number_of_each_is_positive(tiny_vit):
    filters = embedding_filters(tiny_vit()).reshape(-1, 12)
    largest = np.abs(filters).argmax(axis=1)
    assert (filters[np.arange(len(filters)), largest] > 0).all()


def standardized(kernel, epsilon, outside):
    """Each output channel with mean 0 and variance 1 (arXiv:1903.10520)."""
    mean, deviation = kernel.mean((0, 1, 2)), kernel.std((0, 1, 2))
    if outside:
        return (kernel - mean) / (deviation + epsilon)
    return (kernel - mean) / np.sqrt(deviation**2 + epsilon)


@pytest.mark.parametrize("kind", ["resnet", "hybrid"])
def test_networks_with_a_root_convolution_show_it(kind):
    if kind == "resnet":
        model = keras_vit.ResNet(blocks=(1,), image_size=(33, 26))
    else:
        model = build_vit(resnet_blocks=(), image_size=(16, 24))
    with_random_weights(model, 3)
    kernel = numpy(model.get_layer("stem_conv").kernel).astype("float64")
    expected = standardized(
        kernel, *{"resnet": (1e-10, False), "hybrid": (1e-5, True)}[kind]
    )
    filters = embedding_filters(model, components=7)
    assert filters.shape == (7, 7, 7, 3)
    signs = np.sign(
        (filters * principal_components(expected, 7)).sum((1, 2, 3), keepdims=True)
    )
    np.testing.assert_allclose(
        filters, signs * principal_components(expected, 7), atol=1e-5
    )


def classifier(*layers):
    backbone = keras.Sequential([keras.Input((8, 6, 3)), *layers])
    return keras_vit.ImageClassifier(backbone=backbone, classes=3, name="net")


def test_other_backbones_show_their_first_convolution():
    first = keras.layers.Conv2D(13, (3, 5))
    model = classifier(keras.layers.Rescaling(2), first, keras.layers.Conv2D(7, 1))
    check(embedding_filters(model, 4), numpy(first.kernel), 4)


def test_models_without_such_a_convolution_are_refused():
    flat = classifier(keras.layers.Flatten())
    later = classifier(keras.layers.Dense(5), keras.layers.Conv2D(7, 3))
    for model in (flat, later):
        with pytest.raises(NotApplicableError, match="Received: ImageClassifier 'net'"):
            embedding_filters(model)
    with pytest.raises(NotApplicableError, match="one of keras_vit"):
        embedding_filters(keras.Sequential(name="other"))
    with pytest.raises(ValueError, match="Received: components=0"):
        embedding_filters(build_vit(), components=0)
