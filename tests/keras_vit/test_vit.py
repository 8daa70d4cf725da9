"""The model as users meet it: constructors, saving, training, initializers, errors."""

import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
from long_cases import long_after
from tiny_model import numpy, small

import keras_vit
from keras_vit.nested_layers import all_layers

pytestmark = pytest.mark.backend


def test_it_is_an_ordinary_functional_model(tiny_vit, capsys):
    model = tiny_vit()
    assert isinstance(model, keras.Model)
    assert model.input_shape == (None, 22, 14, 3)
    assert model.output_shape == (None, 7)
    model.summary()
    assert "encoder_block_1" in capsys.readouterr().out


@pytest.mark.slow
def test_fit_learns_a_rule(images):
    keras.utils.set_random_seed(1)
    model = small(classes=2, depth=1)
    pixels = np.random.default_rng(0).uniform(-1, 1, (64, 22, 14, 3))
    labels = (pixels[:, :11].mean((1, 2, 3)) > pixels[:, 11:].mean((1, 2, 3))) * 1
    pixels[labels == 1, :11] += 0.5
    model.compile(
        keras.optimizers.Adam(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(pixels, labels, epochs=8, batch_size=16, verbose=0)
    assert history.history["accuracy"][-1] > 0.9


# Every option once, several in a model; test_reference.py compares each by itself.
FORMS = [
    {"class_names": list("abcdefg"), "preprocessing": True},
    {
        "pooling": "map",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "stochastic_depth": 0.2,
        "representation_size": 9,
        "classifier_activation": "softmax",
        "channels": 5,
    },
    {
        "register_tokens": 4,
        "prefix_positions": False,
        "layer_scale": 0.1,
        "swiglu": True,
    },
    {
        "pooling": "avg",
        "fc_norm": True,
        "qk_norm": True,
        "norm_epsilon": 1e-3,
        "gelu": "exact",
        "position_embedding": "none",
        "patch_dropout": 0.5,
    },
    {"position_embedding": "relative", "dtype": "mixed_bfloat16", "pooling": None},
    {"position_embedding": "relative", "position_placement": "shared"},
    {
        "position_embedding": "learned_2d",
        "position_placement": "every_layer",
        "width": 30,
        "dtype": "mixed_bfloat16",
    },
    {"position_embedding": "sincos2d_mae", "width": 20},
    {"attention": "axial", "pooling": "avg", "class_token": False, "layer_scale": 0.1},
    {"resnet_blocks": (1, 2), "patch_size": 1, "image_size": (24, 16)},
]


def build(tiny_vit, kwargs):
    if kwargs.get("preprocessing"):
        preprocessing = keras_vit.ImagePreprocessing((22, 14), std=64.0)
        kwargs = {**kwargs, "preprocessing": preprocessing}
    return tiny_vit(**kwargs)


def pixels_for(model):
    random = np.random.default_rng(3)
    shape = (2, *model.image_size, model.channels)
    low, high = (0, 255) if model.reads_raw_pixels else (-1, 1)
    return random.uniform(low, high, shape).astype("float32")


@pytest.mark.slow
@pytest.mark.parametrize("forms", [FORMS[:1], FORMS[1:]])
def test_a_saved_model_opens_in_a_process_that_only_imports_keras_vit(
    tiny_vit, tmp_path, forms
):
    expected = []
    for number, kwargs in enumerate(forms):
        model = build(tiny_vit, kwargs)
        model.save(tmp_path / f"{number}.keras")
        np.save(tmp_path / f"{number}-images.npy", pixels_for(model))
        expected.append(numpy(keras.ops.cast(model(pixels_for(model)), "float32")))
    code = """
        import sys
        for name in ("IPython", "jax", "matplotlib", "sklearn"):
            sys.modules[name] = None  # Keras would import them: half of the time
        import keras, numpy as np, keras_vit
        for number in range(int(sys.argv[2])):
            path = f"{sys.argv[1]}/{number}"
            model = keras.models.load_model(path + ".keras", safe_mode=True)
            output = model(np.load(path + "-images.npy"))
            output = keras.ops.convert_to_numpy(keras.ops.cast(output, "float32"))
            np.save(path + "-output.npy", output)
            print(model.class_names)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path), str(len(forms))],
        capture_output=True,
        text=True,
        check=True,
    )
    names = result.stdout.splitlines()[-len(forms) :]
    for number, kwargs in enumerate(forms):
        output = np.load(tmp_path / f"{number}-output.npy")
        np.testing.assert_allclose(
            output, expected[number], rtol=0, atol=1e-6, err_msg=str(kwargs)
        )
        assert names[number] == str(kwargs.get("class_names"))


FREEZABLE = {
    "whole block": ({}, "encoder_block_0", 16),
    "norm": ({"qk_norm": True}, "encoder_block_0/attention/query_norm", 2),
    "attention": ({}, "encoder_block_1/attention", 8),
    "dense layer": ({}, "encoder_block_1/mlp/Dense_0", 2),
    "layer scale": ({"layer_scale": 0.1}, "encoder_block_0/layer_scale1", 1),
    "axial": (
        {"attention": "axial", "class_token": False, "pooling": "avg"},
        "encoder_block_0/rows/attention/key",
        2,
    ),
    "pooling": ({"pooling": "map"}, "attention_pooling/mlp", 4),
    "hybrid": (
        {"resnet_blocks": (1,), "patch_size": 1, "image_size": (24, 16)},
        "stage1_unit1/conv2",
        1,
    ),
}


@pytest.mark.parametrize(
    ("kwargs", "path", "count"), long_after(2, FREEZABLE.values()), ids=FREEZABLE
)
def test_frozen_layers_stay_frozen_in_the_file(kwargs, path, count, tmp_path):
    model = small(**{"depth": 1 + path.startswith("encoder_block_1"), **kwargs})
    layers = {layer.path: layer for layer in all_layers(model)}
    layers[path].trainable = False
    model.save(tmp_path / "frozen.keras")
    loaded = keras.models.load_model(tmp_path / "frozen.keras")
    names = [weight.path for weight in model.trainable_weights]
    assert [weight.path for weight in loaded.trainable_weights] == names
    frozen = {weight.path for weight in model.weights} - set(names)
    assert len(frozen) == count
    assert all(weight.startswith(f"{path}/") for weight in frozen)


def attention_alone(model):
    model.get_layer("encoder_block_0").trainable = False
    attention = model.get_layer("encoder_block_0").attention
    attention.trainable = True
    attention.key.trainable = False


def head_alone(model):
    model.trainable = False
    model.get_layer("head").trainable = True


def nothing(model):
    model.trainable = False


def head_in_all(model):
    model.trainable = False
    model.trainable = True
    model.get_layer("head").trainable = False


@pytest.mark.parametrize("freeze", [attention_alone, head_alone, nothing, head_in_all])
def test_what_is_trainable_in_a_frozen_layer_stays_so(freeze):
    model = small()
    freeze(model)
    copy = type(model).from_config(model.get_config())
    names = [weight.path for weight in model.trainable_weights]
    assert [weight.path for weight in copy.trainable_weights] == names
    copy.trainable = model.trainable = True
    copied = [layer.trainable for layer in all_layers(copy)]
    assert copied == [layer.trainable for layer in all_layers(model)]


def test_files_without_trainable_layers_open():
    model = small()
    attention_alone(model)
    config = model.get_config()
    del config["trainable_layers"], config["trainable"]
    assert not type(model).from_config(config).get_layer("encoder_block_0").trainable


def test_another_classifier_forgets_that_the_old_one_was_frozen(tmp_path):
    model = small()
    model.get_layer("head").trainable = False
    model.save(tmp_path / "frozen.keras")
    path = tmp_path / "frozen.keras"
    features = keras_vit.VisionTransformer.from_preset(path, classes=None)
    assert len(features.trainable_weights) == len(features.weights)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_a_quantized_model_is_not_saved(tmp_path):
    model, path = small(depth=1), tmp_path / "model.keras"
    path.write_bytes(b"an older model")
    model.quantize("int8")
    with pytest.raises(ValueError, match=r"before `quantize`.*Received: .*int8"):
        model.save(path)
    assert path.read_bytes() == b"an older model"
    with pytest.raises(ValueError, match="before it is saved or rebuilt"):
        keras.saving.save_model(model, tmp_path / "other.keras")


def test_dropout_is_applied_where_appendix_b1_says():
    model = small(dropout=0.25)
    block = model.get_layer("encoder_block_0")
    assert model.get_layer("embedding_dropout").rate == 0.25
    assert block.dropout_layer.rate == block.mlp.dropout_layer.rate == 0.25
    assert block.attention.dropout_layer.rate == 0.0


def test_dropout_is_off_at_inference_and_on_in_training(tiny_vit, images):
    model, plain = tiny_vit(depth=1, dropout=0.5), tiny_vit(depth=1)
    np.testing.assert_array_equal(numpy(model(images())), numpy(plain(images())))
    difference = numpy(model(images(), training=True)) - numpy(plain(images()))
    assert np.abs(difference).max() > 0.1


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        pytest.param(
            {"register_tokens": 4, "qk_norm": True, "layer_scale": 0.5},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"swiglu": True, "position_placement": "every_layer"},
            marks=pytest.mark.slow,
        ),
        {"depth": 1, "position_stddev": 0.5},
    ],
)
def test_the_class_token_alone_has_the_scores_and_gradients_of_all_tokens(
    tiny_vit, images, kwargs
):
    model = tiny_vit(**kwargs)
    last, tokens = (
        model.get_layer(name).output
        for name in (f"encoder_block_{model.depth - 1}", "encoder_norm")
    )
    assert last.shape == tokens.shape == (None, 78 + model.register_tokens, 15)
    whole = keras.Model(model.input, model.get_layer("head")(tokens[:, 0]))
    np.testing.assert_allclose(
        numpy(model(images())), numpy(whole(images())), rtol=0, atol=1e-5
    )
    before, gradients = model.get_weights(), []
    for each in (model, whole):
        model.set_weights(before)
        loss = keras.losses.SparseCategoricalCrossentropy(True)
        each.compile("sgd", loss, run_eagerly=True)
        each.optimizer.learning_rate = 1.0
        each.train_on_batch(images(), np.array([1, 5]))
        after = model.get_weights()
        gradients.append([old - new for old, new in zip(before, after, strict=True)])
    for ours, expected in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)
    moved = sum(gradient.any() for gradient in gradients[1])
    assert moved >= len(before) - model.depth  # a softmax ignores the keys' bias


def test_stochastic_depth_rises_linearly_to_the_last_block():
    model = small(stochastic_depth=0.3, depth=4)
    rates = [model.get_layer(f"encoder_block_{i}").stochastic_depth for i in range(4)]
    np.testing.assert_allclose(rates, [0.0, 0.1, 0.2, 0.3])


def test_initial_weights_are_those_of_the_official_code():
    keras.utils.set_random_seed(4)
    model = small(width=160, mlp_dim=300, representation_size=90, head_bias_init=-10.0)
    block = model.get_layer("encoder_block_0")
    expected = {  # layer: (weights, deviation)
        "patches": (model.get_layer("embedding").kernel, (1 / 12) ** 0.5),
        "position": (model.get_layer("position_embedding").embedding, 0.02),
        "query": (block.attention.query.kernel, (2 / 320) ** 0.5),
        "mlp": (block.mlp.dense1.kernel, (2 / 460) ** 0.5),
        "mlp bias": (block.mlp.dense1.bias, 1e-6),
        "pre_logits": (model.get_layer("pre_logits").kernel, (1 / 160) ** 0.5),
    }
    for name, (weight, deviation) in expected.items():
        assert numpy(weight).std() == pytest.approx(deviation, rel=0.1), name
    for weight in (model.get_layer("class_token").token, block.attention.query.bias):
        assert not numpy(weight).any()
    assert not numpy(model.get_layer("head").kernel).any()
    np.testing.assert_array_equal(numpy(model.get_layer("head").bias), -10.0)


@pytest.mark.parametrize("pooling", [None, "avg", "token", "map"])
def test_functions_pool_as_asked_and_with_the_top_by_default(pooling):
    small = {"pooling": pooling, "input_shape": (32, 32, 3), "depth": 1}
    model = keras_vit.ViTTi16(include_top=False, **small)
    assert model.output_shape == ((None, 5, 192) if pooling is None else (None, 192))
    assert model.pooling == pooling
    assert keras_vit.ViTTi16(classes=3, **small).pooling == (pooling or "token")


def test_every_name_of_the_package_exists():
    for name in keras_vit.__all__:
        assert getattr(keras_vit, name) is not None
    assert keras_vit.ViTH14.__name__ == "ViTH14"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"preprocessing": keras_vit.ImagePreprocessing(32)},
            "`preprocessing` must produce images of",
        ),
        ({"image_size": (22, 15)}, "`image_size`.*multiple.*Received.*22, 15"),
        ({"image_size": "big"}, "`image_size` must be.*Received: image_size=big"),
        ({"pooling": "cls"}, "`pooling` must be one of 'token', 'avg', 'map', 'query'"),
        ({"class_token": False}, "`pooling='token'` needs the class token"),
        ({"heads": 4}, "`heads` must divide the width.*heads=4, width=15"),
        ({"gelu": "fast"}, "`gelu` must be one of 'tanh', 'exact'"),
        ({"class_names": ["a"]}, "one name for each class.*1 names, classes=7"),
        ({"channels": 0}, "`channels`.*at least 1.*channels=0"),
        ({"classes": "3"}, "`classes` must be an integer.*classes='3'"),
        ({"patch_size": 0}, "`patch_size`.*at least 1.*patch_size=0"),
        ({"dropout": 1.5}, "`dropout`.*1.5"),
        ({"stochastic_depth": 1.0}, "`stochastic_depth`.*1.0"),
    ],
)
def test_an_error_names_the_argument_and_what_came(kwargs, message):
    with pytest.raises(ValueError, match=message):
        small(**kwargs)


def test_softmax_of_float16_computes_in_float32(tiny_vit, images, monkeypatch):
    model, softmax, dtypes = tiny_vit(dtype="mixed_float16"), keras.ops.softmax, []

    def spy(x, axis=-1):
        dtypes.append(keras.backend.standardize_dtype(x.dtype))
        return softmax(x, axis)

    monkeypatch.setattr(keras.ops, "softmax", spy)
    model(images())
    assert dtypes == ["float32"] * model.depth


def test_layer_norm_survives_numbers_whose_squares_overflow_in_float16():
    norm = keras_vit.layers.LayerNorm(dtype="mixed_float16")
    tokens = (np.arange(15) - 7)[None, None] * 1000.0
    expected = (np.arange(15) - 7) / np.std(np.arange(15))
    np.testing.assert_allclose(numpy(norm(tokens))[0, 0], expected, atol=2e-3)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow only")
def test_keras_own_export_gives_the_same_scores(tiny_vit, images, tmp_path):
    import tensorflow as tf

    model = tiny_vit()
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    served = exported.serve(images())
    np.testing.assert_allclose(served, model(images()), rtol=0, atol=1e-5)


def test_a_clone_and_a_new_top_work_as_with_any_functional_model(
    tiny_vit, images, tmp_path
):
    model = tiny_vit(classes=None)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(numpy(clone(images())), numpy(model(images())))
    scores = keras.layers.Dense(3)(model.output)
    extended = keras.Model(model.input, scores)
    extended.save(tmp_path / "extended.keras")
    loaded = keras.models.load_model(tmp_path / "extended.keras")
    np.testing.assert_array_equal(numpy(loaded(images())), numpy(extended(images())))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_fit_runs_in_half_precision_with_weights_in_float32(policy):
    model = small(dtype=policy, dropout=0.1, stochastic_depth=0.1)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(np.ones((4, 22, 14, 3)), np.arange(4), epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert {w.dtype for w in model.trainable_weights} == {"float32"}


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"input_shape": (64, 64)}, r"`input_shape` must be \(height, width, channels"),
        ({"input_shape": 224}, r"`input_shape` must be \(height"),
        (
            {"input_shape": (32, 32, 3), "image_size": 48},
            "`input_shape` must not be given with.*image",
        ),
        ({"weights": "imagenet"}, "`weights` must be one of .* path.*'imagenet'"),
    ],
)
def test_a_function_names_the_argument_and_what_came(kwargs, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.ViTTi16(**kwargs)


def test_numpys_integers_count_too(tmp_path):
    zero, four = np.array([0, 4])
    model = small(classes=four + 1, image_size=22, register_tokens=zero)
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").classes == 5
