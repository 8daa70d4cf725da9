"""`build_model`: architectures, weights, precision, rematerialisation, mistakes."""

import dataclasses
import inspect
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import scipy.ndimage
import scipy.signal
import tensorflow as tf

import keras_vit
from training.data.splits import load_splits
from training.engine.run_folder import load_model
from training.errors import RecipeError, RunError
from training.evaluate import evaluate
from training.model import build_model
from training.predict import predict
from training.recipe import DataConfig, ModelConfig
from training.studies import convnets

NAMES = ("ant", "bee", "cat")
TINY = ModelConfig(
    variant=None,
    patch_size=4,
    width=12,
    depth=2,
    mlp_dim=16,
    heads=3,
    image_size=(16, 20),
)
CNN = ModelConfig("cnn", None, width=5, depth=3, image_size=8, channels=1)
CONFIGS = {
    "vit": TINY,
    "bit": ModelConfig("bit", "R50x1", image_size=32),
    "resnet": ModelConfig("resnet", "ResNet50", image_size=32),
    "cnn": CNN,
}


def randomise(model, seed=5):
    """Random weights in every place; variances positive."""
    random = np.random.default_rng(seed)
    for weight in model.weights:
        value = random.normal(scale=0.1, size=weight.shape)
        weight.assign(abs(value) + 0.5 if "variance" in weight.path else value)
    return model


def pixels(model, count=2, seed=6):
    shape = (count, *model.input_shape[1:])
    return np.random.default_rng(seed).integers(0, 256, shape).astype("uint8")


@pytest.fixture(scope="module")
def built():
    """A model of each architecture."""
    return {name: randomise(build_model(CONFIGS[name], NAMES)) for name in CONFIGS}


