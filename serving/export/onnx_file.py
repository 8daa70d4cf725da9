"""ONNX files of Keras models, converted by tf2onnx."""

import json
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.typing import Array

if TYPE_CHECKING:
    from keras_vit.base import ImageModel

LARGEST = 2**31 - 1  # bytes of a protobuf message, which an ONNX file is


def write(model: "ImageModel", path: pathlib.Path, inputs: str) -> None:
    """Write a model as an ONNX file, its weights as initializers.

    tf2onnx copies what it converts many times over. So it gets a function of images and
    weights, which holds no weight: B/16 takes 3 GB, with Keras's `export` it took more
    than 17.

    Args:
        model: A `keras_vit.base.ImageModel` with classes, in float32, on TensorFlow;
            its weights take at most `LARGEST` bytes.
        path: The file.
        inputs: Description of the model's input, for the file.
    """
    import onnx  # tf2onnx needs it
    import tensorflow as tf
    import tf2onnx
    from tf2onnx.handler import tf_op

    tf_op("Erfc")(Erfc)
    scores = "logits" if model.classifier_activation is None else "probabilities"
    trainable, others = model.trainable_variables, model.non_trainable_variables

    def call(images: tf.Tensor, *weights: tf.Tensor) -> dict[str, tf.Tensor]:
        split = len(trainable)
        outputs, _ = model.stateless_call(
            weights[:split], weights[split:], images, training=False
        )
        return {scores: outputs}

    shape = (None, *model.input_shape[1:])
    signature = [tf.TensorSpec(shape, "float32", name="images")]
    weights = {f"weight_{i}": w for i, w in enumerate([*trainable, *others])}
    signature += [tf.TensorSpec(w.shape, w.dtype, name) for name, w in weights.items()]
    function = tf.function(call, autograph=False)
    written, _ = tf2onnx.convert.from_function(function, signature)
    graph = written.graph
    used = {name for node in graph.node for name in node.input}
    for name, weight in weights.items():
        if name in used:  # seeds of dropout are not
            array = onnx.numpy_helper.from_array(weight.numpy(), name)
            graph.initializer.append(array)
    del graph.input[1:]
    _keep_padding(graph)
    _describe(written, model, inputs)
    onnx.save(written, path)


def _keep_padding(graph: Any) -> None:
    """Pad with the smallest number above zero before a MaxPool, as in BiT's stem.

    onnxruntime 1.31 (Pad_Fusion) merges a Pad of exactly zero into the MaxPool, whose
    own padding is minus infinity.
    """
    import onnx

    pooled = {node.input[0] for node in graph.node if node.op_type == "MaxPool"}
    values = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    for node in graph.node:
        padded = node.op_type == "Pad" and node.output[0] in pooled
        if padded and not any(np.any(values.get(name)) for name in node.input[2:3]):
            smallest = np.array(np.finfo("float32").tiny)
            value = onnx.numpy_helper.from_array(smallest, f"{node.name}_value")
            graph.initializer.append(value)
            del node.input[2:]
            node.input.append(value.name)


def _describe(written: Any, model: "ImageModel", text: str) -> None:
    """Name the batch dimension, and state the range of the pixels."""
    import onnx

    [images], [scores] = written.graph.input, written.graph.output
    for value in (images, scores):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    images.doc_string = f"[batch, height, width, channels], {text}"
    scores.doc_string = "[batch, classes]"
    written.doc_string = f"reads {text}"
    properties = {"pixels": text}
    if model.class_names is not None:
        properties["class_names"] = json.dumps(list(model.class_names))
    onnx.helper.set_model_props(written, properties)


class Erfc:
    """TensorFlow's Erfc, which is in its exact GELU and which tf2onnx does not know."""

    @classmethod
    def version_9(cls, ctx: Any, node: Any, **_: Any) -> None:
        """Convert to 1 + erf(x / sqrt(2)), from which onnxruntime makes a Gelu again.

        TensorFlow's graph has erfc(-x * sqrt(1 / 2)).
        """
        [scaled] = node.inputs
        [result] = node.output
        shape, dtype = ctx.get_shape(result), ctx.get_dtype(result)
        ctx.remove_node(node.name)
        operands = scaled.inputs if scaled.type == "Mul" else []
        if operands and operands[0].type == "Neg" and operands[1].is_const():
            factor = operands[1].get_tensor_value(as_list=False)
            inner = ctx.make_node(
                "Div", [*operands[0].input, _constant(ctx, 1 / factor)]
            )
        else:
            inner = ctx.make_node("Neg", scaled.output)
        erf = ctx.make_node("Erf", inner.output)
        terms = [erf.output[0], _constant(ctx, 1)]
        ctx.make_node("Add", terms, outputs=[result], shapes=[shape], dtypes=[dtype])


def _constant(ctx: Any, value: float | Array) -> str:
    from tf2onnx.utils import make_name

    name = make_name("erfc")
    [output] = ctx.make_const(name, np.array(value, "float32")).output
    return str(output)
