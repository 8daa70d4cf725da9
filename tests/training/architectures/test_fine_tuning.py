"""`build_model` from a `.keras` file: what is kept, adapted and refused."""

import dataclasses

import keras
import numpy as np
import pytest
from small_classifiers import (
    CNN,
    NAMES,
    TINY,
    built,
    features_of,
    pixels,
    randomize,
    scores_of,
)

import keras_vit
from training.architectures.recipe_model import build_model
from training.errors import RecipeError
from training.recipe import ModelConfig

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
        image_size=8, width=24, depth=2, mlp_dim=20, heads=4, pooling="avg",
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


def raw(images, own):
    """The same images, normalized for a model that does not do it."""
    return images if own.reads_raw_pixels else (images - 127.5) / 127.5


QUICK = "VisionTransformer avg"


@pytest.mark.parametrize(
    ("model_class", "arguments"),
    [
        pytest.param(*case, id=name, marks=() if name == QUICK else pytest.mark.slow)
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
        np.testing.assert_equal(
            same.get_layer("head").get_weights(), own.get_layer("head").get_weights()
        )

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


@pytest.mark.slow
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
        pytest.param(
            {"pooling": "avg", "class_token": False}, "avg", marks=pytest.mark.slow
        ),
        ({"pooling": "map"}, "map"),
        pytest.param({"pooling": "token"}, "token", marks=pytest.mark.slow),
        pytest.param(
            {"pooling": None, "class_names": None}, "token", marks=pytest.mark.slow
        ),
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
    np.testing.assert_equal(larger.get_weights(), own.get_weights())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 24}, ["`model.width`", "12", "24"]),
        ({"gelu": "exact"}, ["model.gelu", "tanh", "exact"]),
        ({"position_embedding": "sincos2d"}, ["position_embedding", "learned_1d"]),
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
