"""Mean attention distance: of attention with a known one, and of a model in NumPy."""

import keras
import numpy as np
import numpy_vit
import pytest
from long_cases import long_after
from tiny_model import numpy, small_classifier

import keras_vit
from keras_vit.analysis import NotApplicableError, attention_distance
from keras_vit.analysis.distance import (
    MeanDistance,
    attention_distance_model,
    patch_distances,
)

pytestmark = pytest.mark.backend

GRID, SIDE = (11, 7), 2  # of the tiny model
PATCHES = GRID[0] * GRID[1]


def all_pairs(grid, sides):
    """Distances of all pairs of patches, one pair after the other."""
    places = [
        (y * sides[0], x * sides[1]) for y in range(grid[0]) for x in range(grid[1])
    ]
    return np.array(
        [[((a - c) ** 2 + (b - d) ** 2) ** 0.5 for c, d in places] for a, b in places]
    )


def neighbors(grid, down, right):
    """Each patch attends to the one so far away, at the border to itself."""
    weights = np.zeros((PATCHES, PATCHES))
    for y in range(grid[0]):
        for x in range(grid[1]):
            inside = 0 <= y + down < grid[0] and 0 <= x + right < grid[1]
            target = (y + down * inside, x + right * inside)
            weights[y * grid[1] + x, target[0] * grid[1] + target[1]] = 1
    return weights


def patterns():
    """Weights of every pair of patches, and their mean distance in closed form."""
    height, width = GRID
    uniform = np.full((PATCHES, PATCHES), 1 / PATCHES)
    diagonal = (height - 3) * (width - 4) / PATCHES * 5 * SIDE
    return [
        (uniform, all_pairs(GRID, (SIDE, SIDE)).mean()),
        (np.eye(PATCHES), 0),
        (neighbors(GRID, 0, 1), SIDE * (width - 1) / width),
        (neighbors(GRID, -2, 0), 2 * SIDE * (height - 2) / height),
        (neighbors(GRID, 3, -4), diagonal),
    ]


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_attention_of_a_known_distance_has_it(prefix):
    """Whatever share goes to tokens that are no patches, and from them."""
    weights, expected = zip(*patterns(), strict=True)
    tokens = prefix + PATCHES
    attention = np.random.default_rng(0).uniform(size=(1, len(weights), tokens, tokens))
    attention[0, :, prefix:, prefix:] = np.stack(weights) * (0.3 if prefix else 1)
    layer = MeanDistance(patch_distances(GRID, (22, 14)))
    distances = numpy(layer(attention.astype("float32")))
    np.testing.assert_allclose(distances, [expected], rtol=1e-6, atol=1e-9)


def test_queries_that_give_the_patches_nothing_count_zero():
    attention = np.zeros((1, 1, PATCHES + 1, PATCHES + 1), "float32")
    attention[..., 0] = 1
    attention[0, 0, 1 + 3] = np.eye(PATCHES + 1)[1 + 5]  # two patches to the right
    layer = MeanDistance(patch_distances(GRID, (22, 14)))
    expected = 2 * SIDE / PATCHES
    np.testing.assert_allclose(numpy(layer(attention)), [[expected]], rtol=1e-6)


@pytest.mark.parametrize(
    ("grid", "size"), [((11, 7), (22, 14)), ((3, 5), (51, 65)), ((1, 1), (7, 5))]
)
def test_distances_are_between_the_centers_of_patches_in_pixels(grid, size):
    sides = (size[0] / grid[0], size[1] / grid[1])
    expected = all_pairs(grid, sides)
    np.testing.assert_allclose(patch_distances(grid, size), expected, rtol=1e-12)


FORMS = [
    {
        "depth": 1,
        "pooling": "map",
        "preprocessing": keras_vit.ImagePreprocessing((22, 14)),
    },
    {"register_tokens": 3},
    {},
    {"class_token": False, "pooling": "avg", "depth": 3},
    {"position_embedding": "relative", "position_placement": "shared"},
]


