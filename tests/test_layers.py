"""The contract of every public layer, and what single layers promise."""

import keras
import numpy as np
import pytest

from keras_vit import layers

pytestmark = pytest.mark.backend

ARGUMENTS = {
    "AttentionPooling": {"mlp_dim": 7, "heads": 3, "gelu": "exact"},
    "EncoderBlock": {
        "mlp_dim": 7,
        "heads": 3,
        "dropout": 0.1,
        "attention_dropout": 0.2,
        "stochastic_depth": 0.3,
        "gelu": "exact",
    },
    "MLP": {"hidden_dim": 7, "dropout": 0.1, "gelu": "exact"},
    "MultiHeadSelfAttention": {"heads": 3, "attention_dropout": 0.1},
    "PositionEmbedding": {"stddev": 0.5},
    "StochasticDepth": {"rate": 0.3, "seed": 5},
}


@pytest.fixture
def tokens():
    return np.random.default_rng(2).normal(size=(2, 5, 15)).astype("float32")


@pytest.fixture(params=layers.__all__)
def name(request):
    return request.param


@pytest.fixture
def layer(name):
    keras.utils.set_random_seed(1)
    return getattr(layers, name)(**ARGUMENTS.get(name, {}))


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def test_a_layer_comes_back_from_its_config(layer, tokens):
    expected = numpy(layer(tokens))
    copy = type(layer).from_config(layer.get_config())
    copy.build(tokens.shape)
    copy.set_weights(layer.get_weights())
    np.testing.assert_array_equal(numpy(copy(tokens)), expected)


def test_a_layer_comes_back_with_its_dtype_policy(name):
    policy = keras.DTypePolicy("mixed_bfloat16")
    layer = getattr(layers, name)(**ARGUMENTS.get(name, {}), dtype=policy)
    copy = type(layer).from_config(layer.get_config())
    assert copy.dtype_policy == policy


def test_the_config_holds_the_constructors_arguments_as_attributes(name, layer):
    config = layer.get_config()
    for argument, value in ARGUMENTS.get(name, {}).items():
        assert config[argument] == getattr(layer, argument) == value
    base = set(keras.layers.Layer().get_config())
    assert set(config) - base == set(ARGUMENTS.get(name, {}))


def test_a_layer_survives_a_saved_model(layer, tokens, tmp_path):
    inputs = keras.Input(tokens.shape[1:])
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(numpy(loaded(tokens)), numpy(model(tokens)))


def test_all_weights_exist_after_build(layer, tokens):
    layer.build(tokens.shape)
    built = [w.path for w in layer.weights]
    layer(tokens)
    assert [w.path for w in layer.weights] == built


def test_the_symbolic_shape_is_the_real_shape(layer, tokens):
    symbolic = layer(keras.KerasTensor((None, *tokens.shape[1:])))
    assert symbolic.shape[1:] == layer(tokens).shape[1:]
    assert layer.compute_output_shape(tokens.shape) == tuple(layer(tokens).shape)


def test_it_computes_in_the_dtype_of_its_policy(name, tokens):
    layer = getattr(layers, name)(**ARGUMENTS.get(name, {}), dtype="mixed_bfloat16")
    output = layer(tokens)
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    assert {w.dtype for w in layer.trainable_weights} <= {"float32"}


def test_dropped_branches_are_whole_examples_and_the_mean_stays():
    layer = layers.StochasticDepth(0.25, seed=3)
    dropped = numpy(layer(np.ones((4000, 3, 2), "float32"), training=True))
    kept = dropped[:, 0, 0] > 0
    np.testing.assert_allclose(dropped[kept], 1 / 0.75, rtol=1e-6)
    assert not dropped[~kept].any()
    assert kept.mean() == pytest.approx(0.75, abs=0.03)


def test_nothing_is_dropped_at_inference(tokens):
    layer = layers.StochasticDepth(0.9)
    np.testing.assert_array_equal(numpy(layer(tokens)), tokens)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.StochasticDepth(1.0), r"`rate` must be in \[0, 1\).*rate=1.0"),
        (lambda: layers.MLP(7, gelu="relu"), "`gelu` must be one of 'tanh', 'exact'"),
        (
            lambda: layers.MultiHeadSelfAttention(4).build((None, 5, 15)),
            "`heads` must divide.*heads=4, width=15",
        ),
    ],
)
def test_an_error_names_the_argument_and_what_came(make, message):
    with pytest.raises(ValueError, match=message):
        make()