@pytest.mark.slow
def test_the_files_open_where_only_the_library_is_imported(built, tmp_path):
    for name, model in built.items():
        model.save(tmp_path / f"{name}.keras")
        np.save(tmp_path / f"{name}.npy", pixels(model))
    code = (
        "import sys, keras, keras_vit, numpy as np\n"
        f"for name in {list(built)}:\n"
        "    model = keras.models.load_model(f'{name}.keras')\n"
        "    images = np.load(f'{name}.npy')\n"
        "    np.save(f'{name}_logits.npy', model.predict(images, verbose=0))\n"
        "    print(model.class_names[1], model.preprocessing.image_size,\n"
        "          model.channels, 'training' in sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    printed = result.stdout.splitlines()
    assert len(printed) == len(built), result.stderr
    for line, (name, model) in zip(printed, built.items(), strict=True):
        images = pixels(model)
        assert line == f"bee {images.shape[1:3]} {images.shape[-1]} False"
        logits = np.load(tmp_path / f"{name}_logits.npy")
        np.testing.assert_allclose(logits, model.predict(images, verbose=0), rtol=1e-5)
        assert np.abs(logits).max() > 1e-3


def test_a_network_that_is_no_transformer_predicts(built, tmp_path):
    built["cnn"].save(tmp_path / "best.keras")
    model = load_model(tmp_path / "best.keras")
    (image,) = pixels(model, count=1)
    tf.io.write_file(str(tmp_path / "image.png"), tf.io.encode_png(image))
    ((best, *_),) = predict(model, [tmp_path / "image.png"], top=3)
    scores = model.predict(image[np.newaxis], verbose=0)[0]
    assert best[0] == NAMES[scores.argmax()]


def test_a_new_model_has_a_zero_classifier_in_float32():
    for name, config in CONFIGS.items():
        config = dataclasses.replace(config, head_bias_init=-4.0)
        model = build_model(config, NAMES, "mixed_bfloat16")
        logits = model.predict(pixels(model), verbose=0)
        assert (logits.dtype, logits.shape) == ("float32", (2, 3)), name
        assert (logits == -4).all(), name
        assert model.dtype_policy.compute_dtype == "bfloat16"
        computed = {layer.compute_dtype for layer in model._flatten_layers()}
        assert "bfloat16" in computed, name
    assert keras.config.dtype_policy().name == "float32"


def test_evaluation_works_on_a_model_that_is_no_transformer():
    model = randomise(build_model(CNN, tuple("0123456789")))
    test = load_splits(DataConfig("digits"), channels=1).test
    evaluation = evaluate(model, test)
    assert len(evaluation.labels) == 360
    np.testing.assert_allclose(evaluation.probabilities.sum(axis=1), 1, rtol=1e-5)


def test_the_small_network_computes_what_it_says():
    """Convolution, GroupNormalization, ReLU, pooling in SciPy and NumPy, float64."""
    model = randomise(build_model(CNN, NAMES))
    images = pixels(model)
    weight = {w.path: np.array(w, "float64") for w in model.weights}
    expected = []
    for x in (images.astype("float64") - 127.5) / 127.5:
        for stage in range(3):
            if stage:
                h, w, c = x.shape
                x = x.reshape(h // 2, 2, w // 2, 2, c).max(axis=(1, 3))
            kernel = weight[f"conv_{stage}/kernel"]
            x = np.stack(
                [
                    sum(
                        scipy.signal.correlate2d(x[..., i], kernel[..., i, o], "same")
                        for i in range(x.shape[-1])
                    )
                    for o in range(kernel.shape[-1])
                ],
                axis=-1,
            )
            x += weight[f"conv_{stage}/bias"]
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-3)
            x = x * weight[f"norm_{stage}/gamma"] + weight[f"norm_{stage}/beta"]
            x = np.maximum(x, 0)
        features = x.mean(axis=(0, 1))
        expected.append(features @ weight["head/kernel"] + weight["head/bias"])
    logits = model.predict(images, verbose=0)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_a_resnet_sees_what_keras_applications_prepares(tmp_path):
    """Weights as they are published: for blue, green, red, each less its mean."""
    theirs = randomise(
        keras.applications.ResNet50(
            include_top=False, weights=None, input_shape=(32, 32, 3), pooling="avg"
        )
    )
    path = tmp_path / "resnet.weights.h5"
    theirs.save_weights(path)
    config = dataclasses.replace(CONFIGS["resnet"], weights=str(path))
    ours = build_model(config, NAMES)
    kernel = np.random.default_rng(3).normal(size=(2048, 3))
    ours.get_layer("head").kernel.assign(kernel)
    images = pixels(ours)
    prepared = keras.applications.resnet.preprocess_input(images.astype("float32"))
    expected = theirs.predict(prepared, verbose=0) @ kernel
    logits = ours.predict(images, verbose=0)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A pre-trained model for square images and 7 classes, as a file of Google's."""
    model = randomise(
        keras_vit.VisionTransformer(
            image_size=16,
            patch_size=4,
            width=12,
            depth=2,
            mlp_dim=16,
            heads=3,
            classes=7,
            representation_size=12,
        )
    )
    path = tmp_path_factory.mktemp("weights") / "pretrained.npz"
    keras_vit.save_checkpoint(model, path)
    return model, path


def test_weights_are_adapted_as_the_paper_has_it(checkpoint):
    """Section 3.2: a zero classifier in place of the head, positions interpolated."""
    theirs, path = checkpoint
    config = dataclasses.replace(TINY, weights=str(path), image_size=(24, 32))
    ours = build_model(config, NAMES)
    values = {weight.path: np.array(weight) for weight in ours.weights}
    assert not values["head/kernel"].any()
    assert "pre_logits/kernel" not in values
    for weight in theirs.weights:
        if weight.path.startswith("encoder_block_1/"):
            np.testing.assert_array_equal(values[weight.path], weight)
    old = np.array(theirs.get_layer("position_embedding").embedding)[0]
    grid = scipy.ndimage.zoom(old[1:].reshape(4, 4, 12), (6 / 4, 8 / 4, 1), order=1)
    new = np.concatenate([old[:1], grid.reshape(48, 12)])
    np.testing.assert_allclose(
        values["position_embedding/embedding"][0], new, rtol=1e-5, atol=1e-6
    )


# Fine-tuning from a `.keras` file. Every argument of the models is here, with values
# that are not the defaults; others that it needs stand beside it.
VIT = {
    "image_size": (16, 20),
    "patch_size": 4,
    "width": 12,
    "depth": 1,
    "mlp_dim": 16,
    "heads": 3,
    "classes": 3,
    "class_names": NAMES,
}
VIT_OPTIONS = {
    "image_size": [{"image_size": 8}],
    "patch_size": [{"patch_size": 2}],
    "width": [{"width": 24}],
    "depth": [{"depth": 3}],
    "mlp_dim": [{"mlp_dim": 20}],
    "heads": [{"heads": 4}],
    "channels": [{"channels": 1}],
    "classes": [{"classes": None, "class_names": None}],
    "pooling": [
        {"pooling": "avg"},
        {"pooling": "map"},
        {"pooling": None, "class_names": None},
    ],
    "class_token": [{"class_token": False, "pooling": p} for p in ("avg", "map")],
    "dropout": [{"dropout": 0.1}],
    "attention_dropout": [{"attention_dropout": 0.1}],
    "stochastic_depth": [{"stochastic_depth": 0.1}],
    "representation_size": [{"representation_size": 7}],
    "gelu": [{"gelu": "exact"}],
    "position_embedding": [
        {"position_embedding": kind}
        for kind in ("learned_2d", "relative", "sincos2d", "sincos2d_mae", "none")
    ],
    "position_placement": [
        {"position_embedding": kind, "position_placement": placement, "depth": 2}
        for kind in ("learned_1d", "learned_2d", "relative", "sincos2d")
        for placement in ("every_layer", "shared")
    ],
    "prefix_positions": [
        {"position_embedding": kind, "prefix_positions": False}
        for kind in ("learned_1d", "learned_2d")
    ],
    "position_stddev": [{"position_stddev": 0.5}],
    "register_tokens": [{"register_tokens": 2, "pooling": p} for p in ("token", "map")],
    "layer_scale": [{"layer_scale": 0.1}],
    "qk_norm": [{"qk_norm": True}],
    "patch_dropout": [{"patch_dropout": 0.5}],
    "fc_norm": [{"fc_norm": True, "pooling": "avg"}],
    "attention": [{"attention": "axial", "class_token": False, "pooling": "avg"}],
    "norm_epsilon": [{"norm_epsilon": 1e-3}],
    "resnet_blocks": [
        {"resnet_blocks": blocks, "patch_size": 1, "image_size": (32, 48)}
        for blocks in ((), (1, 1))
    ],
    "resnet_width_factor": [
        {
            "resnet_blocks": (1,),
            "resnet_width_factor": 2,
            "patch_size": 2,
            "image_size": 32,
        }
    ],
    "head_bias_init": [{"head_bias_init": -3.0}],
    "classifier_activation": [{"classifier_activation": "softmax"}],
    "preprocessing": [{"preprocessing": None}],
    "include_preprocessing": [{"include_preprocessing": False}],
    "class_names": [{"class_names": None}],
    "dtype": [{"dtype": "mixed_bfloat16"}],
    "name": [{"name": "mine"}],
}
RESNET = {"image_size": 32, "blocks": (1, 1), "classes": 3, "class_names": NAMES}
RESNET_OPTIONS = {
    "image_size": [{"image_size": (32, 64)}],
    "blocks": [{"blocks": (2,)}],
    "width_factor": [{"width_factor": 2}],
    **{
        name: VIT_OPTIONS[name]
        for name in (
            *("channels", "classes", "head_bias_init", "classifier_activation"),
            *("preprocessing", "include_preprocessing"),
            *("class_names", "dtype", "name"),
        )
    },
    "pooling": [{"pooling": None, "class_names": None}],
}
OWN_CLASSES = {
    keras_vit.VisionTransformer: (VIT, VIT_OPTIONS),
    keras_vit.ResNet: (RESNET, RESNET_OPTIONS),
}
OWN = [
    (model_class, base | changes)
    for model_class, (base, options) in OWN_CLASSES.items()
    for cases in options.values()
    for changes in cases
]
own_models = pytest.mark.parametrize(
    ("model_class", "arguments"),
    OWN,
    ids=[
        " ".join(f"{k}={v}" for k, v in a.items() if (VIT | RESNET).get(k) != v)
        for _, a in OWN
    ],
)


@pytest.mark.parametrize("model_class", OWN_CLASSES)
def test_every_option_of_the_models_is_tried(model_class):
    _, options = OWN_CLASSES[model_class]
    assert set(options) == set(inspect.signature(model_class).parameters)
    for name, cases in options.items():
        default = inspect.signature(model_class).parameters[name].default
        always_given = name in ("preprocessing", "class_names")  # see `own_model`
        assert always_given or all(case[name] != default for case in cases), name


IN_A_RECIPE = [
    case
    for name, cases in VIT_OPTIONS.items()
    if name in {field.name for field in dataclasses.fields(ModelConfig)}
    for case in cases
    if case.get("pooling", "token") is not None
]


@pytest.mark.parametrize("case", IN_A_RECIPE, ids=str)
def test_a_recipe_reaches_every_option(case):
    without = ("classes", "class_names")
    arguments = {k: v for k, v in {**VIT, **case}.items() if k not in without}
    model = build_model(ModelConfig(variant=None, **arguments), NAMES)
    for name, value in arguments.items():
        pair = name == "image_size" and isinstance(value, int)
        assert getattr(model, name) == ((value, value) if pair else value), name


def own_model(model_class, arguments, path):
    """A model with random weights in every place, saved."""
    preprocessing = keras_vit.ImagePreprocessing(arguments["image_size"])
    own = model_class(**{"preprocessing": preprocessing, **arguments})
    randomise(own).save(path)
    return own


def own_config(own, path, **changes):
    """What a recipe says of such a model."""
    said = {
        "architecture": "vit"
        if isinstance(own, keras_vit.VisionTransformer)
        else "bit",
        "variant": None,
        "weights": str(path),
        "image_size": own.image_size,
        "channels": own.channels,
    }
    if said["architecture"] == "vit":
        said["representation_size"] = own.representation_size
        said["pooling"] = own.pooling or "token"
    return ModelConfig(**said | changes)


def features_of(model, images):
    """What the classifier reads, or would."""
    if any(layer.name == "head" for layer in model.layers):
        model = keras.Model(model.input, model.get_layer("head").input)
    return scores_of(model, images)


def scores_of(model, images):
    """Without `predict`, whose functions take longer to build than to run."""
    return keras.ops.convert_to_numpy(model(images))


def raw(images, own):
    """The same images, normalised for a model that does not do it."""
    return images if own.reads_raw_pixels else (images - 127.5) / 127.5


@own_models
def test_a_run_can_begin_with_any_model_of_ours(model_class, arguments, tmp_path):
    path = tmp_path / "best.keras"
    own = own_model(model_class, arguments, path)
    policy, vit = own.dtype_policy.name, model_class is keras_vit.VisionTransformer
    images = pixels(own)
    expected = features_of(own, raw(images, own))
    if own.pooling is None:  # which the run pools
        pool = keras.layers.GlobalAveragePooling2D(dtype="float32")
        expected = np.array(expected[:, 0] if vit else pool(expected))

    same = build_model(own_config(own, path), NAMES, policy)
    np.testing.assert_array_equal(features_of(same, images), expected)
    if own.classes is not None:
        assert np.any(own.get_layer("head").kernel)
        for ours, theirs in zip(
            same.get_layer("head").weights, own.get_layer("head").weights, strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)

    changes = {"head_bias_init": -2.0}
    changes |= {"dropout": 0.2, "stochastic_depth": 0.3} if vit else {}
    other = build_model(own_config(own, path, **changes), tuple("vwxyz"), policy)
    np.testing.assert_array_equal(features_of(other, images), expected)
    np.testing.assert_array_equal(scores_of(other, images), np.full((2, 5), -2.0))
    assert other.class_names == list("vwxyz")
    assert other.classifier_activation is None
    taken = ("classes", "class_names", "pooling", "classifier_activation")
    taken += ("preprocessing", "include_preprocessing")
    for name, value in own.get_config().items():
        if name not in taken:
            assert other.get_config()[name] == changes.get(name, value), name

    size = tuple(2 * side for side in own.image_size)
    config = own_config(own, path, image_size=size)
    if arguments.get("position_embedding") == "relative":
        with pytest.raises(RecipeError, match="other than relative positions"):
            build_model(config, NAMES)
        return
    larger = build_model(config, NAMES, policy)
    assert larger.image_size == larger.preprocessing.image_size == size
    if own.pooling is not None:
        images = pixels(larger)
        expected = features_of(keras_vit.with_image_size(own, size), raw(images, own))
        np.testing.assert_array_equal(features_of(larger, images), expected)


def test_patches_and_channels_of_a_runs_file_are_adapted(tmp_path):
    path = tmp_path / "best.keras"
    own = own_model(keras_vit.VisionTransformer, VIT, path)
    config = own_config(own, path, patch_size=8, image_size=(32, 40))
    grown = build_model(config, NAMES)
    expected = keras_vit.with_image_size(own, (32, 40), patch_size=8)
    images = pixels(grown)
    np.testing.assert_array_equal(
        features_of(grown, images), features_of(expected, images)
    )
    grey = build_model(own_config(own, path, channels=1), NAMES)
    images = pixels(grey)
    np.testing.assert_allclose(
        features_of(grey, images), features_of(own, images.repeat(3, -1)), rtol=1e-4
    )


def test_a_classifier_is_kept_for_the_same_classes_only(tmp_path):
    path = tmp_path / "best.keras"
    own = own_model(keras_vit.VisionTransformer, VIT, path)
    config = own_config(own, path)
    assert np.any(build_model(config, NAMES).get_layer("head").kernel)
    for names in (("bee", "ant", "cat"), ("x", "y", "z"), NAMES[:2]):
        assert not np.any(build_model(config, names).get_layer("head").kernel)


def test_what_a_new_head_needs_begins_anew_and_is_said(tmp_path, caplog):
    path = tmp_path / "best.keras"
    own = own_model(keras_vit.VisionTransformer, VIT | {"representation_size": 7}, path)
    config = own_config(own, path, pooling="map", representation_size=None)
    model = build_model(config, NAMES)
    assert not np.any(model.get_layer("head").kernel)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "attention_pooling begins anew",
        "head begins anew",
        "pre_logits is left out",
    ]


