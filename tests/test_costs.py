"""The closed forms behind `python -m keras_vit info`."""

import numpy as np
import pytest

import keras_vit
from keras_vit.__main__ import main
from keras_vit.costs import model_costs


def costs(variant, **kwargs):
    return model_costs(*keras_vit.parse_variant(variant), **kwargs)


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
    macs = costs(variant, image_size=image_size).macs / 1e9
    assert macs == pytest.approx(gmacs, rel=0.012)


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


@pytest.mark.parametrize("kwargs", [{}, {"classes": None}, {"channels": 5}])
def test_the_operations_equal_the_products_of_the_graph(tiny_vit, kwargs):
    model = tiny_vit(**kwargs)
    spec = keras_vit.ViTSpec(model.width, model.depth, model.mlp_dim, model.heads)
    arguments = {"classes": 7, **kwargs}
    assert model_costs(spec, 2, (22, 14), **arguments).macs == graph_macs(model)


def test_half_the_bytes_in_half_precision():
    whole, half = (costs("B/16", bytes_per_value=size) for size in (4, 2))
    assert whole.training_bytes == 2 * half.training_bytes
    assert whole.inference_bytes == 2 * half.inference_bytes


def test_info_prints_the_figures_of_the_paper(capsys):
    assert main(["info", "B/16", "--image-size", "224"]) == 0
    printed = capsys.readouterr().out
    for figure in ("86,567,656", "17.56", "35.1", "197"):
        assert figure in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["B/15"], "must be a multiple of `patch_size`"),
        (["Q/16"], "must be one of the sizes"),
        (["B/16", "--image-size", "10x10x10"], "such as 384 or 384x256"),
        (["B/16", "--classes", "-1"], "must be at least 0"),
    ],
)
def test_info_answers_a_mistake_with_one_line(capsys, arguments, message):
    try:
        status = main(["info", *arguments])
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert message in capsys.readouterr().err
