"""Names of models, and their published sizes."""

import contextlib

import keras
import pytest
from keras.src.backend.common import global_state

import keras_vit
from keras_vit.costs import model_costs


@contextlib.contextmanager
def shapes_only():
    """Models built inside have weights with shapes but without values."""
    with keras.StatelessScope(initialize_variables=False):
        yield
    global_state.set_global_attribute("uninitialized_variables", [])


# Published parameter counts at 224 pixels: class token and no head, then with the
# 1,000-class head. google-research/vision_transformer models_test.py, keras-hub's ViT
# presets, and counts checked against them.
BACKBONES = {
    "mu/16": 43_712,
    "Ti/16": 5_524_416,
    "S/16": 21_665_664,
    "S/32": 22_493_952,
    "M/16": 38_324_736,
    "B/8": 85_807_872,
    "B/16": 85_798_656,
    "B/32": 87_455_232,
    "L/16": 303_301_632,
    "L/32": 305_510_400,
    "L/14": 303_178_752,
    "So400m/14": 412_444_656,
    "H/14": 630_764_800,
    "g/14": 1_011_202_432,
    "G/14": 1_842_775_680,
}
CLASSIFIERS = {
    "Ti/16": 5_717_416,
    "S/16": 22_050_664,
    "S/32": 22_878_952,
    "B/8": 86_576_872,
    "B/16": 86_567_656,
    "B/32": 88_224_232,
    "L/16": 304_326_632,
    "L/32": 306_535_400,
    "H/14": 632_045_800,
}
WITHOUT_CLASS_TOKEN = {
    "S/16": 22_049_896,
    "B/16": 86_566_120,
    "B/32": 88_222_696,
}
RESOLUTIONS = {
    ("B/16", 384): 86_859_496,
    ("L/16", 384): 304_715_752,
    ("L/16", 512): 305_174_504,
    ("H/14", 518): 633_470_440,
    ("B/32", 384): 88_297_192,
    ("L/32", 384): 306_632_680,
}


def count(variant, **kwargs):
    with shapes_only():
        model = keras_vit.VisionTransformer.from_variant(variant, **kwargs)
    return model.count_params()


@pytest.mark.parametrize("variant", BACKBONES)
def test_a_backbone_has_the_published_parameters(variant):
    assert count(variant, head="none") == BACKBONES[variant]


@pytest.mark.parametrize("variant", CLASSIFIERS)
def test_a_classifier_has_the_published_parameters(variant):
    assert count(variant) == CLASSIFIERS[variant]


@pytest.mark.parametrize("variant", WITHOUT_CLASS_TOKEN)
def test_a_mean_pooled_model_has_the_published_parameters(variant):
    parameters = count(variant, head="gap", class_token=False)
    assert parameters == WITHOUT_CLASS_TOKEN[variant]


@pytest.mark.parametrize(("variant", "image_size"), RESOLUTIONS)
def test_a_resolution_has_the_published_parameters(variant, image_size):
    parameters = count(variant, image_size=image_size)
    assert parameters == RESOLUTIONS[variant, image_size]


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"classes": None},
        {"class_token": False, "image_size": (64, 32)},
        {"channels": 5},
    ],
)
def test_the_closed_form_counts_the_parameters_of_the_model(kwargs):
    spec, patch_size = keras_vit.parse_variant("Ti/16")
    head = "token" if kwargs.get("class_token", True) else "gap"
    costs = model_costs(spec, patch_size, **kwargs)
    assert costs.parameters == count("Ti/16", head=head, **kwargs)


def test_every_size_is_counted():
    assert {name.split("/")[0] for name in BACKBONES} == set(keras_vit.SPECS)


@pytest.mark.parametrize("variant", ["X/16", "B", "B/0", "B16", "b/16", "", "R50+B/16"])
def test_an_unknown_variant_lists_the_sizes_that_exist(variant):
    with pytest.raises(ValueError, match=r"mu, Ti, S, M, B, L, So400m, H, g, G.*Rec"):
        keras_vit.parse_variant(variant)


def test_a_variant_is_a_size_and_a_patch_size():
    spec, patch_size = keras_vit.parse_variant("So400m/14")
    assert (spec.width, spec.depth, spec.mlp_dim, spec.heads) == (1152, 27, 4304, 16)
    assert patch_size == 14
