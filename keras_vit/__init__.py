"""Vision Transformers for Keras: the paper's models, from `model.fit` to serving.

Importing this package registers its layers and models, so that
`keras.models.load_model` opens the files they were saved in.
"""

from keras_vit import decoding, layers
from keras_vit._version import __version__
from keras_vit.models import (
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
from keras_vit.preprocessing import (
    ImagePreprocessing,
    decode_predictions,
    imagenet_labels,
    preprocess_input,
)
from keras_vit.specs import SPECS, ViTSpec, parse_variant

__all__ = [
    "SPECS",
    "ImagePreprocessing",
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
    "decode_predictions",
    "decoding",
    "imagenet_labels",
    "layers",
    "parse_variant",
    "preprocess_input",
]