def test_other_statistics_than_those_of_a_runs_file_are_said(tmp_path, caplog):
    own = own_model(keras_vit.VisionTransformer, VIT, tmp_path / "best.keras")
    build_model(own_config(own, tmp_path / "best.keras"), NAMES)
    assert "trained on" not in caplog.text
    build_model(own_config(own, tmp_path / "best.keras", pixel_mean=0.4), NAMES)
    assert "trained on pixels with mean=127.5, std=127.5;" in caplog.text
    assert "has mean=102.0, std=127.5" in caplog.text


def test_a_frozen_layer_of_a_runs_file_trains_again(tmp_path):
    own = own_model(keras_vit.VisionTransformer, VIT, tmp_path / "own.keras")
    own.get_layer("encoder_block_0").trainable = False
    own.save(tmp_path / "best.keras")
    model = build_model(own_config(own, tmp_path / "best.keras"), NAMES)
    assert len(model.trainable_weights) == len(model.weights)


@pytest.mark.parametrize(
    "name", ["cnn", pytest.param("resnet", marks=pytest.mark.slow)]
)
def test_a_baseline_can_be_gone_on_from(built, tmp_path, name):
    own, path = built[name], tmp_path / "best.keras"
    own.save(path)
    config = dataclasses.replace(CONFIGS[name], weights=str(path))
    images = pixels(own)
    expected = features_of(own, images)
    same = build_model(config, NAMES)
    logits = scores_of(same, images)
    np.testing.assert_array_equal(logits, scores_of(own, images))
    other = build_model(config, ("x", "y"))
    np.testing.assert_array_equal(features_of(other, images), expected)
    assert not scores_of(other, images).any()
    size = tuple(2 * side for side in own.image_size)
    larger = build_model(dataclasses.replace(config, image_size=size), NAMES)
    for ours, theirs in zip(larger.weights, own.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 24}, ["`width`", "12", "24"]),
        ({"depth": 3}, ["`depth`", "1", "3"]),
        ({"heads": 4}, ["`heads`", "3", "4"]),
        ({"variant": "Ti/16"}, ["`width`", "12", "192"]),
        ({"gelu": "exact"}, ["model.gelu", "tanh", "exact"]),
        ({"layer_scale": 0.1}, ["model.layer_scale", "None", "0.1"]),
        (
            {"position_embedding": "sincos2d"},
            ["model.position_embedding", "learned_1d"],
        ),
        (
            {"class_token": False, "pooling": "avg"},
            ["model.class_token", "True", "False"],
        ),
        ({"image_size": 30}, ["image_size", "multiple of `patch_size`", "30"]),
        ({"architecture": "bit"}, ["model.weights", "ResNet", "VisionTransformer"]),
        ({"weights": __file__ + ".keras"}, ["model.weights", "no such file"]),
    ],
)
def test_what_a_runs_file_is_not_is_one_line(tmp_path, changes, words):
    path = tmp_path / "best.keras"
    own = own_model(keras_vit.VisionTransformer, VIT, path)
    with pytest.raises(RecipeError) as error:
        build_model(own_config(own, path, **changes), NAMES)
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_size": 30}, ["image_size", "multiple of `patch_size`", "30"]),
        ({"gelu": "exact"}, ["model.gelu", "tanh", "exact"]),
        ({"layer_scale": 0.1}, ["model.layer_scale", "None", "0.1"]),
        ({"class_token": False}, ["model.class_token", "True", "False"]),
        ({"width": 15}, ["width"]),
    ],
)
def test_weights_of_another_structure_are_one_line(checkpoint, changes, words):
    config = dataclasses.replace(TINY, image_size=16, weights=str(checkpoint[1]))
    with pytest.raises(RecipeError) as error:
        build_model(dataclasses.replace(config, **changes), NAMES)
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_models_pixels_are_normalised_by_channel(tmp_path):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    config = dataclasses.replace(TINY, pixel_mean=mean, pixel_std=std)
    model = randomise(build_model(config, NAMES))
    model.save(tmp_path / "m.keras")
    images = pixels(model)
    bare = keras_vit.VisionTransformer.from_config(
        {**model.get_config(), "include_preprocessing": False}
    )
    bare.set_weights(model.get_weights())
    expected = bare(((images / 255 - mean) / std).astype("float32"))
    np.testing.assert_allclose(
        load_model(tmp_path / "m.keras")(images), expected, atol=1e-5
    )
    bare.save(tmp_path / "bare.keras")
    with pytest.raises(RunError, match="not a model with preprocessing"):
        load_model(tmp_path / "bare.keras")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (ModelConfig("resnet", "ResNet50", dropout=0.1), ["model.dropout", "resnet"]),
        (ModelConfig("resnet", "ResNet50", pixel_std=1.0), ["model.pixel_std"]),
        (ModelConfig("bit", "R50x1", heads=3), ["model.heads", "bit"]),
        (ModelConfig("resnet", "S/16"), ["model.variant", "ResNet152", "S/16"]),
        (ModelConfig("bit", "R51x1"), ["variant", "R51x1"]),
        (ModelConfig("cnn", None, width=4), ["model.depth", "None"]),
        (dataclasses.replace(CNN, depth=5), ["model.depth", "8x8"]),
        (ModelConfig("resnet", "ResNet50", weights="jft"), ["imagenet", "jft"]),
        (
            ModelConfig("resnet", "ResNet50", weights="imagenet", channels=1),
            ["model.channels", "3", "1"],
        ),
        (dataclasses.replace(TINY, weights="none.keras"), ["none.keras"]),
        (dataclasses.replace(TINY, weights="none.npz"), ["none.npz"]),
        (ModelConfig(variant="B/16", weights="in22k"), ["orig_in21k", "in22k"]),
        (ModelConfig(variant="X/16"), ["X/16"]),
        (ModelConfig(variant="B/16", image_size=225), ["image_size", "225"]),
    ],
)
def test_a_mistake_is_one_line(config, words):
    with pytest.raises(RecipeError) as error:
        build_model(config, NAMES)
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_download_that_fails_is_one_line(monkeypatch):
    def fail(**kwargs):
        raise Exception("URL fetch failure on https://x:\n no network")

    monkeypatch.setitem(convnets.RESNETS, "ResNet50", fail)
    config = dataclasses.replace(CONFIGS["resnet"], weights="imagenet")
    with pytest.raises(RecipeError, match=r"imagenet.*downloaded.*no network") as error:
        build_model(config, NAMES)
    assert "\n" not in str(error.value)


