"""The options of the model beyond the paper's own: weights, sizes, errors."""

import keras
import numpy as np
import pytest
from tiny_model import NO_QKV_BIASES, build_vit, numpy, small

import keras_vit
from keras_vit.weights.building import rebuild

pytestmark = pytest.mark.backend

ROTARY = {"rotary": "centered", "width": 24, "heads": 3}
AXIAL = {"attention": "axial", "class_token": False, "pooling": "avg"}
BLOCK_PATHS = [
    "norm1/gamma",
    "norm1/beta",
    *(
        f"attention/{dense}/{weight}"
        for dense in ("query", "key", "value", "out")
        for weight in ("kernel", "bias")
    ),
    "norm2/gamma",
    "norm2/beta",
    "mlp/Dense_0/kernel",
    "mlp/Dense_0/bias",
    "mlp/Dense_1/kernel",
    "mlp/Dense_1/bias",
]


def block_shapes(model):
    paths = {weight.path: tuple(weight.shape) for weight in model.weights}
    return {
        path.removeprefix("encoder_block_0/"): shape
        for path, shape in paths.items()
        if path.startswith("encoder_block_0/")
    }


def other_shapes(model):
    return {
        weight.path: tuple(weight.shape)
        for weight in model.weights
        if not weight.path.startswith(("encoder_block", "embedding/", "head/"))
    }


def test_the_papers_model_has_these_weights_and_no_other():
    model = small()
    assert list(block_shapes(model)) == BLOCK_PATHS
    assert other_shapes(model) == {
        "class_token/token": (1, 1, 15),
        "position_embedding/embedding": (1, 78, 15),
        "encoder_norm/gamma": (15,),
        "encoder_norm/beta": (15,),
    }
    assert len(model.weights) == 2 + 4 + 2 * len(BLOCK_PATHS) + 2


@pytest.mark.parametrize(
    ("kwargs", "added"),
    [
        ({"layer_scale": 0.1}, {f"layer_scale{i}/gamma": (15,) for i in (1, 2)}),
        (
            {"qk_norm": True},
            {
                f"attention/{norm}/{weight}": (3,)
                for norm in ("query_norm", "key_norm")
                for weight in ("gamma", "beta")
            },
        ),
        (
            {"attention_norm": True, "mlp_norm": True},
            {
                **{f"attention/norm/{name}": (15,) for name in ("gamma", "beta")},
                **{f"mlp/norm/{name}": (23,) for name in ("gamma", "beta")},
            },
        ),
        (
            {"relative_bias": "every_layer"},
            {"attention/relative_bias": (21 * 13 + 3, 5)},
        ),
        (
            {"position_embedding": "relative"},
            {"attention/relative_embedding": (2 * 78 - 1, 3)},
        ),
    ],
)
def test_an_option_adds_these_weights_to_a_block(kwargs, added):
    shapes = block_shapes(small(**kwargs))
    assert {path: shapes[path] for path in set(shapes) - set(BLOCK_PATHS)} == added


def test_projections_without_biases_have_kernels_alone():
    shapes = block_shapes(small(**NO_QKV_BIASES))
    lacking = {f"attention/{name}/bias" for name in ("query", "key", "value")}
    assert set(BLOCK_PATHS) - set(shapes) == lacking


@pytest.mark.parametrize(
    ("kwargs", "lacking"),
    [
        ({"key_bias": False}, {"attention/key/bias"}),
        ({"mlp_bias": False}, {"mlp/Dense_0/bias", "mlp/Dense_1/bias"}),
        ({"norm": "rms"}, {"norm1/beta", "norm2/beta"}),
        ({"parallel": True}, {"norm2/gamma", "norm2/beta"}),
    ],
)
def test_an_option_takes_these_weights_from_a_block(kwargs, lacking):
    assert set(BLOCK_PATHS) - set(block_shapes(small(**kwargs))) == lacking


def test_only_the_blocks_lack_the_output_bias():
    model = small(output_bias=False, pooling="map")
    assert set(BLOCK_PATHS) - set(block_shapes(model)) == {"attention/out/bias"}
    assert "attention_pooling/attention/out/bias" in other_shapes(model)


