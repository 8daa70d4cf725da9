"""The hybrids' stem and BiT: against NumPy, saved, trained, in half precision."""

import keras
import numpy as np
import numpy_resnet
import pytest
from layer_contract import *  # noqa: F403
from long_cases import long_after
from shapes_only import shapes_only
from tiny_model import numpy

import keras_vit
from keras_vit import resnet

pytestmark = pytest.mark.backend

ARGUMENTS = {
    "PreActivationUnit": {"filters": 64, "strides": 2},
    "ResidualUnit": {"filters": 32, "strides": 3},
    "StdConv2D": {
        "filters": 13,
        "kernel_size": 5,
        "strides": 2,
        "convention": "bit",
    },
}
SIZES = [(22, 13), (19, 24)]  # odd and even, so that SAME pads on one side or both
SMALL = {"image_size": (33, 26), "blocks": (1, 2), "channels": 5, "classes": 7}


LAYERS = {
    name: value
    for name, value in vars(resnet).items()
    if getattr(value, "__module__", "") == resnet.__name__
    and not name.startswith("_")
    and isinstance(value, type)
    and not issubclass(value, keras.Model)
}


@pytest.fixture
def inputs():
    return values(2, 7, 10, 96)


def values(*shape, seed=2):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def randomize(weights, scale=1.0, seed=7):
    random = np.random.default_rng(seed)
    for weight in weights:
        noise = random.normal(scale=scale, size=weight.shape)
        weight.assign(1 + 0.3 * noise if weight.name == "gamma" else noise)


def below_the_layer(layer):
    """The layer's weights in float64 by their path inside it."""
    return {
        weight.path.removeprefix(f"{layer.name}/"): numpy(weight).astype("float64")
        for weight in layer.weights
    }


