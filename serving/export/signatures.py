"""The exported graph: a model's six signatures, and the SavedModel.

Where the backbone runs on a GPU, uint8 images go there and scores come back. All else
stays on the host: images are decoded and resized as in training, to the last bit, and
are not copied in full size.
"""

import pathlib
from typing import Any

import keras
import tensorflow as tf

import keras_vit
from keras_vit.analysis.inspection import preprocessing_of
from keras_vit.base import ImageModel
from keras_vit.decoding import decode_and_resize

from .backbone import make_backbone
from .batching import Function, batched, write_parameters
from .graph_checks import checked_batch, checked_finite, checked_pixels, checked_sizes
from .host import on_host
from .options import ExportOptions

Tensors = dict[str, tf.Tensor]

# Images of one request that are decoded in parallel.
DECODERS = 8
NOT_FINITE = "The model produced non-finite values; the request itself is valid."
TOO_LARGE = (
    "The model produced non-finite values. Are these `pixel_values` normalized, about "
    "-1 to 1? If so, the request itself is valid."
)


def save(model: ImageModel, folder: pathlib.Path, options: ExportOptions) -> None:
    """Write a model as a SavedModel for TensorFlow Serving."""
    graph = ServingGraph(model, options)
    tf.saved_model.save(graph.backbone, str(folder), signatures=graph.signatures())
    if options.batching == "server":
        write_parameters(folder, options)


def signature_names(model: ImageModel) -> list[str]:
    """List the signatures that `save` writes for a model."""
    names = ["serving_default", "serve_images", "serve_pixels", "embed", "classify"]
    return [*names, "attention"] if has_attention(model) else names


def has_attention(model: ImageModel) -> bool:
    """Whether a model has the attention weights that a rollout needs."""
    return getattr(model, "attention", None) == "full"


def class_labels(model: ImageModel) -> list[str]:
    """The model's class names, ImageNet's for 1,000 classes, or the class indices."""
    if model.class_names is not None:
        return list(model.class_names)
    if model.classes == 1000:
        return [name for _, name in keras_vit.imagenet_labels()]
    return [str(index) for index in range(model.output_shape[-1])]


class ServingGraph:
    """A model with decoding, checks and batching, shared by all signatures."""

    def __init__(self, model: ImageModel, options: ExportOptions) -> None:
        self.model = model
        self.options = options
        self.image_shape = [*model.image_size, model.channels]
        self.preprocessing = preprocessing_of(model)
        self.labels = tf.constant(class_labels(model))
        self.activation = keras.activations.get(
            model.classifier_activation or "softmax"
        )
        # One graph for all signatures with an input of the same name.
        self.decode = on_host(tf.function(self._decode, autograph=False))
        self.backbone = make_backbone(model, options.precision, options.target)
        self.run_pixels = self._batched(self.backbone, tf.float32)
        self.run_images = self._batched(
            lambda images: self.backbone(self.normalize(images)), tf.uint8
        )

    def _batched(self, function: Function, dtype: tf.DType) -> Function:
        if self.options.batching != "graph":
            return function
        rows = tf.TensorSpec([None, *self.image_shape], dtype)
        return batched(function, rows, self.options)

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
        return self.best(self.checked(images, "images"))

    def serve_pixels(self, pixel_values: tf.Tensor) -> Tensors:
        """From normalized pixels [B, H, W, C] to all scores [B, classes]."""
        pixel_values = self.checked(pixel_values, "pixel_values")
        return self.scores(self.run_pixels(pixel_values)["logits"], TOO_LARGE)

    def embed(self, image_bytes: tf.Tensor) -> Tensors:
        """From files [B] to the classifier's input [B, D]."""
        outputs = self.run_images(self.decode(image_bytes, "image_bytes"))
        return {"embedding": on_host(checked_finite)(outputs["embedding"], NOT_FINITE)}

    def classify(self, inputs: tf.Tensor) -> Tensors:
        """From tf.Examples [B] to classes and scores [B, K]."""
        feature = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
        files = on_host(tf.io.parse_example)(inputs, feature)["image/encoded"]
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
            "rollout": on_host(checked_finite)(rollout, NOT_FINITE),
            "seen_bytes": on_host(tf.io.encode_png)(images),
        }

    @on_host
    def checked(self, batch: tf.Tensor, name: str) -> tf.Tensor:
        """Check a batch of images or normalized pixels [B, H, W, C]."""
        batch = checked_batch(batch, name, self.image_shape, self.options.max_images)
        if batch.dtype.is_floating:
            return checked_finite(batch, f"`{name}` must be finite.")
        return batch

    @on_host
    def _decode(self, files: tf.Tensor, name: str) -> tf.Tensor:
        """Decode files [B] of the named input to uint8 images [B, H, W, C]."""
        options = self.options
        files = checked_batch(files, name, [], options.max_images)
        files = checked_sizes(files, name, options.max_image_bytes)

        def image(row: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
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
        return self.best_of(self.run_images(images)["logits"])

    @on_host
    def scores(self, logits: tf.Tensor, error: str) -> Tensors:
        """Logits and probabilities [B, classes]; the error is of non-finite ones."""
        logits = checked_finite(logits, error)
        return {"logits": logits, "probabilities": self.activation(logits)}

    @on_host
    def best_of(self, logits: tf.Tensor) -> Tensors:
        """The K best classes of logits [B, classes]."""
        count = min(self.options.top_k, self.model.output_shape[-1])
        probabilities = self.scores(logits, NOT_FINITE)["probabilities"]
        scores, class_ids = tf.math.top_k(probabilities, count)
        classes = tf.gather(self.labels, class_ids)
        return {
            "classes": classes,
            "class_ids": tf.cast(class_ids, tf.int64),
            "scores": scores,
        }
