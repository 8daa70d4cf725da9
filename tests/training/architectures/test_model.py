"""`build_model`: architectures, weights, precision, mistakes."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import scipy.ndimage
import scipy.signal
import tensorflow as tf
from keras_settings import other_settings

import keras_vit
from training.architectures import convnets, model_reading
from training.architectures.building import build_model
from training.architectures.model_reading import read_classifier
from training.errors import RecipeError, RunError
from training.evaluation.predict import predict
from training.recipe import ModelConfig

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
CNN = ModelConfig(
    architecture="cnn", variant=None, width=5, depth=3, image_size=8, channels=1
)
CONFIGS = {
    "vit": TINY,
    "bit": ModelConfig(architecture="bit", variant="R26x1", image_size=32),
    "resnet": ModelConfig(architecture="resnet", variant="ResNet50", image_size=32),
    "cnn": CNN,
}


def randomize(model, seed=5):
    """Random weights in every place; variances positive."""
    random = np.random.default_rng(seed)
    for weight in model.weights:
        value = random.normal(scale=0.1, size=weight.shape)
        weight.assign(abs(value) + 0.5 if "variance" in weight.path else value)
    return model


def pixels(model, count=2, seed=6):
    shape = (count, *model.input_shape[1:])
    return np.random.default_rng(seed).integers(0, 256, shape).astype("uint8")


@functools.cache
def built(name):
    """A model of an architecture."""
    return randomize(build_model(CONFIGS[name], NAMES))


def test_a_convolutional_network_predicts(tmp_path):
    built("cnn").save(tmp_path / "best.keras")
    model = read_classifier(tmp_path / "best.keras")
    (image,) = pixels(model, count=1)
    tf.io.write_file(str(tmp_path / "image.png"), tf.io.encode_png(image))
    [prediction] = predict(model, [tmp_path / "image.png"], top=3)
    (scores,) = scores_of(model, image[np.newaxis])
    assert prediction.classes[0][0] == NAMES[scores.argmax()]


@pytest.fixture(scope="module")
def new_models():
    """A new model of each architecture, in half precision."""
    return {
        name: build_model(
            dataclasses.replace(config, head_bias_init=-4.0), NAMES, "mixed_bfloat16"
        )
        for name, config in CONFIGS.items()
    }


def test_models_have_layers_of_keras_and_the_library_only(new_models):
    """So that their files open where this package is missing."""
    for name, model in new_models.items():
        packages = {type(o).__module__.split(".")[0] for o in model._flatten_layers()}
        assert packages <= {"keras", "keras_vit"}, name


def test_a_new_model_has_a_zero_classifier_in_float32(new_models):
    for name, model in new_models.items():
        logits = scores_of(model, pixels(model))
        assert (logits.dtype, logits.shape) == ("float32", (2, 3)), name
        assert (logits == -4).all(), name
        assert model.dtype_policy.compute_dtype == "bfloat16"
        computed = {layer.compute_dtype for layer in model._flatten_layers()}
        assert "bfloat16" in computed, name
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(
            architecture="bit",
            variant=None,
            resnet_blocks=(1, 2),
            image_size=8,
            channels=1,
        ),
        dataclasses.replace(TINY, width=48),
    ],
)
def test_a_new_classifier_is_random_where_the_recipe_says_so(config):
    config = dataclasses.replace(config, head_stddev=0.5, head_bias_init=-2.0)
    keras.utils.set_random_seed(3)
    head = build_model(config, tuple("abcdefghij")).get_layer("head")
    kernel, bias = (keras.ops.convert_to_numpy(w) for w in head.weights)
    # Mean and deviation of 480 or 5,120 numbers, to 4 standard errors.
    error = 0.5 / np.sqrt(kernel.size)
    assert abs(kernel.mean()) < 4 * error
    assert abs(kernel.std() - 0.5) < 4 * error / np.sqrt(2)
    assert (bias == -2).all()


def test_the_cnn_matches_numpy():
    """Convolution, GroupNormalization, ReLU, pooling in SciPy and NumPy, float64.

    No default of Keras is what it was: recipes do not depend on a keras.json.
    """
    with other_settings("float16"):
        model = randomize(build_model(CNN, NAMES))
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
    logits = scores_of(model, images)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_resnet_matches_keras_applications_preprocessing(tmp_path):
    """Weights as they are published: for blue, green, red, each less its mean."""
    theirs = randomize(
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
    expected = scores_of(theirs, prepared) @ kernel
    logits = scores_of(ours, images)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A pre-trained model for square images and 7 classes, as a file of Google's."""
    model = randomize(
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


# Fine-tuning from a `.keras` file: options are combined into as few models as their
# conditions allow; each argument has a value that is not its default at least once, and
# each choice of pooling and positions. test_reference.py computes every value itself.
# fmt: off
# ruff: noqa: C408  as keyword arguments, a case takes two lines instead of nine
VIT = dict(
    image_size=(16, 20), patch_size=4, width=12, depth=1, mlp_dim=16, heads=3,
    classes=3, class_names=NAMES,
)
VIT_CASES = {
    "token": dict(
        prefix_positions=False, register_tokens=2, dropout=0.1, attention_dropout=0.1,
        stochastic_depth=0.1, position_stddev=0.5, representation_size=7,
        dtype="mixed_bfloat16", name="mine",
    ),
    "avg": dict(
        image_size=8, width=24, depth=3, mlp_dim=20, heads=4, pooling="avg",
        fc_norm=True, gelu="exact", position_embedding="learned_2d",
        position_placement="every_layer", classifier_activation="softmax",
    ),
    "map": dict(
        channels=1, depth=2, pooling="map", class_token=False,
        position_embedding="sincos2d", position_placement="shared", layer_scale=0.1,
        qk_norm=True, include_preprocessing=False,
    ),
    "without pooling": dict(
        patch_size=2, pooling=None, class_names=None, position_embedding="none",
        norm_epsilon=0.001,
    ),
    "relative": dict(position_embedding="relative", preprocessing=None),
    "axial": dict(
        attention="axial", class_token=False, pooling="avg",
        position_embedding="sincos2d_mae", class_names=None,
    ),
    "without classes": dict(
        classes=None, class_names=None, position_embedding="learned_2d",
        prefix_positions=False, patch_dropout=0.5,
    ),
    "hybrid": dict(
        image_size=32, patch_size=2, resnet_blocks=(1,), resnet_width_factor=2,
        head_bias_init=-3.0,
    ),
    "stem": dict(image_size=(32, 48), patch_size=1, resnet_blocks=()),
}
RESNET = dict(image_size=32, blocks=(1, 1), classes=3, class_names=NAMES)
RESNET_CASES = {
    "without pooling": dict(
        image_size=(32, 64), blocks=(2,), pooling=None, class_names=None,
        dtype="mixed_bfloat16", name="mine",
    ),
    "wide": dict(
        width_factor=2, channels=1, head_bias_init=-3.0,
        classifier_activation="softmax", include_preprocessing=False,
    ),
    "without classes": dict(classes=None, class_names=None, preprocessing=None),
}
# fmt: on
OWN_CLASSES = {
    keras_vit.VisionTransformer: (VIT, VIT_CASES),
    keras_vit.ResNet: (RESNET, RESNET_CASES),
}
OWN = {
    f"{model_class.__name__} {name}": (model_class, base | changes)
    for model_class, (base, cases) in OWN_CLASSES.items()
    for name, changes in cases.items()
}


def in_a_recipe(case):
    """The arguments of a model that a recipe has, too, without those of its data."""
    names = {field.name for field in dataclasses.fields(ModelConfig)}
    return {name: value for name, value in (VIT | case).items() if name in names}


@pytest.mark.parametrize("case", [c for c in VIT_CASES if c != "without pooling"])
def test_a_recipe_reaches_every_option(case):
    arguments = in_a_recipe(VIT_CASES[case])
    model = build_model(ModelConfig(variant=None, **arguments), NAMES)
    for name, value in arguments.items():
        pair = name == "image_size" and isinstance(value, int)
        assert getattr(model, name) == ((value, value) if pair else value), name


def own_model(model_class, arguments, path):
    """A model with random weights in every place, saved."""
    preprocessing = keras_vit.ImagePreprocessing(arguments["image_size"])
    own = model_class(**{"preprocessing": preprocessing, **arguments})
    randomize(own).save(path)
    return own


def own_config(own, path, **changes):
    """What a recipe says of such a model."""
    said = {
        "architecture": "vit"
        if isinstance(own, keras_vit.VisionTransformer)
        else "bit",
        "variant": "S/16",  # of the recipe; the file has its own size
        "weights": str(path),
        "image_size": own.image_size,
        "channels": own.channels,
    }
    if said["architecture"] == "vit":
        said["representation_size"] = own.representation_size
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
    """The same images, normalized for a model that does not do it."""
    return images if own.reads_raw_pixels else (images - 127.5) / 127.5


QUICK = ("avg", "without pooling", "hybrid")


@pytest.mark.parametrize(
    ("model_class", "arguments"),
    [
        pytest.param(
            *case, id=name, marks=() if name.endswith(QUICK) else pytest.mark.slow
        )
        for name, case in OWN.items()
    ],
)
def test_a_run_can_fine_tune_any_of_our_models(model_class, arguments, tmp_path):
    path = tmp_path / "best.keras"
    own = own_model(model_class, arguments, path)
    policy, vit = own.dtype_policy.name, model_class is keras_vit.VisionTransformer
    images = pixels(own)
    expected = features_of(own, raw(images, own))
    if own.pooling is None:  # which the run pools
        pool = keras.layers.GlobalAveragePooling2D(dtype="float32")
        expected = np.array(expected[:, 0] if vit else pool(expected))

    def assert_kept(model):
        """The class token alone is computed with other roundings than all tokens."""
        atol = 1e-6 if vit and own.pooling is None else 0
        features = features_of(model, images)
        np.testing.assert_allclose(features, expected, rtol=0, atol=atol)

    same = build_model(own_config(own, path), NAMES, policy)
    assert_kept(same)
    if own.classes is not None:
        assert np.any(own.get_layer("head").kernel)
        for ours, theirs in zip(
            same.get_layer("head").weights, own.get_layer("head").weights, strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)

    changes = {"head_bias_init": -2.0}
    changes |= {"dropout": 0.2, "stochastic_depth": 0.3} if vit else {}
    other = build_model(own_config(own, path, **changes), tuple("vwxyz"), policy)
    assert_kept(other)
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
        with pytest.raises(RecipeError, match="must not have relative position"):
            build_model(config, NAMES)
        return
    larger = build_model(config, NAMES, policy)
    assert larger.image_size == larger.preprocessing.image_size == size
    if own.pooling is not None:
        images = pixels(larger)
        expected = features_of(keras_vit.with_image_size(own, size), raw(images, own))
        np.testing.assert_array_equal(features_of(larger, images), expected)


@pytest.fixture(scope="module")
def runs_file(tmp_path_factory):
    """A transformer and the file with it."""
    path = tmp_path_factory.mktemp("run") / "best.keras"
    return own_model(keras_vit.VisionTransformer, VIT, path), path


@pytest.mark.parametrize("size", [None, "same"])
def test_a_runs_file_keeps_its_image_size(runs_file, size, capsys):
    own, path = runs_file
    size = size and own.image_size
    model = build_model(own_config(own, path, image_size=size), NAMES)
    assert model.image_size == model.preprocessing.image_size == own.image_size
    assert capsys.readouterr().err == ""


def test_another_image_size_than_that_of_a_runs_file_is_a_warning(runs_file, capsys):
    own, path = runs_file
    height, width = own.image_size
    build_model(own_config(own, path, image_size=(4 * height, 2 * width)), NAMES)
    [line] = capsys.readouterr().err.splitlines()
    assert f"is {4 * height}x{2 * width}, {path}" in line
    assert f"with {height}x{width}: 8 times the pixels" in line


def test_without_a_size_or_a_file_images_have_224_pixels():
    config = ModelConfig(
        architecture="cnn", variant=None, width=4, depth=1, image_size=None
    )
    assert build_model(config, NAMES).image_size == (224, 224)


def test_patches_and_channels_of_a_runs_file_are_adapted(runs_file):
    own, path = runs_file
    config = own_config(own, path, patch_size=8, image_size=(32, 40))
    grown = build_model(config, NAMES)
    expected = keras_vit.with_image_size(own, (32, 40), patch_size=8)
    images = pixels(grown)
    np.testing.assert_array_equal(
        features_of(grown, images), features_of(expected, images)
    )
    gray = build_model(own_config(own, path, channels=1), NAMES)
    images = pixels(gray)
    np.testing.assert_allclose(
        features_of(gray, images), features_of(own, images.repeat(3, -1)), rtol=1e-4
    )


def test_a_classifier_is_kept_for_the_same_classes_only(runs_file):
    own, path = runs_file
    config = own_config(own, path)
    assert np.any(build_model(config, NAMES).get_layer("head").kernel)
    for names in (("bee", "ant", "cat"), ("x", "y", "z"), NAMES[:2]):
        assert not np.any(build_model(config, names).get_layer("head").kernel)


def test_a_kept_classifier_is_not_drawn_anew(runs_file):
    own, path = runs_file
    config = own_config(own, path, head_stddev=0.5)
    kept = build_model(config, NAMES).get_layer("head").kernel
    np.testing.assert_array_equal(kept, own.get_layer("head").kernel)
    drawn = build_model(config, NAMES[:2]).get_layer("head").kernel
    assert np.count_nonzero(drawn) == 2 * own.width


def test_layers_of_a_new_head_are_initialized_and_reported(tmp_path, caplog):
    path = tmp_path / "best.keras"
    own = own_model(keras_vit.VisionTransformer, VIT | {"representation_size": 7}, path)
    config = own_config(own, path, pooling="map", representation_size=None)
    model = build_model(config, NAMES)
    assert not np.any(model.get_layer("head").kernel)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "attention_pooling: newly initialized",
        "head: newly initialized",
        "pre_logits: dropped",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"pooling": "avg", "class_token": False}, "avg"),
        ({"pooling": "map"}, "map"),
        ({"pooling": "token"}, "token"),
        ({"pooling": None, "class_names": None}, "token"),
        ({"pooling": None, "class_names": None, "class_token": False}, "avg"),
    ],
)
def test_a_runs_file_is_pooled_as_before_unless_the_recipe_says_how(
    arguments, expected, tmp_path
):
    path = tmp_path / "best.keras"
    own = own_model(keras_vit.VisionTransformer, VIT | arguments, path)
    config = own_config(own, path, pooling=None)
    assert build_model(config, NAMES).pooling == expected
    other = dataclasses.replace(config, pooling="avg")
    assert build_model(other, NAMES).pooling == "avg"
    if not own.class_token:
        with pytest.raises(RecipeError, match="class_token"):
            build_model(dataclasses.replace(config, pooling="token"), NAMES)