@pytest.mark.parametrize("kwargs", long_after(2, FORMS))
def test_the_distance_of_a_model_equals_numpys(tiny_vit, images, kwargs):
    model = tiny_vit(**kwargs)
    pixels = np.concatenate([images(), images(seed=5)[:1]])
    raw = np.round(127.5 * (pixels + 1)).astype("uint8")
    inputs = raw if model.reads_raw_pixels else pixels
    pixels = (raw - 127.5) / 127.5 if model.reads_raw_pixels else pixels
    prefix, expected = model.prefix_tokens, []
    for weights in numpy_vit.block_weights(model, pixels):
        weights = weights[:, :, prefix:, prefix:]
        spanned = (weights * all_pairs(GRID, (SIDE, SIDE))).sum(-1) / weights.sum(-1)
        expected.append(spanned.mean(axis=(0, 2)))
    # The last batch has one image, whose copy must not count.
    distances = attention_distance(model, inputs, batch_size=2)
    assert distances.dtype == np.float64
    np.testing.assert_allclose(distances, expected, rtol=1e-4)


def test_heads_without_preferences_have_the_uniform_distance(tiny_vit, images):
    model = tiny_vit(register_tokens=2)
    for index in range(model.depth):
        query = model.get_layer(f"encoder_block_{index}").attention.query
        query.set_weights([np.zeros_like(array) for array in query.get_weights()])
    uniform = all_pairs(GRID, (SIDE, SIDE)).mean()
    np.testing.assert_allclose(attention_distance(model, images()), uniform, rtol=1e-5)


def test_a_hybrids_patch_is_what_it_covers_of_the_image():
    model = keras_vit.VisionTransformer(
        image_size=(96, 64),
        patch_size=1,
        width=10,
        depth=1,
        mlp_dim=7,
        heads=5,
        resnet_blocks=(1, 1, 1),
    )
    attention = model.get_layer("encoder_block_0").attention
    attention.query.set_weights([np.zeros((10, 10)), np.zeros(10)])
    pixels = np.random.default_rng(0).uniform(-1, 1, (1, 96, 64, 3))
    expected = all_pairs((6, 4), (16, 16)).mean()
    np.testing.assert_allclose(attention_distance(model, pixels), expected, rtol=1e-5)


def test_half_precision_gives_nearly_the_same(tiny_vit, images):
    expected = attention_distance(tiny_vit(depth=1), images())
    half = tiny_vit(depth=1, dtype="mixed_bfloat16")
    distances = attention_distance(half, images())
    np.testing.assert_allclose(distances, expected, rtol=0.02)


def test_no_attention_weights_leave_the_graph(tiny_vit, images):
    """What leaves it has as many numbers as there are heads."""
    part = attention_distance_model(tiny_vit(depth=3))
    assert [tuple(output.shape) for output in part.outputs] == [(None, 5)] * 3
    outputs = part(images())
    assert all(output.shape == (2, 5) for output in outputs)


def test_models_without_attention_between_all_patches_are_refused(tiny_vit, images):
    axial = tiny_vit(attention="axial", class_token=False, pooling="avg")
    with pytest.raises(NotApplicableError, match="Received: attention='axial'"):
        attention_distance(axial, images())
    resnet = keras_vit.ResNet(blocks=(1,), image_size=(22, 14), name="bit")
    with pytest.raises(NotApplicableError, match="Received: ResNet 'bit'"):
        attention_distance(resnet, images())
    classifier = small_classifier(keras.layers.Flatten())
    with pytest.raises(NotApplicableError, match="Received: ImageClassifier"):
        attention_distance(classifier, images())


@pytest.mark.parametrize("shape", [(0, 22, 14, 3), (2, 14, 22, 3), (22, 14, 3)])
def test_images_of_another_shape_are_refused(tiny_vit, shape):
    with pytest.raises(ValueError, match=r"`images` must have the shape \(n, 22, 14"):
        attention_distance(tiny_vit(), np.zeros(shape))
