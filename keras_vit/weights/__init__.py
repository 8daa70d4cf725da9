"""Published checkpoints in and out: families, files, resampling, the registry."""

from keras_vit.weights.build import with_image_size
from keras_vit.weights.checkpoint import FAMILIES, Checkpoint, open_checkpoint
from keras_vit.weights.files import WeightsFileError
from keras_vit.weights.load import load_checkpoint
from keras_vit.weights.registry import PublishedWeights, list_weights
from keras_vit.weights.report import CheckpointError, LoadReport
from keras_vit.weights.resample import (
    adapt_channels,
    resample_patches,
    resample_positions,
)
from keras_vit.weights.save import save_checkpoint

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