def test_a_keras_model_without_names_is_refused(tmp_path):
    images = keras.Input((8, 8, 1))
    keras.Model(images, keras.layers.Flatten()(images)).save(tmp_path / "other.keras")
    with pytest.raises(RunError, match="preprocessing and class names"):
        load_model(tmp_path / "other.keras")


REMATERIALISED = dataclasses.replace(
    TINY, dropout=0.3, stochastic_depth=0.3, layer_scale=0.5, rematerialize=True
)


def gradient_function(config, dtype="float32", jit_compile=False):
    """Model, and a step: loss and gradients. The seeds of two models are equal."""
    keras.utils.set_random_seed(4)
    model = randomise(build_model(config, NAMES, dtype))
    images, labels = pixels(model, 6), np.eye(3, dtype="float32")[[0, 1, 2, 2, 1, 0]]

    @tf.function(jit_compile=jit_compile)
    def step():
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(
                keras.losses.categorical_crossentropy(labels, logits, True)
            )
        variables = [weight.value for weight in model.trainable_variables]
        return loss, tape.gradient(loss, variables)

    return model, step


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_rematerialised_gradients_are_the_same_with_dropout(jit_compile):
    _, ours = gradient_function(REMATERIALISED, jit_compile=jit_compile)
    plain = dataclasses.replace(REMATERIALISED, rematerialize=False)
    _, theirs = gradient_function(plain, jit_compile=jit_compile)
    losses = []
    for _ in range(3):  # each step has another mask
        (loss, gradients), (expected_loss, expected) = ours(), theirs()
        losses.append(float(loss))
        assert float(loss) == pytest.approx(float(expected_loss), rel=1e-6)
        for gradient, wanted in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-6)
    assert len(set(losses)) == 3


