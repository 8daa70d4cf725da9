"""A classifier's backbone as a TensorFlow module: its precision, and its devices."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import keras_vit
from keras_vit import devices
from keras_vit.base import ImageModel
from keras_vit.checks import check_choice
from keras_vit.nested_layers import all_layers
from keras_vit.resnet import StdConv2D

from .options import PRECISIONS

# The devices that an export runs on, by its `target`.
PLATFORMS: dict[str, tuple[devices.Platform, ...]] = {
    "any": ("cpu", "gpu"),
    "cpu": ("cpu",),
    "gpu": ("gpu",),
}
# TensorFlow does not optimize the function of a batching operation, nor functions that
# are inlined into it: they lack oneDNN's fused kernels. It does optimize their calls.
NOT_INLINED = {"_noinline": True}


class Backbone(tf.Module):
    """A classifier from normalized pixels to logits and embedding, in graph code.

    A SavedModel keeps its variables once; tracking Keras's own would save them twice.

    Args:
        model: A `keras_vit` classifier that `in_precision` made.
        target: `"cpu"`, `"gpu"` or `"any"`: what will run it.

    Call arguments:
        pixel_values: float32 tensor [B, H, W, C], normalized.

    Returns:
        `"logits"` [B, classes] and `"embedding"` [B, D], both float32.
    """

    def __init__(self, model: ImageModel, target: str = "any") -> None:
        super().__init__(name="backbone")
        self.variables_ = [weight.value for weight in model.weights]
        outputs = {"logits": model.output, "embedding": model.get_layer("head").input}
        self._call = _function(keras.Model(model.input, outputs), target)
        if getattr(model, "attention", None) == "full":
            self._rollout = _function(model.attention_rollout_model(), target)

    def __call__(self, pixel_values: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class."""
        outputs: dict[str, tf.Tensor] = self._call(pixel_values)
        return outputs

    def rollout(self, pixel_values: tf.Tensor) -> tf.Tensor:
        """The attention rollout [B, h, w], for a ViT with `attention="full"`."""
        return self._rollout(pixel_values)


def _function(network: keras.Model, target: str) -> Callable[[tf.Tensor], Any]:
    """A network as a function from pixels to float32, for a target's devices."""
    calls = [_function_for(network, platform) for platform in PLATFORMS[target]]
    graphs = [call.get_concrete_function().graph.as_graph_def() for call in calls]
    if graphs[1:] in ([], graphs[:1]):
        alone: Callable[[tf.Tensor], Any] = calls[0]
        return alone

    def call(pixel_values: tf.Tensor) -> Any:
        # Of the device that this operation is placed on, when the function runs.
        index = tf.raw_ops.DeviceIndex(device_names=["CPU", "GPU"])
        branches = [functools.partial(each, pixel_values) for each in calls]
        return tf.switch_case(index, branches)

    return call


def _function_for(network: keras.Model, platform: devices.Platform) -> Any:
    def call(pixel_values: tf.Tensor) -> Any:
        with devices.making_graphs_for(platform):
            outputs = network(pixel_values, training=False)
        return tf.nest.map_structure(lambda x: tf.cast(x, tf.float32), outputs)

    pixel_values = tf.TensorSpec(network.input_shape, tf.float32, "pixel_values")
    return tf.function(
        call,
        input_signature=[pixel_values],
        autograph=False,
        experimental_attributes=NOT_INLINED,
    )


def make_backbone(
    model: ImageModel, precision: str = "float32", target: str = "any"
) -> Backbone:
    """Build the batched part of a classifier, as `in_precision`, for a `target`.

    The kernels of weight-standardized convolutions are precomputed, which makes
    R26+S/32 1.2 times as fast for a single image.
    """
    network = in_precision(model, precision)
    for layer in all_layers(network):
        if isinstance(layer, StdConv2D):
            _keep_standardized(layer)
    return Backbone(network, target)


def _keep_standardized(layer: StdConv2D) -> None:
    """Replace a convolution's kernel by the standardized one."""
    kernel = layer.kernel
    kernel.assign(keras.ops.cast(layer.standardized_kernel(), kernel.dtype))
    layer.standardized_kernel = lambda: kernel  # type: ignore[method-assign]


def in_precision(model: ImageModel, precision: str) -> ImageModel:
    """Rebuild a classifier from normalized pixels to logits in a precision.

    Args:
        model: A `keras_vit.base.ImageModel` with classes.
        precision: `"float32"` or `"bfloat16"` for weights and computation. LayerNorm,
            softmax and the classifier always compute in float32.

    Returns:
        A new model of the same class without preprocessing and activation.

    Raises:
        ValueError: An unknown precision, or a model that cannot be rebuilt in it.
    """
    check_choice("precision", precision, PRECISIONS)
    policy = keras.dtype_policies.DTypePolicy(precision)
    bare: dict[str, Any] = {"preprocessing": None, "classifier_activation": None}
    if isinstance(model, keras_vit.ImageClassifier):
        backbone = _with_policy(model.backbone, policy)
        network = keras_vit.ImageClassifier(
            backbone=backbone, classes=model.output_shape[-1], dtype=policy, **bare
        )
    else:
        network = _rebuilt(model, policy, bare)
    _copy_weights(model, network)
    return network


def _rebuilt(
    model: ImageModel, policy: keras.DTypePolicy, changes: dict[str, Any]
) -> ImageModel:
    dtype = keras.saving.serialize_keras_object(policy)
    config = {**model.get_config(), **changes, "dtype": dtype}
    rebuilt: ImageModel = type(model).from_config(config)
    return rebuilt


def _with_policy(backbone: keras.Model, policy: keras.DTypePolicy) -> keras.Model:
    """Clone a functional Keras model, each of its layers with the dtype policy."""
    if isinstance(backbone, ImageModel):
        return _rebuilt(backbone, policy, {})

    def again(layer: Any) -> Any:
        if not isinstance(layer, keras.Layer):
            return layer  # an operation such as keras.ops.relu
        return type(layer).from_config({**layer.get_config(), "dtype": policy})

    try:
        return keras.models.clone_model(backbone, clone_function=again, recursive=True)
    except Exception as error:  # a user's layer may raise anything
        raise ValueError(
            "`backbone` must be a functional model whose layers can be rebuilt from "
            f"their configs with another `dtype`. Received: {backbone.name!r}: {error}"
        ) from error


def _copy_weights(model: ImageModel, network: ImageModel) -> None:
    if [w.shape for w in network.weights] != [w.shape for w in model.weights]:
        raise ValueError(
            "`model` must have the weights that its config describes, not quantized or "
            f"adapted ones. Received: {model.name!r}"
        )
    for target, source in zip(network.weights, model.weights, strict=True):
        target.assign(keras.ops.cast(source, target.dtype))
