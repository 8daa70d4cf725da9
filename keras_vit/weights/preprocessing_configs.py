"""Preprocessing that the documents beside a checkpoint state."""

import logging
from typing import Any

from keras_vit.preprocessing import ImagePreprocessing
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.grids import config_image_size

_LOG = logging.getLogger("keras_vit")


def preprocessing_arguments(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Preprocessing of a checkpoint's images, or None where nothing states it.

    Warns where the documents state what `ImagePreprocessing` does not compute.

    Returns:
        Arguments of `ImagePreprocessing` except `image_size`.
    """
    family, file = checkpoint.described, checkpoint.file
    name, config = family.preprocessing_config(file)
    if config is None:
        return None
    try:
        policy = family.preprocessing(config, file.config)
        size = policy.pop("image_size", None)
        ImagePreprocessing(1, **policy)  # raises for values of the wrong kind
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as e:
        _LOG.warning(
            "%s: ignoring its preprocessing config, as `ImagePreprocessing` does not "
            "support what %s states (%s: %s)",
            *(file.path, name, type(e).__name__, e),
        )
        return None
    reasons = family.preprocessing_differences(policy)
    model_size = config_image_size(checkpoint)
    if size and model_size and size != model_size:
        reasons.append(
            f"is for images of {size[0]}x{size[1]} pixels, and the model for "
            f"{model_size[0]}x{model_size[1]}, which keep the same share of an image; "
            f"image_size={size} gives those of the config"
        )
    for reason in reasons:
        _LOG.warning("%s: %s %s", file.path, name, reason)
    return policy