NORM = {"encoder_norm/gamma": (30,), "encoder_norm/beta": (30,)}
CLASS = {"class_token/token": (1, 1, 30)}
REGISTERS = {**CLASS, "register_tokens/tokens": (1, 4, 30)}


@pytest.mark.parametrize(
    ("kwargs", "shapes"),
    [
        (
            {"register_tokens": 4},
            {**REGISTERS, **NORM, "position_embedding/embedding": (1, 82, 30)},
        ),
        (
            {"register_tokens": 4, "prefix_positions": False},
            {**REGISTERS, **NORM, "position_embedding/embedding": (1, 77, 30)},
        ),
        (
            {"position_embedding": "learned_2d"},
            {
                **CLASS,
                **NORM,
                "position_embedding/rows": (1, 11, 1, 15),
                "position_embedding/columns": (1, 1, 7, 15),
                "position_embedding/prefix": (1, 1, 30),
            },
        ),
        (
            {"position_embedding": "learned_2d", "prefix_positions": False},
            {
                **CLASS,
                **NORM,
                "position_embedding/rows": (1, 11, 1, 15),
                "position_embedding/columns": (1, 1, 7, 15),
            },
        ),
        (
            {"position_placement": "every_layer"},
            {
                **CLASS,
                **NORM,
                "position_embedding_0/embedding": (1, 78, 30),
                "position_embedding_1/embedding": (1, 78, 30),
            },
        ),
        (
            {"position_placement": "shared"},
            {**CLASS, **NORM, "position_embedding/embedding": (1, 78, 30)},
        ),
        (
            {"position_embedding": "relative", "position_placement": "shared"},
            {**CLASS, **NORM, "relative_position/embedding": (155, 6)},
        ),
        ({"position_embedding": "none"}, {**CLASS, **NORM}),
        (
            {"position_embedding": "none", "relative_bias": "shared"},
            {**CLASS, **NORM, "relative_bias/table": (21 * 13 + 3, 5)},
        ),
        (
            {"position_embedding": "none", "pooling": "query", "value_bias": False},
            {
                **{**CLASS, **NORM, "attention_pooling/probe": (1, 1, 30)},
                "attention_pooling/attention/key/kernel": (30, 30),
                "attention_pooling/attention/key/bias": (30,),
                "attention_pooling/attention/value/kernel": (30, 30),
                "attention_pooling/attention/out/kernel": (30, 30),
                "attention_pooling/attention/out/bias": (30,),
            },
        ),
        (
            {"position_embedding": "none", "fc_norm": True},
            {**CLASS, "fc_norm/gamma": (30,), "fc_norm/beta": (30,)},
        ),
        (
            {
                **{"norm": "rms", "patch_norm": True, "embedding_norm": True},
                **{"final_norm": False, "projection": 11, "position_embedding": "none"},
            },
            {
                **{"patch_norm/gamma": (30,), **CLASS, "embedding_norm/gamma": (30,)},
                "projection/kernel": (30, 11),
            },
        ),
    ],
)
def test_an_option_has_these_weights_outside_the_blocks(kwargs, shapes):
    assert other_shapes(small(width=30, **kwargs)) == shapes


def test_mixed_rotary_positions_alone_have_weights():
    usual, wide = {"class_token/token": (1, 1, 24)}, {"width": 24, "heads": 3}
    for kind, added in (
        *(("centered", {}), ("grid", {})),
        ("mixed", {"rotary/frequencies": (2, 2, 3, 4)}),
    ):
        shapes = other_shapes(small(**wide, rotary=kind, position_embedding="none"))
        norm = {f"encoder_norm/{name}": (24,) for name in ("gamma", "beta")}
        assert shapes == {**usual, **added, **norm}


def test_sincos_positions_have_no_weights():
    for kind in ("sincos2d", "sincos2d_mae"):
        model = small(width=20, position_embedding=kind)
        assert len(model.weights) == len(small().weights) - 1


