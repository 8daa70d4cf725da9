"""What an image processor of transformers does, as arguments of our preprocessing.

Source: huggingface/transformers, models/*/image_processing_*.py.
"""

from typing import TYPE_CHECKING

from keras_vit.specs import image_size_pair
from keras_vit.typing import JSON
from keras_vit.weights.families.family import (
    check_supported,
    known,
    pixels_of,
    scaled,
)

if TYPE_CHECKING:
    from keras_vit.base import ImageModel

# PIL's numbers for its filters.
_FILTERS = {0: "nearest", 1: "lanczos3", 2: "bilinear", 3: "bicubic"}
# What transformers assumes of keys that are left out, by the processor's class.
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
_IMAGENET = {
    **_VIT,
    "image_mean": (0.485, 0.456, 0.406),
    "image_std": (0.229, 0.224, 0.225),
}
_PROCESSORS: dict[str, dict[str, JSON]] = {
    "BeitImageProcessor": _BEIT,
    "BitImageProcessor": _CLIP,
    "CLIPImageProcessor": _CLIP,
    "ConvNextImageProcessor": _CONVNEXT,
    "DINOv3ViTImageProcessor": _IMAGENET,
    "DeiTImageProcessor": _DEIT,
    "SiglipImageProcessor": _BEIT,
    "ViTImageProcessor": _VIT,
}
# The processor that a config means by its model where it names none.
_PROCESSOR_OF = {
    "beit": "BeitImageProcessor",
    "clip": "CLIPImageProcessor",
    "clip_vision_model": "CLIPImageProcessor",
    "data2vec-vision": "BeitImageProcessor",
    "deit": "DeiTImageProcessor",
    "dinov2": "BitImageProcessor",
    "dinov2_with_registers": "BitImageProcessor",
    "ijepa": "ViTImageProcessor",
    "siglip": "SiglipImageProcessor",
    "siglip_vision_model": "SiglipImageProcessor",
    "vit": "ViTImageProcessor",
    "vit_mae": "ViTImageProcessor",
    "vit_msn": "ViTImageProcessor",
}
# The processors whose `default_to_square` is false: one number is the shorter side.
_SHORTER_SIDE = ("Bit", "CLIP", "ConvNext", "Siglip")


def read_preprocessing(
    config: dict[str, JSON], model: dict[str, JSON]
) -> dict[str, JSON]:
    """Arguments of `ImagePreprocessing` by a processor's settings.

    Its class has the defaults. See `Family.preprocessing`.
    """
    kind = _processor_class(config, model)
    config = _PROCESSORS[kind] | config
    check_supported(config, "do_resize", config["do_resize"])
    for key in ("do_pad", "do_flip_channel_order", "use_square_size"):
        check_supported(config, key, not config.get(key))
    for key, used in (
        ("rescale_factor", config["do_rescale"]),
        ("image_mean", config["do_normalize"]),
        ("image_std", config["do_normalize"]),
    ):
        check_supported(config, key, not used or config[key] is not None)
    scale = config["rescale_factor"] if config["do_rescale"] else 1
    normalized = config["do_normalize"]
    return {
        "mean": scaled(config["image_mean"] if normalized else 0.0, 1 / scale),
        "std": scaled(config["image_std"] if normalized else 1.0, 1 / scale),
        "interpolation": known(config, "resample", _FILTERS),
        "antialias": True,  # as PIL
        **_resize_and_crop(config, kind.removesuffix("ImageProcessor")),
        # DINOv3's resizes numbers from 0 to 1, which nothing rounds.
        "convention": "big_vision" if kind.startswith("DINOv3") else "hugging_face",
    }


def _processor_class(config: dict[str, JSON], model: dict[str, JSON]) -> str:
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
        check_supported({"model_type": model.get("model_type")}, "model_type", False)
    named = {"image_processor_type": kind}
    check_supported(named, "image_processor_type", kind in _PROCESSORS)
    return kind


def _resize_and_crop(config: dict[str, JSON], kind: str) -> dict[str, JSON]:
    """`resize`, `crop_fraction` and size of a complete config."""
    size = config["size"]
    square = config.get("default_to_square", kind not in _SHORTER_SIDE)
    if isinstance(size, int) and not square:
        size = {"shortest_edge": size}
    resize = "small" if isinstance(size, dict) and "shortest_edge" in size else "plain"
    whole = _height_and_width(size)
    crop = _height_and_width(config["crop_size"]) if config["do_center_crop"] else whole
    if kind == "ConvNext":
        # It crops by itself, and only images below 384 pixels.
        check_supported(config, "do_center_crop", not config["do_center_crop"])
        check_supported(config, "size", resize == "small")
        if whole[0] < 384:
            side = int(whole[0] / config["crop_pct"])
            whole = side, side
        else:
            resize = "plain"
    elif resize == "small":
        # The other side would be as long as the image's ratio makes it.
        check_supported(config, "do_center_crop", config["do_center_crop"])
    return {
        "resize": resize,
        "crop_fraction": _fraction(crop, whole),
        "image_size": crop,
    }


def _height_and_width(size: JSON) -> tuple[int, int]:
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
    from keras_vit.preprocessing import ImagePreprocessing

    if ImagePreprocessing(crop, crop_fraction=fraction).whole_size != whole:
        raise ValueError(
            f"size={whole} with crop_size={crop}, which is not the same share of both "
            "sides"
        )
    return fraction


def written_preprocessing(model: "ImageModel") -> dict[str, JSON]:
    """`preprocessor_config.json`."""
    layer, mean, std = pixels_of(model)
    (height, width), (rows, columns) = layer.image_size, layer.whole_size
    size: dict[str, int] = {"height": rows, "width": columns}
    kind, crop = "ViTImageProcessor", {}
    if layer.resize == "small" and rows == columns:
        kind, size = "BitImageProcessor", {"shortest_edge": rows}
    elif (rows, columns) != (height, width):
        kind = "DeiTImageProcessor"
    if kind != "ViTImageProcessor":
        crop = {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    numbers = {ours: theirs for theirs, ours in _FILTERS.items()}
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