JAX_STEPS = """
import json, sys, jax, keras, numpy as np
from training.model import build_model
from training.recipe import ModelConfig

def steps(rematerialize):
    keras.utils.set_random_seed(4)
    config = ModelConfig(
        variant=None, patch_size=4, width=12, depth=2, mlp_dim=16, heads=3,
        image_size=16, dropout=0.3, rematerialize=rematerialize,
    )
    model = build_model(config, ("a", "b", "c"))
    random = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(random.normal(scale=0.2, size=weight.shape))
    images = random.integers(0, 256, (6, 16, 16, 3)).astype("uint8")
    labels = np.eye(3)[[0, 1, 2, 0, 1, 2]]

    def loss(weights, seeds):
        logits, seeds = model.stateless_call(weights, seeds, images, training=True)
        return keras.losses.categorical_crossentropy(labels, logits, True).mean(), seeds

    weights = [v.value for v in model.trainable_variables]
    seeds = [v.value for v in model.non_trainable_variables]
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    for _ in range(2):
        (_, seeds), gradients = step(weights, seeds)
    return gradients, seeds, str(jax.make_jaxpr(step)(weights, seeds)).count("remat")

gradients, seeds, _ = steps(False)
ours, our_seeds, count = steps(True)
assert count >= 2
assert min(float(abs(g).max()) for g in gradients) > 0
for a, b in zip(gradients + seeds, ours + our_seeds, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
"""


