"""The closed forms behind `keras-vit info`."""

import keras
import numpy as np
import pytest
from long_cases import long_after

import keras_vit
from keras_vit.commands import main
from keras_vit.costs import model_costs, resnet_costs, variant_costs, vit_costs
from keras_vit.resnet import ResNet


# GMACs as timm and the DeiT and MAE repositories print them.
@pytest.mark.parametrize(
    ("variant", "image_size", "gmacs"),
    [
        ("Ti/16", 224, 1.26),
        ("S/16", 224, 4.61),
        ("B/16", 224, 17.56),
        ("B/32", 224, 4.41),
        ("B/16", 384, 55.48),
        ("L/16", 224, 61.55),
    ],
)
def test_the_operations_are_the_published_ones(variant, image_size, gmacs):
    macs = variant_costs(variant, image_size=image_size).macs / 1e9
    assert macs == pytest.approx(gmacs, rel=0.012)


# The products of timm's modules at 224 pixels, by hooks on its convolutions, linear
# layers and attention (timm 1.0.31).
@pytest.mark.parametrize(
    ("variant", "macs"),
    [
        ("R+Ti/16", 433_681_920),
        ("R26+S/32", 3_463_851_008),
        ("R26+B/32", 6_710_859_776),
        ("R50+B/16", 21_535_358_976),
        ("R50+L/32", 19_413_295_104),
        ("R50x1", 4_089_184_256),
        ("R101x3", 69_492_277_248),
        ("R152x2", 45_814_382_592),
    ],
)
def test_the_operations_are_those_of_timm(variant, macs):
    assert variant_costs(variant).macs == macs


def graph_macs(model):
    """The MACs of each product in the model's own TensorFlow graph, by its shapes."""
    import tensorflow as tf

    call = tf.function(lambda x: model(x, training=False))
    graph = call.get_concrete_function(tf.TensorSpec((1, *model.input_shape[1:]))).graph
    macs = 0
    for op in graph.get_operations():
        if op.type == "Conv2D":
            macs += np.prod(op.outputs[0].shape) * np.prod(op.inputs[1].shape[:3])
        elif op.type in ("MatMul", "BatchMatMulV2"):
            transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
            inner = op.inputs[0].shape[-2 if transposed else -1]
            macs += np.prod(op.outputs[0].shape) * inner
    return macs


def computing_all_tokens(model):
    """The same model, where the last block computes all tokens before the pooling."""
    block = model.get_layer(f"encoder_block_{model.depth - 1}")
    x = block.output[:, 0]
    if model.distilled:
        y = block.output[:, 1]
        return keras.Model(
            model.input,
            [model.get_layer("head")(x), model.get_layer("head_dist")(y)],
        )
    for name in ("projection", "pre_logits", "head"):
        if name in {layer.name for layer in model.layers}:
            x = model.get_layer(name)(x)
    return keras.Model(model.input, x)


AXIAL = {"attention": "axial", "class_token": False}


@pytest.mark.parametrize("swiglu", long_after(1, [False, True]))
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"classes": None, "depth": 1},
        {"channels": 5, "depth": 1},
        {**AXIAL, "depth": 1},
    ],
)
def test_the_operations_equal_the_products_of_the_graph(tiny_vit, kwargs, swiglu):
    axial = "attention" in kwargs
    model = tiny_vit(**kwargs, swiglu=swiglu, pooling="avg" if axial else "token")
    size = (model.width, model.depth, model.mlp_dim, model.heads)
    spec = keras_vit.ViTSpec(*size, swiglu=swiglu)
    arguments = {name: kwargs[name] for name in kwargs if name != "depth"}
    costs = model_costs(spec, 2, (22, 14), **{"classes": 7, **arguments})
    assert costs.macs == graph_macs(model if axial else computing_all_tokens(model))
    assert costs.parameters == model.count_params()


PATCHES = {"pooling": "avg", "class_token": False}


@pytest.mark.parametrize(
    "kwargs",
    [
        {"query_bias": False, "output_bias": False, "embedding_bias": False},
        {"key_bias": False, "mlp_bias": False, "swiglu": True, "mlp_norm": True},
        {"value_bias": False, "attention_norm": True, "qk_norm": True},
        {"norm": "rms", "mlp_norm": True, "qk_norm": True, "patch_norm": True},
        {"final_norm": False, "embedding_norm": True, "layer_scale": 0.1},
        {"projection": 9, "representation_size": 13, "fc_norm": True},
        {"projection": 9, "classes": None, "register_tokens": 4},
        {"pooling": "map", "register_tokens": 4, "prefix_positions": False},
        {**PATCHES, "position_embedding": "none", "attention": "axial"},
        {"rotary": "mixed", "rotary_shift": 0.2},
        {"rotary": "centered"},
        {"relative_bias": "every_layer", "pooling": "map", "pool_mlp_dim": 11},
        {"relative_bias": "shared", "pooling": "query", "key_bias": False},
        {"register_tokens": 1, "distilled": True},
        {"position_embedding": "relative"},
        {"position_embedding": "relative", "position_placement": "shared"},
        {"position_embedding": "learned_2d", "position_placement": "every_layer"},
        {"position_embedding": "sincos2d", **PATCHES},
        {"post_norm": True},
        {"parallel": True, "layer_scale": 0.1, "norm": "rms"},
        {"branches": 3, "layer_scale": 0.1, "qk_norm": True},
        {"branches": 2, "position_embedding": "relative"},
        {"branches": 2, "relative_bias": "every_layer"},
    ],
)
def test_every_option_has_its_parameters_and_operations(kwargs, tiny_vit):
    model = tiny_vit(**{"width": 24, "heads": 3, **kwargs})
    costs = vit_costs(model)
    assert costs.parameters == model.count_params()
    if model.pooling == "token" and model.position_embedding != "relative":
        model = computing_all_tokens(model)
    assert costs.macs == graph_macs(model)


