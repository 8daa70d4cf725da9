"""The exported graph: a model's six signatures, and the SavedModel."""

import pathlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import keras_vit
from keras_vit.decoding import decode_and_resize

from .backbone import make_backbone
from .batching import batched, write_parameters
from .guards import checked_batch, checked_finite, checked_pixels, checked_sizes
from .options import ExportOptions

Tensors = dict[str, tf.Tensor]

# Images of one request that are decoded in parallel.
DECODERS = 8
NOT_FINITE = "The model produced non-finite values; the request itself is valid."
TOO_LARGE = (
    "The model produced non-finite values. Are these `pixel_values` normalized, about "
    "-1 to 1? If so, the request itself is valid."
)


def save(model: Any, folder: pathlib.Path, options: ExportOptions) -> None:
    """Write a model as a SavedModel for TensorFlow Serving.

    Args:
        model: A `keras_vit.ImageModel` with classes.
        folder: The version's folder.
        options: Options of the graph.
    """
    graph = ServingGraph(model, options)
    tf.saved_model.save(graph.backbone, str(folder), signatures=graph.signatures())
    if options.batching == "server":
        write_parameters(folder, options)


def signature_names(model: Any) -> list[str]:
    """List the signatures that `save` writes for a model."""
    names = ["serving_default", "serve_images", "serve_pixels", "embed", "classify"]
    return [*names, "attention"] if has_attention(model) else names


def has_attention(model: Any) -> bool:
    """Whether a model has the attention weights that a rollout needs."""
    return getattr(model, "attention", None) == "full"


def class_labels(model: Any) -> list[str]:
    """The model's class names, ImageNet's for 1,000 classes, or the class indices."""
    if model.class_names is not None:
        return list(model.class_names)
    if model.classes == 1000:
        return [name for _, name in keras_vit.imagenet_labels()]
    return [str(index) for index in range(model.classes)]


class ServingGraph:
    """A model with decoding, checks and batching, shared by all signatures.

    Args:
        model: A `keras_vit.ImageModel` with classes.
        options: Limits, batching, precision.
    """

    def __init__(self, model: Any, options: ExportOptions):
        self.model = model
        self.options = options
        self.image_shape = [*model.image_size, model.channels]
        self.preprocessing = model.preprocessing or keras_vit.ImagePreprocessing(
            model.image_size
        )
        self.labels = tf.constant(class_labels(model))
        self.activation = keras.activations.get(
            model.classifier_activation or "softmax"
        )
        # One graph for all signatures with an input of the same name.
        self.decode = tf.function(self._decode, autograph=False)
        self.backbone = make_backbone(model, options.precision)
        self.run: Callable[[tf.Tensor], Tensors] = self.backbone
        if options.batching == "graph":
            rows = tf.TensorSpec([None, *self.image_shape], tf.float32, "pixel_values")
            self.run = batched(self.backbone, rows, options)

    def signatures(self) -> dict[str, Any]:
        """The functions by name, each with its input."""
        pixels = [None, *self.image_shape]
        of_files = tf.TensorSpec([None], tf.string, "image_bytes")
        inputs = {
            "serving_default": of_files,
            "serve_images": tf.TensorSpec(pixels, tf.uint8, "images"),
            "serve_pixels": tf.TensorSpec(pixels, tf.float32, "pixel_values"),
            "embed": of_files,
            "classify": tf.TensorSpec([None], tf.string, "inputs"),
            "attention": of_files,
        }
        return {
            name: tf.function(
                getattr(self, name), input_signature=[inputs[name]], autograph=False
            )
            for name in signature_names(self.model)
        }

    def serving_default(self, image_bytes: tf.Tensor) -> Tensors:
        """From files [B] to the best classes [B, K]."""
        return self.best(self.decode(image_bytes, "image_bytes"))

    def serve_images(self, images: tf.Tensor) -> Tensors:
        """From uint8 images [B, H, W, C] to the best classes [B, K]."""
        images = checked_batch(
            images, "images", self.image_shape, self.options.max_images
        )
        return self.best(images)

    def serve_pixels(self, pixel_values: tf.Tensor) -> Tensors:
        """From normalized pixels [B, H, W, C] to all scores [B, classes]."""
        pixel_values = checked_batch(
            pixel_values, "pixel_values", self.image_shape, self.options.max_images
        )
        pixel_values = checked_finite(pixel_values, "`pixel_values` must be finite.")
        logits = checked_finite(self.run(pixel_values)["logits"], TOO_LARGE)
        return {"logits": logits, "probabilities": self.activation(logits)}

    def embed(self, image_bytes: tf.Tensor) -> Tensors:
        """From files [B] to the classifier's input [B, D]."""
        pixel_values = self.normalize(self.decode(image_bytes, "image_bytes"))
        embedding = self.run(pixel_values)["embedding"]
        return {"embedding": checked_finite(embedding, NOT_FINITE)}

    def classify(self, inputs: tf.Tensor) -> Tensors:
        """From tf.Examples [B] to classes and scores [B, K]."""
        feature = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
        files = tf.io.parse_example(inputs, feature)["image/encoded"]
        outputs = self.best(self.decode(files, "inputs"))
        return {name: outputs[name] for name in ("classes", "scores")}

    def attention(self, image_bytes: tf.Tensor) -> Tensors:
        """From files [B] to rollouts [B, h, w] and PNGs of the model's input [B]."""
        images = self.decode(image_bytes, "image_bytes")
        # One by one: attention weights are N x N numbers per image, head and block.
        rollout = tf.map_fn(
            lambda pixels: self.backbone.rollout(pixels[None])[0],
            self.normalize(images),
            parallel_iterations=1,
        )
        return {
            "rollout": checked_finite(rollout, NOT_FINITE),
            "seen_bytes": tf.io.encode_png(images),
        }

    def _decode(self, files: tf.Tensor, name: str) -> tf.Tensor:
        """Decode files [B] of the named input to uint8 images [B, H, W, C]."""
        options = self.options
        files = checked_batch(files, name, [], options.max_images)
        files = checked_sizes(files, name, options.max_image_bytes)

        def image(row):
            data, index = row
            data = checked_pixels(data, index, name, options.max_image_pixels)
            return decode_and_resize(
                data,
                self.preprocessing,
                self.model.channels,
                (f"Image of `{name}` at index", index),
            )

        return tf.map_fn(
            image,
            (files, tf.range(tf.size(files))),
            fn_output_signature=tf.TensorSpec(self.image_shape, tf.uint8),
            parallel_iterations=DECODERS,
        )

    def normalize(self, images: tf.Tensor) -> tf.Tensor:
        """Normalize uint8 images for the backbone."""
        return self.preprocessing(images, fitted=True)

    def best(self, images: tf.Tensor) -> Tensors:
        """The K best classes of uint8 images: names, indices, scores."""
        count = min(self.options.top_k, self.model.classes)
        logits = self.run(self.normalize(images))["logits"]
        scores = self.activation(checked_finite(logits, NOT_FINITE))
        scores, class_ids = tf.math.top_k(scores, count)
        classes = tf.gather(self.labels, class_ids)
        return {
            "classes": classes,
            "class_ids": tf.cast(class_ids, tf.int64),
            "scores": scores,
        }
