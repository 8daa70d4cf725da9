"""Preprocessing in the configs of timm, Hugging Face and keras-hub."""

import logging
from typing import Any

from keras_vit.preprocessing import ImagePreprocessing
from keras_vit.specs import image_size_pair
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.config import config_image_size

_LOG = logging.getLogger("keras_vit")
# PIL's numbers for its filters, and timm's names.
_PIL = {0: "nearest", 1: "lanczos3", 2: "bilinear", 3: "bicubic"}
_TIMM = {
    "nearest": "nearest",
    "lanczos": "lanczos3",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
}
_CROP_MODES = {"center": "small", "squash": "plain"}
# What timm assumes of keys that are left out.
_TIMM_DEFAULTS = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "interpolation": "bicubic",
    "crop_pct": 0.875,
    "crop_mode": "center",
}
# What transformers assumes of them, by the processor's class.
_VIT = {
    "do_resize": True,
    "size": {"height": 224, "width": 224},
    "resample": 2,
    "do_center_crop": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": 0.5,
    "image_std": 0.5,
}
_BEIT = {**_VIT, "resample": 3, "crop_size": 224}
_DEIT = {**_BEIT, "do_center_crop": True, "size": {"height": 256, "width": 256}}
_CLIP = {
    **{**_DEIT, "size": {"shortest_edge": 224}},
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
_CONVNEXT = {**_VIT, "resample": 3, "size": {"shortest_edge": 384}, "crop_pct": 0.875}
_PROCESSORS: dict[str, dict[str, Any]] = {
    "BeitImageProcessor": _BEIT,
    "BitImageProcessor": _CLIP,
    "CLIPImageProcessor": _CLIP,
    "ConvNextImageProcessor": _CONVNEXT,
    "DeiTImageProcessor": _DEIT,
    "SiglipImageProcessor": _BEIT,
    "ViTImageProcessor": _VIT,
}
# The processor that a config means by its model where it names none.
_PROCESSOR_OF = {
    "deit": "DeiTImageProcessor",
    "dinov2": "BitImageProcessor",
    "vit": "ViTImageProcessor",
    "vit_msn": "ViTImageProcessor",
}
# The processors whose `default_to_square` is false: one number is the shorter side.
_SHORTER_SIDE = ("Bit", "CLIP", "ConvNext", "Siglip")
# Where the families' configs are: files in the order of preference, and keys in them.
_SOURCES = {
    "timm": (("config.json", "pretrained_cfg"),),
    "hugging_face": (
        ("processor_config.json", "image_processor"),
        ("preprocessor_config.json", None),
    ),
    "keras_hub": (("image_converter.json", "config"),),
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
    name, config = _config_beside(checkpoint)
    if not config:
        return None
    try:
        policy = readers[checkpoint.family](config, checkpoint.file.config)
        size = policy.pop("image_size", None)
        ImagePreprocessing(1, **policy)  # raises for values of the wrong kind
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as e:
        _LOG.warning(
            "%s: ignoring its preprocessing config, as `ImagePreprocessing` does not "
            "support what %s states (%s: %s)",
            *(checkpoint.file.path, name, type(e).__name__, e),
        )
        return None
    _warn_of_differences(checkpoint, name, policy, size)
    return policy


def _warn_of_differences(
    checkpoint: Checkpoint,
    name: str,
    policy: dict[str, Any],
    size: tuple[int, int] | None,
) -> None:
    """Warn of images that come out otherwise than in the config's own project."""
    model_size = config_image_size(checkpoint)
    reasons = []
    if size and model_size and size != model_size:
        reasons.append(
            f"is for images of {size[0]}x{size[1]} pixels, and the model for "
            f"{model_size[0]}x{model_size[1]}, which keep the same share of an image; "
            f"image_size={size} gives those of the config"
        )
    if checkpoint.family == "keras_hub" and policy["resize"] == "small":
        reasons.append(
            "crops before it resizes, and `ImagePreprocessing` after: pixels differ"
        )
    if checkpoint.family.startswith("timm") and policy["interpolation"] == "nearest":
        reasons.append('resizes by interpolation="nearest": single rows differ')
    for reason in reasons:
        _LOG.warning("%s: %s %s", checkpoint.file.path, name, reason)


def _config_beside(checkpoint: Checkpoint) -> tuple[str, Any]:
    """The name and content of the first config about preprocessing, if there is one."""
    project = checkpoint.family.removesuffix("_bit").removesuffix("_dinov2")
    for name, key in _SOURCES[project]:
        document = checkpoint.file.beside(name)
        if config := document.get(key) if key else document:
            return name, config
    return "", None


def _from_timm(config: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    # Zero and null count as left out.
    config = _TIMM_DEFAULTS | {key: value for key, value in config.items() if value}
    return {
        "mean": _times(config["mean"], 255),
        "std": _times(config["std"], 255),
        "interpolation": _known(config, "interpolation", _TIMM),
        "antialias": True,  # as PIL
        "crop_fraction": config["crop_pct"],
        "resize": _known(config, "crop_mode", _CROP_MODES),
        "convention": "timm",
        "image_size": _timm_size(config),
    }


def _timm_size(config: dict[str, Any]) -> tuple[int, int] | None:
    """(H, W) of `input_size`, which is (channels, H, W)."""
    size = config.get("input_size")
    return (int(size[1]), int(size[2])) if size else None


def _known(config: dict[str, Any], key: str, names: dict[Any, str]) -> str:
    """Our name of a value."""
    _check(config, key, config[key] in names)
    return names[config[key]]


def _check(config: dict[str, Any], key: str, supported: bool) -> None:
    if not supported:
        raise ValueError(f"{key}={config[key]!r}")


def _from_hugging_face(config: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    kind = _processor_class(config, model)
    config = _PROCESSORS[kind] | config
    _check(config, "do_resize", config["do_resize"])
    for key in ("do_pad", "do_flip_channel_order", "use_square_size"):
        _check(config, key, not config.get(key))
    for key, used in (
        ("rescale_factor", config["do_rescale"]),
        ("image_mean", config["do_normalize"]),
        ("image_std", config["do_normalize"]),
    ):
        _check(config, key, not used or config[key] is not None)
    scale = config["rescale_factor"] if config["do_rescale"] else 1
    normalized = config["do_normalize"]
    return {
        "mean": _times(config["image_mean"] if normalized else 0.0, 1 / scale),
        "std": _times(config["image_std"] if normalized else 1.0, 1 / scale),
        "interpolation": _known(config, "resample", _PIL),
        "antialias": True,  # as PIL
        **_resize_and_crop(config, kind.removesuffix("ImageProcessor")),
        "convention": "hugging_face",
    }


def _processor_class(config: dict[str, Any], model: dict[str, Any]) -> str:
    """The class of transformers' AutoImageProcessor for a config and its model's."""
    legacy = config.get("feature_extractor_type") or ""
    kind = (
        config.get("image_processor_type")
        or legacy.replace("FeatureExtractor", "ImageProcessor")
        or model.get("image_processor_type")
        or _PROCESSOR_OF.get(model.get("model_type", ""), "")
    ).removesuffix("Fast")
    kind = kind.removesuffix("Pil")
    if not kind:
        _check({"model_type": model.get("model_type")}, "model_type", False)
    _check({"image_processor_type": kind}, "image_processor_type", kind in _PROCESSORS)
    return kind


def _resize_and_crop(config: dict[str, Any], kind: str) -> dict[str, Any]:
    """`resize`, `crop_fraction` and size of a complete config of Hugging Face."""
    size = config["size"]
    square = config.get("default_to_square", kind not in _SHORTER_SIDE)
    if isinstance(size, int) and not square:
        size = {"shortest_edge": size}
    resize = "small" if isinstance(size, dict) and "shortest_edge" in size else "plain"
    whole = _height_and_width(size)
    crop = _height_and_width(config["crop_size"]) if config["do_center_crop"] else whole
    if kind == "ConvNext":
        # It crops by itself, and only images below 384 pixels.
        _check(config, "do_center_crop", not config["do_center_crop"])
        _check(config, "size", resize == "small")
        if whole[0] < 384:
            side = int(whole[0] / config["crop_pct"])
            whole = side, side
        else:
            resize = "plain"
    elif resize == "small":
        # The other side would be as long as the image's ratio makes it.
        _check(config, "do_center_crop", config["do_center_crop"])
    return {
        "resize": resize,
        "crop_fraction": _fraction(crop, whole),
        "image_size": crop,
    }


def _height_and_width(size: Any) -> tuple[int, int]:
    """(H, W) of `size` or `crop_size`, whose shorter side counts for both."""
    if isinstance(size, dict):
        stated = {key: value for key, value in size.items() if value is not None}
        if stated.keys() == {"shortest_edge"}:
            return image_size_pair(stated["shortest_edge"])
        if stated.keys() != {"height", "width"}:
            raise ValueError(f"size={size!r}")
        size = stated["height"], stated["width"]
    return image_size_pair(size)


def _fraction(crop: tuple[int, int], whole: tuple[int, int]) -> float:
    """The `crop_fraction` for a crop of a resized image."""
    if crop[0] > whole[0] or crop[1] > whole[1]:
        raise ValueError(f"crop_size={crop} of smaller images, size={whole}: it pads")
    fraction = min(1.0, *(part / side for part, side in zip(crop, whole, strict=True)))
    if ImagePreprocessing(crop, crop_fraction=fraction).whole_size != whole:
        raise ValueError(
            f"size={whole} with crop_size={crop}, which is not the same share of both "
            "sides"
        )
    return fraction


def _from_keras_hub(config: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
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


def _of(model) -> ImagePreprocessing:
    """The model's preprocessing, or that of Google's models if it has none."""
    return model.preprocessing or ImagePreprocessing(model.image_size)


def lost_settings(model, family: str) -> list[str]:
    """Describe what a family's files cannot hold of the model's preprocessing."""
    if model.preprocessing is None:
        return []
    layer, found = model.preprocessing, []
    config = layer.get_config()
    if family == "google":
        usual = ImagePreprocessing(model.image_size).get_config()
        names = ("mean", "std", "interpolation", "antialias", "crop_fraction", "resize")
        return [f"{n}={config[n]!r}" for n in names if config[n] != usual[n]]
    if layer.interpolation == "lanczos5":
        found.append("interpolation='lanczos5'")
    if not layer.antialias and layer.interpolation != "nearest":
        found.append("antialias=False")
    height, width = layer.whole_size
    if family == "hugging_face" and layer.resize == "small" and height != width:
        found.append("resize='small' of images that are not square")
    if layer.convention != family:
        found.append(f"convention={layer.convention!r}")
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
        "crop_pct": _crop_pct(layer),
        "crop_mode": {ours: theirs for theirs, ours in _CROP_MODES.items()}[
            layer.resize
        ],
    }


def _crop_pct(layer: ImagePreprocessing) -> float:
    """The fraction from which timm, which corrects no error, gets the whole size."""
    fraction = layer.crop_fraction
    floored = tuple(int(side / fraction) for side in layer.image_size)
    return fraction if floored == layer.whole_size else fraction * (1 - 1e-6)


def hugging_face_preprocessor(model) -> dict[str, Any]:
    """Hugging Face's `preprocessor_config.json`."""
    layer = _of(model)
    mean, std = _normalization(layer, model.channels)
    (height, width), (rows, columns) = layer.image_size, layer.whole_size
    size: dict[str, int] = {"height": rows, "width": columns}
    kind, crop = "ViTImageProcessor", {}
    if layer.resize == "small" and rows == columns:
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