def test_an_axial_block_has_two_blocks_of_weights():
    model = small(**AXIAL)
    rows = [f"rows/{path}" for path in BLOCK_PATHS]
    columns = [f"columns/{path}" for path in BLOCK_PATHS]
    assert list(block_shapes(model)) == rows + columns


@pytest.mark.parametrize(
    ("kwargs", "grid", "prefix_tokens"),
    [
        ({}, (11, 7), 1),
        ({"register_tokens": 4}, (11, 7), 5),
        ({"register_tokens": 4, "class_token": False, "pooling": "avg"}, (11, 7), 4),
        ({"image_size": (64, 96), "resnet_blocks": ()}, (8, 12), 1),
        ({"image_size": (64, 96), "resnet_blocks": (1, 1, 1)}, (2, 3), 1),
    ],
)
def test_grid_and_prefix_tokens_say_what_the_tokens_are(kwargs, grid, prefix_tokens):
    model = small(**{"pooling": None, **kwargs})
    assert (model.grid, model.prefix_tokens) == (grid, prefix_tokens)
    if model.pooling is None:
        assert model.output_shape[1] == prefix_tokens + grid[0] * grid[1]


def test_patch_dropout_trains_on_fewer_patches(tiny_vit, images):
    model = tiny_vit(pooling=None, patch_dropout=0.75, register_tokens=4)
    plain = tiny_vit(pooling=None, register_tokens=4)
    assert model(images(), training=True).shape == (2, 5 + 77 // 4, 15)
    np.testing.assert_array_equal(numpy(model(images())), numpy(plain(images())))


def test_initial_weights_of_the_options():
    keras.utils.set_random_seed(4)
    model = small(
        width=160,
        register_tokens=9,
        layer_scale=0.1,
        position_embedding="relative",
        position_stddev=0.3,
    )
    block = model.get_layer("encoder_block_1")
    deviations = {
        1e-6: model.get_layer("register_tokens").tokens,
        0.3: block.attention.relative_embedding,
    }
    for deviation, weight in deviations.items():
        assert numpy(weight).std() == pytest.approx(deviation, rel=0.1)
    for layer in (block.layer_scale1, block.layer_scale2):
        np.testing.assert_array_equal(numpy(layer.gamma), np.float32(0.1))


def test_2d_positions_have_the_default_initial_stddev():
    keras.utils.set_random_seed(4)
    options = {"position_embedding": "learned_2d", "position_placement": "shared"}
    layer = small(width=1600, **options).get_layer("position_embedding")
    for weight in (layer.rows, layer.columns, layer.prefix):
        assert numpy(weight).std() == pytest.approx(0.02, rel=0.1)


def test_an_activation_follows_the_mean_of_two_classifiers():
    options = {"distilled": True, "register_tokens": 1, "classifier_activation": "tanh"}
    model = build_vit(**options)
    outputs = numpy(model(np.ones((2, 22, 14, 3), "float32")))
    twin = build_vit(**{**options, "classifier_activation": None})
    logits = numpy(twin(np.ones((2, 22, 14, 3), "float32")))
    np.testing.assert_allclose(outputs, np.tanh(logits), atol=1e-6)


def test_a_second_classifier_is_left_out_or_new_with_other_classes():
    model = build_vit(distilled=True, register_tokens=1)
    alone = rebuild(model, distilled=False)
    assert {w.path for w in model.weights} - {w.path for w in alone.weights} == {
        "head_dist/kernel",
        "head_dist/bias",
    }
    np.testing.assert_array_equal(
        numpy(alone.get_layer("head").kernel), numpy(model.get_layer("head").kernel)
    )
    other = rebuild(model, classes=3)
    assert not numpy(other.get_layer("head_dist").kernel).any()


def test_relative_positions_of_beit_follow_the_grid_and_those_of_table_8_do_not():
    model = keras_vit.with_image_size(small(relative_bias="shared"), 28)
    assert model.get_layer("relative_bias").table.shape == (27 * 27 + 3, 5)
    with pytest.raises(ValueError, match="tied to its grid.*relative_embedding"):
        keras_vit.with_image_size(small(position_embedding="relative"), 28)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"patch_dropout": 1.0}, "`patch_dropout`.*1.0"),
        ({"register_tokens": -1}, "`register_tokens` must be.*register_tokens=-1"),
        ({"attention": "linear"}, "`attention` must be one of 'full', 'axial'"),
        ({"position_embedding": "rope"}, "`position_embedding` must be.*'rope'"),
        ({"position_placement": "end"}, "`position_placement` must be one of.*'end'"),
        (
            {"position_embedding": "relative", "position_placement": "stem"},
            "'every_layer' or 'shared'.*position_placement='stem'",
        ),
        (
            {"position_embedding": "none", "position_placement": "shared"},
            "none to place.*position_placement='shared'",
        ),
        ({"position_embedding": "learned_2d"}, "even width.*width=15"),
        ({"position_embedding": "sincos2d"}, "multiple of 4.*width=15"),
        ({"pooling": None, "fc_norm": True}, "`fc_norm` follows the pooling"),
        ({"pooling": None, "projection": 9}, "`projection` follows the pooling"),
        ({"final_norm": False, "fc_norm": True}, "place.*fc_norm=True, final_norm=F"),
        ({"attention": "axial"}, "class_token=False.*class_token=True"),
        ({**AXIAL, "register_tokens": 2}, "register_tokens=0.*register_tokens=2"),
        ({**AXIAL, "position_embedding": "relative"}, "no relative positions"),
        ({**AXIAL, "patch_dropout": 0.5}, "leaves no grid.*attention='axial'"),
        ({"patch_dropout": 0.5, "position_placement": "shared"}, "leaves no grid"),
        ({"patch_dropout": 0.5, "position_embedding": "relative"}, "leaves no grid"),
        ({"relative_bias": "shared", "register_tokens": 2}, "register_tokens=2"),
        ({"relative_bias": "shared", **AXIAL}, "attention='full'.*class_token=False"),
        (
            {"relative_bias": "shared", "position_embedding": "relative"},
            "no other relative positions.*'relative'",
        ),
        ({"relative_bias": "shared", "patch_dropout": 0.5}, "leaves no grid"),
        ({"distilled": True}, "reads a register.*register_tokens=0"),
        (
            {"distilled": True, "register_tokens": 1, "pooling": "avg"},
            "pooling='token'.*pooling='avg'",
        ),
        (
            {"distilled": True, "register_tokens": 1, "classes": None},
            "reads a register.*classes=None",
        ),
        ({"rotary": "sines"}, "`rotary` must be one of 'centered', 'grid', 'mixed'"),
        ({"rotary": "grid"}, "multiple of 4.*width=15, heads=5"),
        ({**ROTARY, "patch_dropout": 0.5}, "leaves no grid.*patch_dropout=0.5"),
        ({**ROTARY, "position_embedding": "relative"}, "not rotated.*'relative'"),
        ({**ROTARY, **AXIAL}, "no rotary positions.*attention='axial'"),
        ({**ROTARY, "rotary_offset": 1.0}, "need rotary='grid'.*rotary_offset=1.0"),
        ({"rotary_reference_grid": (2, 3)}, "need rotary='grid'.*rotary=None"),
        ({"rotary_reference_grid": (2, 0)}, "a pair of positive integers"),
        ({"rotary_jitter": 2.0}, "no coordinates to change.*rotary_jitter=2.0"),
        ({**ROTARY, "rotary_rescale": 0.5}, "`rotary_rescale` must be.*at least 1"),
        ({"resnet_blocks": (1, 2)}, r"stride: of 16.*\(22, 14\).*blocks=\(1, 2\)"),
        ({"resnet_blocks": (0,)}, "`resnet_blocks` must be a sequence of positive"),
        ({"resnet_width_factor": 0}, "`resnet_width_factor`.*at least 1"),
    ],
)
def test_an_error_names_the_argument_and_what_came(kwargs, message):
    with pytest.raises(ValueError, match=message):
        small(**kwargs)