def test_a_new_model_reads_the_class_token_unless_the_recipe_says_otherwise():
    assert build_model(TINY, NAMES).pooling == "token"


def test_statistics_that_differ_from_a_runs_file_are_reported(runs_file, caplog):
    build_model(own_config(*runs_file), NAMES)
    assert "trained on" not in caplog.text
    build_model(own_config(*runs_file, pixel_mean=0.4), NAMES)
    assert "trained on pixels with mean=127.5, std=127.5;" in caplog.text
    assert "has mean=102.0, std=127.5" in caplog.text


def test_a_frozen_layer_of_a_runs_file_trains_again(tmp_path):
    own = own_model(keras_vit.VisionTransformer, VIT, tmp_path / "own.keras")
    own.get_layer("encoder_block_0").trainable = False
    own.save(tmp_path / "best.keras")
    model = build_model(own_config(own, tmp_path / "best.keras"), NAMES)
    assert len(model.trainable_weights) == len(model.weights)


def test_a_baseline_can_be_fine_tuned(tmp_path):
    own, path = built("cnn"), tmp_path / "best.keras"
    own.save(path)
    config = dataclasses.replace(CNN, weights=str(path))
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
        ({"width": 24}, ["`model.width`", "12", "24"]),
        ({"gelu": "exact"}, ["model.gelu", "tanh", "exact"]),
        (
            {"position_embedding": "sincos2d"},
            ["model.position_embedding", "learned_1d"],
        ),
        ({"image_size": 30}, ["image_size", "multiple of `patch_size`", "30"]),
        ({"architecture": "bit"}, ["model.weights", "ResNet", "VisionTransformer"]),
        ({"weights": __file__ + ".keras"}, ["model.weights", "does not exist"]),
    ],
)
def test_a_mismatch_with_a_runs_file_is_a_one_line_error(runs_file, changes, words):
    with pytest.raises(RecipeError) as error:
        build_model(own_config(*runs_file, **changes), NAMES)
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


