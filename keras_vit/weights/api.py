"""The names of `keras_vit.weights`."""

from keras_vit.errors import CheckpointError, WeightsFileError
from keras_vit.weights.building import with_image_size
from keras_vit.weights.checkpoint import (
    Checkpoint,
    LoadReport,
    open_checkpoint,
)
from keras_vit.weights.families.registry import FAMILIES
from keras_vit.weights.loading import load_checkpoint
from keras_vit.weights.presets import PublishedWeights, list_weights
from keras_vit.weights.resampling import (
    adapt_channels,
    resample_patches,
    resample_positions,
)
from keras_vit.weights.saving import save_checkpoint

__all__ = [
    "FAMILIES",
    "Checkpoint",
    "CheckpointError",
    "LoadReport",
    "PublishedWeights",
    "WeightsFileError",
    "adapt_channels",
    "list_weights",
    "load_checkpoint",
    "open_checkpoint",
    "resample_patches",
    "resample_positions",
    "save_checkpoint",
    "with_image_size",
]
