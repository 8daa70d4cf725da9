"""Names of models, and their published sizes."""

import dataclasses

import pytest
from shapes_only import shapes_only

import keras_vit
from keras_vit.costs import model_costs, resnet_costs, variant_costs
from keras_vit.resnet import ResNet
from keras_vit.specs import parse_resnet

# Published parameter counts at 224 pixels: class token and no head, then with the
# 1,000-class head. google-research/vision_transformer models_test.py, keras-hub's ViT
# presets, and counts checked against them. Of DINOv2's g/14, timm's count at 518
# pixels, 1,136,479,232, without its layer scales and the larger grid's positions.
COUNTS = """
mu/16              43_712           -
Ti/16           5_524_416   5_717_416
S/16           21_665_664  22_050_664
S/32           22_493_952  22_878_952
M/16           38_324_736           -
B/8            85_807_872  86_576_872
B/16           85_798_656  86_567_656
B/32           87_455_232  88_224_232
L/16          303_301_632 304_326_632
L/32          305_510_400 306_535_400
L/14          303_178_752           -
So400m/14     412_444_656           -
H/14          630_764_800 632_045_800
g/14        1_011_202_432           -
g-opt/16    1_134_749_184           -
g-dinov2/14 1_134_646_784           -
G/14        1_842_775_680           -
G-opt/16    1_663_489_536           -
e/14        3_805_421_312           -
R+Ti/16                 -   6_337_704
R26+S/32                -  36_431_912
R26+B/32                - 101_383_976
R50+B/16                -  98_659_112
R50+L/32                - 328_994_856
"""
ROWS = [row.split() for row in COUNTS.strip().splitlines()]
BACKBONES = {name: int(count) for name, count, _ in ROWS if count != "-"}
CLASSIFIERS = {name: int(count) for name, _, count in ROWS if count != "-"}
# timm's resnetv2_*_bit with 1,000 classes.
BIT = {
    "R50x1": 25_549_352,
    "R50x3": 217_319_080,
    "R101x1": 44_541_480,
    "R101x3": 387_934_888,
    "R152x2": 236_335_208,
    "R152x4": 936_533_224,
}


def count(variant, **kwargs):
    family = keras_vit.VisionTransformer if "/" in variant else ResNet
    with shapes_only():
        model = family.from_variant(variant, **kwargs)
    return model.count_params()


# The deep ones take a second each to build; the closed form below counts all.
QUICK = ("mu/16", "B/16", "So400m/14")


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in BACKBONES
    ],
)
def test_a_backbone_has_the_published_parameters(variant):
    assert count(variant, pooling=None) == BACKBONES[variant]


@pytest.mark.parametrize("variant", BACKBONES)
def test_the_closed_form_counts_a_published_backbone(variant):
    assert variant_costs(variant, classes=None).parameters == BACKBONES[variant]


@pytest.mark.parametrize("variant", CLASSIFIERS | BIT)
def test_the_closed_form_counts_a_published_classifier(variant):
    assert variant_costs(variant).parameters == (CLASSIFIERS | BIT)[variant]


@pytest.mark.parametrize(
    ("variant", "parameters"),
    [("S/16", 22_049_896), ("B/16", 86_566_120), ("B/32", 88_222_696)],
)
def test_a_mean_pooled_model_has_the_published_parameters(variant, parameters):
    assert count(variant, pooling="avg", class_token=False) == parameters


@pytest.mark.parametrize(
    ("variant", "image_size", "parameters"),
    [("L/16", 512, 305_174_504), ("H/14", 518, 633_470_440)],
)
def test_a_resolution_has_the_published_parameters(variant, image_size, parameters):
    assert count(variant, image_size=image_size) == parameters


@pytest.mark.parametrize(
    ("variant", "kwargs"),
    [
        ("Ti/16", {}),
        ("Ti/16", {"classes": None}),
        ("Ti/16", {"class_token": False, "image_size": (64, 32)}),
        ("R+Ti/16", {"channels": 5}),
        ("R26+S/32", {"image_size": (64, 32)}),
        ("R26x3", {}),
        ("R26x1", {"classes": None}),
        ("R50x1", {"channels": 5}),
        pytest.param("R200x1", {}, marks=pytest.mark.slow),
    ],
)
def test_the_closed_form_counts_the_parameters_of_the_model(variant, kwargs):
    if "/" not in variant:
        costs, pooling = resnet_costs(*parse_resnet(variant), **kwargs), "avg"
    else:
        pooling = "token" if kwargs.get("class_token", True) else "avg"
        costs = model_costs(*keras_vit.parse_variant(variant), **kwargs)
    assert costs.parameters == count(variant, pooling=pooling, **kwargs)


def test_every_size_is_counted():
    assert {name.split("/")[0] for name in BACKBONES} == set(keras_vit.SPECS)


@pytest.mark.parametrize(
    "variant", ["X/16", "B", "B/0", "B16", "b/16", "", "R50+X/16", "ViT-B/16", "R50x1"]
)
def test_an_unknown_variant_lists_the_sizes_that_exist(variant):
    sizes = "mu, Ti, S, M, B, L, So400m, H, g, g-opt, g-dinov2, G, G-opt, e .*Rec"
    with pytest.raises(ValueError, match=sizes):
        keras_vit.parse_variant(variant)


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("R34+B/16", "depth in `variant` must be one of 26, 50, 101, 152, 200.*R34"),
        ("R50+B/14", "down-sampling in `variant` must be 16 or 32.*R50.B/14"),
        ("R+Ti/15", "patch size in `variant` must be even.*R.Ti/15"),
        ("R50", "depth and width factor, such as 'R50x1'. Received: variant='R50'"),
        ("R50x0", "depth and width factor"),
        ("R34x1", "must be one of 26, 50, 101, 152, 200. Received: variant='R34x1'"),
    ],
)
def test_an_unknown_hybrid_or_resnet_says_what_exists(variant, message):
    parse = keras_vit.parse_variant if "/" in variant else parse_resnet
    with pytest.raises(ValueError, match=message):
        parse(variant)


@pytest.mark.parametrize(
    ("variant", "blocks", "patch_size"),
    [
        ("B/16", None, 16),
        ("R+Ti/16", (), 8),
        ("R26+S/32", (2, 2, 2, 2), 1),
        ("R50+B/32", (3, 4, 6, 3), 1),
        ("R50+L/16", (3, 4, 9), 1),
        ("R101+L/16", (3, 4, 26), 1),
        ("R200+L/32", (3, 24, 36, 3), 1),
        ("R152+H/16", (3, 8, 39), 1),
    ],
)
def test_a_hybrid_keeps_stage_4_or_moves_it_into_stage_3(variant, blocks, patch_size):
    spec, patch = keras_vit.parse_variant(variant)
    assert (spec.resnet_blocks, patch) == (blocks, patch_size)
    size = keras_vit.SPECS[variant.split("/")[0].split("+")[-1]]
    assert dataclasses.replace(spec, resnet_blocks=None) == size


def test_a_variant_is_a_size_and_a_patch_size():
    spec, patch_size = keras_vit.parse_variant("So400m/14")
    assert (spec.width, spec.depth, spec.mlp_dim, spec.heads) == (1152, 27, 4304, 16)
    assert patch_size == 14