def test_a_models_pixels_are_normalized_by_channel(tmp_path):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    config = dataclasses.replace(TINY, pixel_mean=mean, pixel_std=std)
    model = randomize(build_model(config, NAMES))
    model.save(tmp_path / "m.keras")
    images = pixels(model)
    bare = keras_vit.VisionTransformer.from_config(
        {**model.get_config(), "include_preprocessing": False}
    )
    bare.set_weights(model.get_weights())
    expected = bare(((images / 255 - mean) / std).astype("float32"))
    np.testing.assert_allclose(
        read_classifier(tmp_path / "m.keras")(images), expected, atol=1e-5
    )
    bare.save(tmp_path / "bare.keras")
    loaded = read_classifier(tmp_path / "bare.keras")
    np.testing.assert_allclose(loaded(images), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            ModelConfig(architecture="resnet", variant="ResNet50", dropout=0.1),
            ["model.dropout", "resnet"],
        ),
        (
            ModelConfig(architecture="resnet", variant="ResNet50", pixel_std=1.0),
            ["model.pixel_std"],
        ),
        (
            ModelConfig(architecture="bit", variant="R50x1", heads=3),
            ["model.heads", "bit"],
        ),
        (
            ModelConfig(architecture="resnet", variant="S/16"),
            ["model.variant", "ResNet152", "S/16"],
        ),
        (ModelConfig(architecture="bit", variant="R51x1"), ["variant", "R51x1"]),
        (
            ModelConfig(architecture="cnn", variant=None, width=4),
            ["model.depth", "None"],
        ),
        (dataclasses.replace(CNN, depth=5), ["model.depth", "8x8"]),
        (
            ModelConfig(architecture="resnet", variant="ResNet50", weights="jft"),
            ["imagenet", "jft"],
        ),
        (
            ModelConfig(
                architecture="resnet",
                variant="ResNet50",
                weights="imagenet",
                channels=1,
            ),
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
    with pytest.raises(RunError, match="not a model of keras_vit"):
        read_classifier(tmp_path / "other.keras")


@pytest.mark.parametrize("name", ["hf://owner/name", "https://nowhere/x.keras"])
def test_a_repository_is_downloaded_and_no_file_in_a_bucket(name, monkeypatch):
    monkeypatch.setattr(keras_vit, "open_model", lambda asked: asked)
    assert model_reading.read_model(name) == name
