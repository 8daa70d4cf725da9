"""The names of `keras_vit`; importing them registers layers and models with Keras."""

from keras_vit import _backend  # noqa: F401  isort: skip  before what uses Keras

from keras_vit import analysis, decoding, layers, weights
from keras_vit._version import __version__
from keras_vit.classifier import ImageClassifier
from keras_vit.errors import KerasViTError
from keras_vit.opening import open_model
from keras_vit.preprocessing import (
    ImagePreprocessing,
    decode_predictions,
    imagenet_labels,
    preprocess_input,
)
from keras_vit.resnet import (
    BiTR50x1,
    BiTR50x3,
    BiTR101x1,
    BiTR101x3,
    BiTR152x2,
    BiTR152x4,
    ResNet,
)
from keras_vit.specs import SPECS, ViTSpec, parse_resnet, parse_variant
from keras_vit.vit import (
    R26ViTB32,
    R26ViTS32,
    R50ViTB16,
    R50ViTB32,
    R50ViTL16,
    R50ViTL32,
    RViTTi16,
    VisionTransformer,
    ViTB8,
    ViTB16,
    ViTB32,
    ViTH14,
    ViTL16,
    ViTL32,
    ViTS16,
    ViTS32,
    ViTTi16,
)
from keras_vit.weights.building import with_image_size
from keras_vit.weights.loading import load_checkpoint
from keras_vit.weights.presets import list_weights
from keras_vit.weights.saving import save_checkpoint

__all__ = [
    "SPECS",
    "BiTR50x1",
    "BiTR50x3",
    "BiTR101x1",
    "BiTR101x3",
    "BiTR152x2",
    "BiTR152x4",
    "ImageClassifier",
    "ImagePreprocessing",
    "KerasViTError",
    "R26ViTB32",
    "R26ViTS32",
    "R50ViTB16",
    "R50ViTB32",
    "R50ViTL16",
    "R50ViTL32",
    "RViTTi16",
    "ResNet",
    "ViTB8",
    "ViTB16",
    "ViTB32",
    "ViTH14",
    "ViTL16",
    "ViTL32",
    "ViTS16",
    "ViTS32",
    "ViTSpec",
    "ViTTi16",
    "VisionTransformer",
    "__version__",
    "analysis",
    "decode_predictions",
    "decoding",
    "imagenet_labels",
    "layers",
    "list_weights",
    "load_checkpoint",
    "open_model",
    "parse_resnet",
    "parse_variant",
    "preprocess_input",
    "save_checkpoint",
    "weights",
    "with_image_size",
]
