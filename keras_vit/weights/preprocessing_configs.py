"""Preprocessing in the configs of timm, Hugging Face and keras-hub."""

import logging
from typing import Any

from keras_vit.preprocessing import ImagePreprocessing
from keras_vit.weights.checkpoint import Checkpoint

_LOG = logging.getLogger("keras_vit")
# PIL's numbers for its filters, and timm's names.
_PIL = {0: "nearest", 1: "lanczos3", 2: "bilinear", 3: "bicubic"}
_TIMM = {
    "nearest": "nearest",
    "lanczos": "lanczos3",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
}
# Families whose files state nothing, and whose code maps pixels to [-1, 1].
MINUS_ONE_TO_ONE = ("google", "big_vision", "bit")


def preprocessing_arguments(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Preprocessing in the configs beside a checkpoint, or None.

    Warns where they state what `ImagePreprocessing` does not compute.

    Returns:
        Arguments of `ImagePreprocessing` except `image_size`.
    """
    readers = {
        "timm": _from_timm,
        "timm_bit": _from_timm,
        "hugging_face": _from_hugging_face,
        "hugging_face_dinov2": _from_hugging_face,
        "keras_hub": _from_keras_hub,
    }
    if checkpoint.family not in readers:
        return None
    try:
        policy = readers[checkpoint.family](checkpoint)
        if policy is not None:
            ImagePreprocessing(1, **policy)  # raises for values of the wrong kind
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        _LOG.warning(
            "%s: ignoring its preprocessing config, which `ImagePreprocessing` does "
            "not support (%s: %s)",
            *(checkpoint.file.path, type(error).__name__, error),
        )
        return None
    return policy


def _from_timm(checkpoint: Checkpoint) -> dict[str, Any] | None:
    config = checkpoint.file.config.get("pretrained_cfg", {})
    if "mean" not in config or "std" not in config:
        return None
    mode = config.get("crop_mode", "center")
    return {
        "mean": _times(config["mean"], 255),
        "std": _times(config["std"], 255),
        "interpolation": _TIMM[config.get("interpolation", "bicubic")],
        "antialias": True,  # as PIL
        "crop_fraction": config.get("crop_pct", 0.875),
        "resize": {"center": "small", "squash": "plain"}[mode],
    }


def _from_hugging_face(checkpoint: Checkpoint) -> dict[str, Any] | None:
    config = checkpoint.file.beside("preprocessor_config.json")
    if not config:
        return None
    scale = config.get("rescale_factor", 1 / 255)
    scale = scale if config.get("do_rescale", True) else 1
    normalized = config.get("do_normalize", True)
    mean = config.get("image_mean", [0.5] * 3) if normalized else 0.0
    std = config.get("image_std", [0.5] * 3) if normalized else 1.0
    size = config.get("size", 224)
    crop = config.get("crop_size", size) if config.get("do_center_crop") else size
    return {
        "mean": _times(mean, 1 / scale),
        "std": _times(std, 1 / scale),
        "interpolation": _PIL[config.get("resample", 2)],
        "antialias": True,  # as PIL
        "crop_fraction": _side(crop) / _side(size),
        "resize": "small" if "shortest_edge" in _mapping(size) else "plain",
    }


def _from_keras_hub(checkpoint: Checkpoint) -> dict[str, Any] | None:
    config = checkpoint.file.beside("image_converter.json").get("config")
    if config is None:
        return None
    if config.get("pad_to_aspect_ratio"):
        raise ValueError("pad_to_aspect_ratio=True")
    scale, offset = config.get("scale") or 1.0, config.get("offset") or 0.0
    scales = scale if isinstance(scale, list) else [scale]
    offsets = offset if isinstance(offset, list) else [offset] * len(scales)
    scales = scales * (len(offsets) // len(scales))
    pairs = list(zip(scales, offsets, strict=True))
    return {
        "mean": _one_or_all([-offset / scale for scale, offset in pairs]),
        "std": _one_or_all([1 / scale for scale, _ in pairs]),
        "interpolation": config.get("interpolation", "bilinear"),
        "antialias": config.get("antialias", False),
        "resize": "small" if config.get("crop_to_aspect_ratio", True) else "plain",
    }


def _times(values: Any, factor: float) -> Any:
    values = values if isinstance(values, (list, tuple)) else [values]
    return _one_or_all([value * factor for value in values])


def _one_or_all(values: list[float]) -> float | tuple[float, ...]:
    """One number if all channels have the same, without rounding errors."""
    rounded = tuple(round(value, 9) for value in values)
    return rounded if len(set(rounded)) > 1 else rounded[0]


def _mapping(size: Any) -> dict[str, Any]:
    return size if isinstance(size, dict) else {"height": size}


def _side(size: Any) -> int:
    sides = _mapping(size)
    return sides["shortest_edge"] if "shortest_edge" in sides else sides["height"]


def _of(model) -> ImagePreprocessing:
    """The model's preprocessing, or that of Google's models if it has none."""
    return model.preprocessing or ImagePreprocessing(model.image_size)


def lost_settings(model, family: str) -> list[str]:
    """Describe what a family's files cannot hold of the model's preprocessing."""
    if model.preprocessing is None:
        return []
    config, found = model.preprocessing.get_config(), []
    if family == "google":
        usual = ImagePreprocessing(model.image_size).get_config()
        names = ("mean", "std", "interpolation", "antialias", "crop_fraction", "resize")
        return [f"{n}={config[n]!r}" for n in names if config[n] != usual[n]]
    if config["interpolation"] == "lanczos5":
        found.append("interpolation='lanczos5'")
    if not config["antialias"] and config["interpolation"] != "nearest":
        found.append("antialias=False")
    height, width = model.image_size
    if family == "hugging_face" and config["resize"] == "small" and height != width:
        found.append("resize='small' of images that are not square")
    return found


def _normalization(layer: ImagePreprocessing, channels: int) -> tuple[list[float], ...]:
    """Mean and standard deviation of each channel, of pixels from 0 to 1."""
    pairs = (
        value if isinstance(value, tuple) else (value,) * channels
        for value in (layer.mean, layer.std)
    )
    return tuple([round(value / 255, 12) for value in values] for values in pairs)


def timm_preprocessing(model) -> dict[str, Any]:
    """The part of timm's `pretrained_cfg` about preprocessing."""
    layer = _of(model)
    mean, std = _normalization(layer, model.channels)
    names = {ours: theirs for theirs, ours in _TIMM.items()}
    return {
        "mean": mean,
        "std": std,
        "interpolation": names.get(layer.interpolation, "lanczos"),
        "crop_pct": layer.crop_fraction,
        "crop_mode": {"small": "center", "plain": "squash"}[layer.resize],
    }


def hugging_face_preprocessor(model) -> dict[str, Any]:
    """Hugging Face's `preprocessor_config.json`."""
    layer = _of(model)
    mean, std = _normalization(layer, model.channels)
    (height, width), (rows, columns) = layer.image_size, layer.resize_size(1, 1)
    size: dict[str, int] = {"height": rows, "width": columns}
    kind, crop = "ViTImageProcessor", {}
    if layer.resize == "small" and height == width:
        kind, size = "BitImageProcessor", {"shortest_edge": rows}
    elif (rows, columns) != (height, width):
        kind = "DeiTImageProcessor"
    if kind != "ViTImageProcessor":
        crop = {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    numbers = {ours: theirs for theirs, ours in _PIL.items()}
    return {
        "image_processor_type": kind,
        "do_resize": True,
        "size": size,
        "resample": numbers.get(layer.interpolation, numbers["lanczos3"]),
        **crop,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }
