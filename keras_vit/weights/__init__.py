"""Checkpoints of Google, timm, Hugging Face and others: read, resampled, written."""

from typing import TYPE_CHECKING

from keras_vit.common.lazy import is_command, names_on_first_use

if TYPE_CHECKING or not is_command():
    from keras_vit.weights.api import *
    from keras_vit.weights.api import __all__
else:
    __getattr__ = names_on_first_use(__name__)
