"""The contract of every public layer, for test files to import.

Such a file has the constants `LAYERS` (classes by name) and `ARGUMENTS` (those of their
constructors, by the same names), and the fixture `inputs` (an array the layers take).
"""

import inspect

import keras
import numpy as np
import pytest
from keras_settings import FLOATX, other_settings
from tiny_model import numpy


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", metafunc.module.LAYERS)


@pytest.fixture
def arguments(request, name):
    return request.module.ARGUMENTS.get(name, {})


@pytest.fixture
def make(request, name, arguments):
    return lambda **kwargs: request.module.LAYERS[name](**arguments, **kwargs)


@pytest.fixture
def layer(make):
    keras.utils.set_random_seed(1)
    return make()


def test_a_layer_round_trips_through_its_config(layer, inputs):
    expected = numpy(layer(inputs))
    copy = type(layer).from_config(layer.get_config())
    copy.build(inputs.shape)
    copy.set_weights(layer.get_weights())
    np.testing.assert_array_equal(numpy(copy(inputs)), expected)


def test_a_layer_comes_back_with_its_dtype_policy(make):
    policy = keras.DTypePolicy("mixed_bfloat16")
    layer = make(dtype=policy)
    copy = type(layer).from_config(layer.get_config())
    assert copy.dtype_policy == policy


def test_the_config_holds_the_constructors_arguments_as_attributes(layer, arguments):
    config = layer.get_config()
    for argument, value in arguments.items():
        assert config[argument] == getattr(layer, argument) == value
    base = set(keras.layers.Layer().get_config())
    assert set(config) - base == set(arguments)


def test_a_layer_survives_a_saved_model(layer, inputs, tmp_path):
    symbolic = keras.Input(inputs.shape[1:])
    model = keras.Model(symbolic, layer(symbolic))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(numpy(loaded(inputs)), numpy(model(inputs)))


def test_all_weights_exist_after_build(layer, inputs):
    layer.build(inputs.shape)
    built = [weight.path for weight in layer.weights]
    layer(inputs)
    assert [weight.path for weight in layer.weights] == built


def test_the_symbolic_shape_is_the_real_shape(layer, inputs):
    symbolic = layer(keras.KerasTensor((None, *inputs.shape[1:])))
    assert symbolic.shape[1:] == layer(inputs).shape[1:]
    assert layer.compute_output_shape(inputs.shape) == tuple(layer(inputs).shape)


def test_it_computes_in_the_dtype_of_its_policy(make, inputs):
    layer = make(dtype="mixed_bfloat16")
    output = layer(inputs)
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    assert {weight.dtype for weight in layer.trainable_weights} <= {"float32"}


def test_a_layer_with_a_dtype_depends_on_no_global_setting(make, inputs):
    def outputs():
        keras.utils.set_random_seed(1)
        layer = make(dtype="float32")
        call = inspect.signature(layer.call).parameters
        training = {"training": True} if "training" in call else {}
        return [numpy(layer(inputs)), numpy(layer(inputs, **training))]

    expected = outputs()
    for floatx in FLOATX:
        with other_settings(floatx):
            found = outputs()
        for output, reference in zip(found, expected, strict=True):
            assert output.dtype == reference.dtype, floatx
            np.testing.assert_array_equal(output, reference, err_msg=floatx)