@pytest.mark.parametrize("swiglu", [False, True])
def test_the_last_block_computes_the_class_token_alone(tiny_vit, swiglu):
    model = tiny_vit(swiglu=swiglu)
    d, m = model.width, model.mlp_dim
    tokens = 1 + 11 * 7
    of_a_token = 2 * d * d + (2 + swiglu) * d * m + 2 * tokens * d
    saved = graph_macs(computing_all_tokens(model)) - graph_macs(model)
    assert saved == (tokens - 1) * of_a_token


@pytest.mark.parametrize(
    "size", [(64, 32), pytest.param((96, 128), marks=pytest.mark.slow)]
)
def test_the_operations_of_a_hybrid_equal_the_products_of_the_graph(tiny_vit, size):
    kwargs = {"image_size": size, "patch_size": 2, "resnet_blocks": (1, 2), "width": 10}
    model = tiny_vit(**kwargs)
    spec = keras_vit.ViTSpec(10, model.depth, model.mlp_dim, model.heads, (1, 2))
    macs = graph_macs(computing_all_tokens(model))
    assert model_costs(spec, 2, size, classes=7).macs == macs


@pytest.mark.parametrize(
    "size", [(65, 47), pytest.param((96, 128), marks=pytest.mark.slow)]
)
def test_the_operations_of_a_resnet_equal_the_products_of_the_graph(size):
    model = ResNet(
        image_size=size, blocks=(1, 2), width_factor=2, channels=5, classes=7
    )
    costs = resnet_costs((1, 2), 2, size, channels=5, classes=7)
    assert costs.macs == graph_macs(model)


def test_a_resnet_keeps_the_inputs_of_its_norms_and_convolutions():
    """BiT of one unit, by hand: the root's map is 6 x 4, the pooled one 3 x 2."""
    inputs = 12 * 8 * 3 + 24 * 64 + 6 * 64  # image, root, pooled (of norm1)
    inner = 5 * 6 * 64  # of the convolutions, norm2 and norm3
    last = 2 * 6 * 256  # of the final norm, and of the mean
    costs = resnet_costs((1,), image_size=(12, 8), bytes_per_value=1)
    assert costs.training_bytes == inputs + inner + last


@pytest.mark.parametrize("variant", ["B/16", "R50+B/16", "R50x1"])
def test_half_the_bytes_in_half_precision(variant):
    whole, half = (variant_costs(variant, bytes_per_value=size) for size in (4, 2))
    assert whole.training_bytes == 2 * half.training_bytes
    assert whole.inference_bytes == 2 * half.inference_bytes


@pytest.mark.parametrize(
    ("arguments", "figures"),
    [
        ("B/16 --image_size 224", ("86,567,656", "17.56", "35.1", "197")),
        (
            "R50+B/16 R50x1 --image_size 384x224",
            ("R50+B/16", "337", "R50x1", "25,549,352"),
        ),
    ],
)
def test_info_prints_the_published_figures(capsys, arguments, figures):
    assert main(["info", *arguments.split()]) == 0
    printed = capsys.readouterr().out
    for figure in figures:
        assert figure in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["B/15"], "must be a multiple of `patch_size`"),
        (["Q/16"], "must be one of the sizes"),
        (["R50x"], "such as 'R50x1'"),
        (["R50+B/16", "--image_size", "200"], "times the stem's stride: of 16"),
        (["B/16", "--image_size", "10x10x10"], "such as 384 or 384x256"),
        (["B/16", "--classes", "-1"], "must be at least 0"),
        (["vit_base_patch16_224"], "Did you mean B/16?"),
        (["b_32"], "Did you mean B/32?"),
        (["B/16", "--clases", "3"], "--clases. Did you mean --classes?"),
    ],
)
def test_info_answers_a_mistake_with_one_line(capsys, arguments, message):
    try:
        status = main(["info", *arguments])
    except SystemExit as error:
        status = error.code
    assert status == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