@pytest.mark.slow
def test_rematerialised_gradients_are_the_same_on_jax():
    pytest.importorskip("jax")
    result = subprocess.run(
        [sys.executable, "-c", JAX_STEPS],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


def test_activations_are_computed_twice():
    def count(config, operation):
        _, step = gradient_function(config)
        nodes = step.get_concrete_function().graph.get_operations()
        return [node.type for node in nodes].count(operation)

    plain = dataclasses.replace(REMATERIALISED, rematerialize=False)
    assert count(plain, "Softmax") == 2
    assert count(REMATERIALISED, "Softmax") == 4


def test_a_rematerialised_model_computes_in_half_precision():
    _, step = gradient_function(REMATERIALISED, "mixed_bfloat16")
    loss, gradients = step()
    assert np.isfinite(loss)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_rematerialisation_is_not_in_the_file(tmp_path):
    ours, _ = gradient_function(REMATERIALISED)
    plain = dataclasses.replace(REMATERIALISED, rematerialize=False)
    theirs, _ = gradient_function(plain)
    ours.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for name, value in theirs.get_config().items():
        if name not in ("name", "preprocessing"):  # has a name of its own
            assert again.get_config()[name] == value
    images = pixels(ours)
    np.testing.assert_array_equal(
        again.predict(images, verbose=0), theirs.predict(images, verbose=0)
    )
    assert "call" not in vars(again.get_layer("encoder_block_0"))
