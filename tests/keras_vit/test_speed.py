"""What makes the model fast on CPU stays in the graph; no clock is read here."""

import collections
import platform

import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from processor import BFLOAT16_KERNELS
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2,
)

from keras_vit.devices import making_graphs_for

pytestmark = [
    pytest.mark.optimized,
    pytest.mark.skipif(
        platform.machine() != "x86_64", reason="TensorFlow fuses with oneDNN on x86-64"
    ),
]


def optimized_ops(model):
    """Operation (with its fused parts) to count, after TensorFlow's graph passes."""
    spec = tf.TensorSpec((None, *model.input_shape[1:]))
    call = tf.function(lambda x: model(x, training=False))
    with making_graphs_for("cpu"):  # the same graph on every processor, as an export's
        concrete = call.get_concrete_function(spec)
    frozen = convert_variables_to_constants_v2(concrete)
    metadata = config_pb2.RunMetadata()
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(frozen.graph.as_graph_def(), name="")
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(
                frozen.outputs[0].name,
                {frozen.inputs[0].name: np.zeros((3, *model.input_shape[1:]))},
                options=config_pb2.RunOptions(output_partition_graphs=True),
                run_metadata=metadata,
            )
    nodes = [node for graph in metadata.partition_graphs for node in graph.node]
    return collections.Counter(
        "+".join(
            [
                node.op.rpartition("Fused")[2],
                *(part.decode() for part in node.attr["fused_ops"].list.s),
            ]
        )
        for node in nodes
        if "MatMul" in node.op
    )


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("mixed_bfloat16", marks=BFLOAT16_KERNELS)]
)
@pytest.mark.parametrize(
    ("gelu", "fused"),
    long_after(1, [("tanh", "GeluApproximate"), ("exact", "GeluExact")]),
)
def test_dense_layers_are_fused_with_bias_and_gelu(tiny_vit, gelu, fused, dtype):
    """Blocks of 6 dense layers, 1 of them with a GELU, and the head."""
    ops = optimized_ops(tiny_vit(gelu=gelu, dtype=dtype, depth=3))
    assert ops[f"MatMul+BiasAdd+{fused}"] == 3
    assert ops["MatMul+BiasAdd"] == 3 * 5 + 1
    batched = sum(count for op, count in ops.items() if "BatchMatMul" in op)
    assert sum(ops.values()) == 3 + 16 + batched