@pytest.mark.parametrize("convention", resnet.CONVENTIONS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("kernel_size", "strides"), [(1, 1), (1, 2), (3, 1), (7, 2)])
def test_a_standardized_convolution_follows_its_formula(
    convention, size, kernel_size, strides
):
    layer = resnet.StdConv2D(11, kernel_size, strides, convention)
    x = values(2, *size, 5)
    layer.build(x.shape)
    randomize(layer.weights)
    expected = numpy_resnet.convolution(
        x.astype("float64"), numpy(layer.kernel), strides, convention
    )
    np.testing.assert_allclose(numpy(layer(x)), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("convention", resnet.CONVENTIONS)
def test_small_kernels_show_where_epsilon_is_added(convention):
    layer = resnet.StdConv2D(11, 3, convention=convention)
    layer.build((None, None, None, 5))
    randomize(layer.weights, scale=2e-5)
    expected = numpy_resnet.standardized(
        numpy(layer.kernel).astype("float64"), convention
    )
    np.testing.assert_allclose(
        numpy(layer.standardized_kernel()), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_kernels_are_standardized_in_float32(policy):
    """Around 1 a half-precision copy would lose deviations of 1e-4."""
    layer = resnet.StdConv2D(11, 3, dtype=policy)
    x = values(2, 6, 9, 5)
    layer.build(x.shape)
    kernel = 1 + 1e-4 * np.random.default_rng(1).normal(size=layer.kernel.shape)
    layer.kernel.assign(kernel)
    kernel = numpy(layer.kernel).astype("float64")
    expected = numpy_resnet.convolution(x.astype("float64"), kernel, 1, "vit")
    error = numpy(keras.ops.cast(layer(x), "float32")) - expected
    assert np.abs(error).max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("convention", resnet.CONVENTIONS)
def test_a_kernel_of_equal_weights_trains_without_nan(convention):
    layer = resnet.StdConv2D(3, 3, convention=convention)
    inputs = keras.Input((5, 4, 2))
    model = keras.Model(inputs, layer(inputs))
    layer.kernel.assign(np.ones(layer.kernel.shape))
    model.compile("sgd", "mse")
    model.fit(values(2, 5, 4, 2), values(2, 5, 4, 3), verbose=0)
    assert np.isfinite(numpy(layer.kernel)).all()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_group_norm_survives_numbers_whose_squares_overflow(policy):
    norm = resnet.group_norm("norm", "vit", policy)
    x = 9000 * values(2, 3, 5, 96)
    w = {"norm/gamma": np.ones(96), "norm/beta": np.zeros(96)}
    seen = numpy(keras.ops.cast(keras.ops.cast(x, norm.compute_dtype), "float32"))
    expected = numpy_resnet.group_norm(seen.astype("float64"), w, "norm", "vit")
    error = numpy(keras.ops.cast(norm(x), "float32")) - expected
    assert np.abs(error).max() < 0.02


@pytest.mark.parametrize("convention", resnet.CONVENTIONS)
def test_group_norm_has_the_official_epsilon(convention):
    norm = resnet.group_norm("norm", convention)
    x = 2e-3 * values(2, 3, 5, 96)
    w = {"norm/gamma": np.ones(96), "norm/beta": np.zeros(96)}
    expected = numpy_resnet.group_norm(x.astype("float64"), w, "norm", convention)
    np.testing.assert_allclose(numpy(norm(x)), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("unit", "equations"),
    [
        (resnet.ResidualUnit, numpy_resnet.residual_unit),
        (resnet.PreActivationUnit, numpy_resnet.pre_activation_unit),
    ],
)
@pytest.mark.parametrize(("filters", "strides"), [(32, 1), (64, 1), (32, 2)])
def test_a_unit_follows_its_equations(unit, equations, filters, strides):
    layer = unit(filters, strides)
    x = values(2, 7, 10, 128)
    layer.build(x.shape)
    randomize(layer.weights)
    projected = (filters, strides) != (32, 1)
    assert (layer.conv_proj is not None) == projected
    expected = equations(x.astype("float64"), below_the_layer(layer), strides)
    np.testing.assert_allclose(numpy(layer(x)), expected, atol=1e-4)


def stem_model(size, channels, blocks, dtype="float32"):
    inputs = keras.Input((*size, channels))
    policy = keras.DTypePolicy(dtype)
    return keras.Model(inputs, resnet.connect_stem(inputs, blocks, 1, policy))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("blocks", [(), (1, 2)])
def test_the_stem_of_a_hybrid_follows_the_equations(size, blocks):
    model = stem_model(size, 5, blocks)
    randomize(model.weights)
    x = values(2, *size, 5)
    expected = numpy_resnet.stem(model, x, blocks)
    np.testing.assert_allclose(numpy(model(x)), expected, atol=1e-4)
    scale = keras_vit.specs.stem_scale(blocks)
    assert expected.shape[1:3] == tuple(-(-side // scale) for side in size)


@pytest.mark.parametrize(("blocks", "factor"), [((1, 2), 1), ((1,), 3)])
def test_bit_follows_the_equations(blocks, factor):
    model = resnet.ResNet(**{**SMALL, "blocks": blocks, "width_factor": factor})
    randomize(model.weights)
    x = values(2, 33, 26, 5)
    np.testing.assert_allclose(numpy(model(x)), numpy_resnet.bit(model, x), atol=2e-4)
    width = 256 * 2 ** (len(blocks) - 1) * factor
    assert model.get_layer("head").kernel.shape == (width, 7)


def test_initial_weights_match_the_official_code():
    keras.utils.set_random_seed(4)
    first, second = resnet.ResidualUnit(64), resnet.PreActivationUnit(64)
    for unit in (first, second):
        unit.build((None, None, None, 256))
        deviation = numpy(unit.conv2.kernel).std()
        assert deviation == pytest.approx((1 / (9 * 64)) ** 0.5, rel=0.05)
    assert not numpy(first.norm3.gamma).any()
    for norm in (first.norm1, first.norm2, second.norm1, second.norm3):
        np.testing.assert_array_equal(numpy(norm.gamma), 1.0)


def test_a_new_bit_outputs_its_head_bias():
    model = resnet.ResNet(**SMALL, head_bias_init=-6.9)
    scores = numpy(model(values(2, 33, 26, 5)))
    np.testing.assert_array_equal(scores, np.float32(-6.9))


@pytest.mark.parametrize(
    "kwargs",
    long_after(
        2,
        [
            {"pooling": None},
            {"class_names": list("abcdefg"), "classifier_activation": "softmax"},
            {},
            {"classes": None, "dtype": "mixed_bfloat16"},
            {"preprocessing": keras_vit.ImagePreprocessing((33, 26)), "channels": 3},
        ],
    ),
)
def test_a_saved_bit_opens_again(tmp_path, kwargs):
    arguments = {**SMALL, **kwargs}
    model = resnet.ResNet(**arguments)
    randomize(model.trainable_weights)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    x = values(2, 33, 26, arguments["channels"])
    np.testing.assert_array_equal(numpy(loaded(x)), numpy(model(x)))
    assert loaded.get_config() == model.get_config()
    assert loaded.blocks == (1, 2)


def test_bit_in_half_precision_is_near_and_keeps_float32_weights_and_scores():
    whole = resnet.ResNet(**SMALL)
    half = resnet.ResNet(**SMALL, dtype="mixed_bfloat16")
    randomize(whole.weights)
    half.set_weights(whole.get_weights())
    x = values(2, 33, 26, 5)
    expected, scores = numpy(whole(x)), half(x)
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    assert {weight.dtype for weight in half.weights} == {"float32"}
    assert half.get_layer("pooling").compute_dtype == "float32"
    assert np.abs(numpy(scores) - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_fit_trains_every_weight(policy):
    model = resnet.ResNet(**SMALL, dtype=policy)
    randomize(model.trainable_weights)
    before = [numpy(weight).copy() for weight in model.trainable_weights]
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(values(4, 33, 26, 5), np.arange(4), verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for old, weight in zip(before, model.trainable_weights, strict=True):
        assert np.isfinite(numpy(weight)).all()
        assert (numpy(weight) != old).any(), weight.path


@pytest.mark.parametrize(
    ("kwargs", "shape"),
    [
        ({}, (None, 1000)),
        ({"classes": 5, "input_shape": (64, 33, 1)}, (None, 5)),
        ({"include_top": False, "input_shape": (64, 33, 1)}, (None, 2, 2, 2048)),
        ({"include_top": False, "pooling": "avg"}, (None, 2048)),
    ],
)
def test_functions_follow_keras_applications(kwargs, shape):
    with shapes_only():
        model = resnet.BiTR50x1(**kwargs)
    assert model.output_shape == shape


@pytest.mark.slow
def test_the_constructors_build_what_their_names_say():
    for depth, width in [(50, 1), (50, 3), (101, 1), (101, 3), (152, 2), (152, 4)]:
        build = getattr(resnet, f"BiTR{depth}x{width}")
        with shapes_only():
            model = build(include_top=False, pooling="avg", input_shape=(32, 32, 3))
        assert build.__name__ == f"BiTR{depth}x{width}"
        assert 3 * sum(model.blocks) + 2 == depth
        assert model.output_shape == (None, 2048 * width)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"blocks": (3, 0)}, r"`blocks` must be a sequence of positive.*\(3, 0\)"),
        ({"blocks": 50}, "`blocks` must be a sequence of positive.*blocks=50"),
        ({"width_factor": 0}, "`width_factor` must be an integer of at least 1.*=0"),
        ({"width_factor": 0.5}, "`width_factor` must be an integer.*=0.5"),
        ({"pooling": "token"}, "`pooling` must be one of 'avg', None.*'token'"),
        ({"classes": 0}, "`classes` must be an integer of at least 1"),
        ({"channels": 0}, "`channels` must be an integer of at least 1"),
        ({"class_names": ["a"]}, "one name for each class.*1 names, classes=7"),
        (
            {"preprocessing": keras_vit.ImagePreprocessing(32)},
            "`preprocessing` must produce images of `image_size`",
        ),
    ],
)
def test_an_error_names_the_argument_and_what_came(kwargs, message):
    with pytest.raises(ValueError, match=message):
        resnet.ResNet(**{**SMALL, **kwargs})


def test_an_unknown_convention_is_refused():
    with pytest.raises(ValueError, match="`convention` must be one of 'vit', 'bit'"):
        resnet.StdConv2D(4, 3, convention="timm")
