"""Hugging Face's checkpoints: ViT, DeiT and DINOv2 of transformers, as on disk.

Source: huggingface/transformers, models/vit, deit, dinov2, dinov2_with_registers. Files
are written with the names of release 4 by every release; the names inside of release 5
are read too, but for a SwiGLU, whose first layer it splits in memory.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from keras_vit.specs import image_size_pair
from keras_vit.weights.families.family import (
    QKV_BIASES,
    Family,
    WritableFamily,
    check_supported,
    gelu_of,
    known,
    lost_to_pillow,
    other_than_qkv_bias,
    pixels_of,
    qkv_biases,
    refuse_config,
    renamed,
    scaled,
)
from keras_vit.weights.families.layouts import (
    CONVOLUTION,
    LINEAR,
    ArrayRow,
    affine,
    norm,
    row,
)
from keras_vit.weights.reading import ArrayFile

if TYPE_CHECKING:
    from keras_vit.base import ImageModel
    from keras_vit.preprocessing import ImagePreprocessing


def _attention(theirs: str, ours: str) -> tuple[ArrayRow, ...]:
    rows: list[ArrayRow] = []
    for name in ("query", "key", "value"):
        rows += affine(f"{theirs}.attention.{name}.", f"{ours}/{name}", LINEAR)
    return (*rows, *affine(f"{theirs}.output.dense.", f"{ours}/out", LINEAR))


def _block() -> tuple[ArrayRow, ...]:
    theirs, ours = "encoder.layer.{i}", "encoder_block_{i}"
    return (
        *_attention(f"{theirs}.attention", f"{ours}/attention"),
        *norm(f"{theirs}.layernorm_before.", f"{ours}/norm1"),
        *norm(f"{theirs}.layernorm_after.", f"{ours}/norm2"),
        *affine(f"{theirs}.intermediate.dense.", f"{ours}/mlp/Dense_0", LINEAR),
        *affine(f"{theirs}.output.dense.", f"{ours}/mlp/Dense_1", LINEAR),
    )


HUGGING_FACE = (
    *affine("embeddings.patch_embeddings.projection.", "embedding", CONVOLUTION),
    row("embeddings.cls_token", "class_token/token"),
    # DeiT's distillation token is a register with a classifier of its own.
    row("embeddings.distillation_token", "register_tokens/tokens"),
    row("embeddings.position_embeddings", "position_embedding/embedding"),
    *_block(),
    *norm("layernorm.", "encoder_norm"),
    *affine("pooler.dense.", "pre_logits", LINEAR),
    *affine("classifier.", "head", LINEAR),
    *affine("cls_classifier.", "head", LINEAR),  # beside distillation_classifier
)


def _dinov2_block() -> tuple[ArrayRow, ...]:
    theirs, ours = "encoder.layer.{i}", "encoder_block_{i}"
    rows = [*_attention(f"{theirs}.attention", f"{ours}/attention")]
    for number in ("1", "2"):
        scale = f"layer_scale{number}"
        rows += norm(f"{theirs}.norm{number}.", f"{ours}/norm{number}")
        rows.append(row(f"{theirs}.{scale}.lambda1", f"{ours}/{scale}/gamma"))
    # The names of a GELU's layers, and of a SwiGLU's.
    for first, second in (("fc1", "fc2"), ("weights_in", "weights_out")):
        rows += affine(f"{theirs}.mlp.{first}.", f"{ours}/mlp/Dense_0", LINEAR)
        rows += affine(f"{theirs}.mlp.{second}.", f"{ours}/mlp/Dense_1", LINEAR)
    return tuple(rows)


DINOV2 = (
    *affine("embeddings.patch_embeddings.projection.", "embedding", CONVOLUTION),
    row("embeddings.cls_token", "class_token/token"),
    row("embeddings.register_tokens", "register_tokens/tokens"),
    row("embeddings.position_embeddings", "position_embedding/embedding"),
    *_dinov2_block(),
    *norm("layernorm.", "encoder_norm"),
)

# Release 5's names inside the model -> the names on disk.
_RENAMED_ATTENTION = (
    (re.compile(r"\.attention\.q_proj\."), ".attention.attention.query."),
    (re.compile(r"\.attention\.k_proj\."), ".attention.attention.key."),
    (re.compile(r"\.attention\.v_proj\."), ".attention.attention.value."),
    (re.compile(r"\.attention\.o_proj\."), ".attention.output.dense."),
)
_RENAMED = (
    *_RENAMED_ATTENTION,
    (re.compile(r"^layers\.(\d+)\."), r"encoder.layer.\1."),
    (re.compile(r"\.mlp\.fc1\."), ".intermediate.dense."),
    (re.compile(r"\.mlp\.fc2\."), ".output.dense."),
)

# Our names of what a config states.
_OPTIONS = {
    "patch_size": "patch_size",
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "num_channels": "channels",
    "layer_norm_eps": "norm_epsilon",
}
_GELUS = {"tanh": "gelu_pytorch_tanh", "exact": "gelu"}
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


class _HuggingFaceFamily(Family):
    """Arrays beside a `config.json`, and a document about the preprocessing.

    Attributes:
        model_types: Of the config, of our models. Other models, such as AST with its
            overlapping patches, have arrays of the same names.
        prefix: Regular expression of the bare model's name in a larger one.
        new_names: Release 5's names inside the model -> the names on disk.
        options: Our names of what the config states.
    """

    project = "hugging_face"
    configured = ("gelu", "heads", "norm_epsilon")
    model_types: ClassVar[tuple[str, ...]]
    prefix: ClassVar[str]
    new_names: ClassVar[tuple[tuple[re.Pattern[str], str], ...]]
    options: ClassVar[dict[str, str]]

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the bare model, as on disk -> names in the file."""
        inside = {}
        for name in names:
            bare = re.sub(rf"^(?:{self.prefix})\.", "", name)
            for pattern, replacement in self.new_names:
                bare = pattern.sub(replacement, bare)
            inside[bare] = name
        return inside

    def stated(self, file: ArrayFile, swiglu: bool) -> dict[str, Any]:
        """What the config states."""
        config = file.config
        kind = config.get("model_type", self.model_types[0])
        if kind not in self.model_types:
            rule = f"`model_type` must be one of {', '.join(self.model_types)}"
            refuse_config(file, rule, kind)
        # A SwiGLU does not read it.
        name = None if swiglu else config.get("hidden_act")
        return {
            **renamed(config, self.options),
            **qkv_biases(config),
            **gelu_of(file, name, swiglu),
        }

    def image_size(self, file: ArrayFile) -> Any:
        """`image_size` of config.json."""
        return file.config.get("image_size")

    def class_names(self, file: ArrayFile, classes: int) -> list[str] | None:
        """`id2label`, unless it holds the numbers alone."""
        labels = file.config.get("id2label", {})
        names = [labels.get(str(index)) for index in range(classes)]
        own = any(name != f"LABEL_{index}" for index, name in enumerate(names))
        return names if own else None

    def preprocessing_config(self, file: ArrayFile) -> tuple[str, Any]:
        """From the newer of two documents, where there is one."""
        name, key = "processor_config.json", "image_processor"
        if config := file.beside(name).get(key):
            return name, config
        name = "preprocessor_config.json"
        return name, file.beside(name) or None

    def preprocessing(
        self, config: dict[str, Any], model: dict[str, Any]
    ) -> dict[str, Any]:
        """The image processor's settings; its class has the defaults."""
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
            "convention": "hugging_face",
        }


class HuggingFace(_HuggingFaceFamily, WritableFamily):
    """ViT, DeiT and MSN."""

    title = "Hugging Face ViT"
    mark = "embeddings.patch_embeddings.projection.weight"
    rows = HUGGING_FACE
    defaults: ClassVar = {"gelu": "exact", "norm_epsilon": 1e-12}
    second_classifiers = ("distillation_classifier.",)
    model_types = ("vit", "deit", "vit_msn")
    prefix = "vit|deit"
    new_names = _RENAMED
    options = _OPTIONS | {"intermediate_size": "mlp_dim"}
    holds = frozenset(("gelu", "norm_epsilon", *QKV_BIASES, "prefix_positions"))

    def stated(self, file: ArrayFile, swiglu: bool) -> dict[str, Any]:
        """What the config states; the pooler's activation must be ours."""
        pooler = file.config.get("pooler_act", "tanh")
        if pooler != "tanh":
            rule = "The activation of the pooler must be 'tanh'"
            refuse_config(file, rule, pooler)
        return super().stated(file, swiglu)

    def refusals(self, model: "ImageModel") -> list[str]:
        """Its `ViTModel` reads the class token, by a pooler of its width or none."""
        found = other_than_qkv_bias(model)
        if model.gelu not in _GELUS:
            found.append(f"gelu must be one of {', '.join(map(repr, _GELUS))}")
        if model.pooling not in ("token", None):
            found.append("pooling must be 'token'")
        if model.representation_size is None:
            return found
        if model.classes is not None:
            found.append("representation_size must be None where there are classes")
        if model.representation_size != model.width:
            found.append("representation_size must be the width")
        if model.pooling != "token":
            found.append("representation_size must be None where pooling=None")
        return found

    def file_name(self, name: str, model: "ImageModel") -> str:
        """A classifier's backbone is a module of its own."""
        bare = model.classes is None or name.startswith("classifier.")
        return name if bare else f"vit.{name}"

    def documents(self, model: "ImageModel") -> dict[str, Any]:
        """`config.json` of a `ViTConfig`, and that of its image processor."""
        height, width = model.image_size
        kind = "ViTModel" if model.classes is None else "ViTForImageClassification"
        document = {
            "architectures": [kind],
            "model_type": "vit",
            **{theirs: getattr(model, ours) for theirs, ours in self.options.items()},
            "qkv_bias": model.query_bias,
            "hidden_act": _GELUS[model.gelu],
            "hidden_dropout_prob": model.dropout,
            "attention_probs_dropout_prob": model.attention_dropout,
            "image_size": height if height == width else [height, width],
            "dtype": "float32",
        }
        if model.classes is not None:
            names = model.class_names or [f"LABEL_{i}" for i in range(model.classes)]
            document["id2label"] = {str(i): name for i, name in enumerate(names)}
            document["label2id"] = {name: i for i, name in enumerate(names)}
        return {
            "config.json": document,
            "preprocessor_config.json": written_preprocessing(model),
        }

    def lost_preprocessing(self, layer: "ImagePreprocessing") -> list[str]:
        """What Pillow does not compute, and crops that one number does not describe."""
        height, width = layer.whole_size
        found = []
        if layer.resize == "small" and height != width:
            found.append("resize='small' of images that are not square")
        return found + lost_to_pillow(layer, "hugging_face")


class HuggingFaceDINOv2(_HuggingFaceFamily):
    """DINOv2, with and without registers."""

    title = "Hugging Face DINOv2"
    mark = "encoder.layer.0.layer_scale1.lambda1"
    rows = DINOV2
    holds = frozenset(QKV_BIASES)
    second_classifiers = ("classifier.",)
    second_classifier = "classifier, of class token and mean of the patches at once,"
    model_types = ("dinov2", "dinov2_with_registers")
    prefix = "dinov2|dinov2_with_registers"
    new_names = _RENAMED_ATTENTION
    options = _OPTIONS | {"num_register_tokens": "register_tokens"}

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Without the mask token, which replaces patches in pre-training alone."""
        inside = super().model_names(names)
        inside.pop("embeddings.mask_token", None)
        return inside

    def prefix_positions(self, prefix: int) -> tuple[int, ...]:
        """Registers come in after the positions are added."""
        return (1,)


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
        check_supported({"model_type": model.get("model_type")}, "model_type", False)
    named = {"image_processor_type": kind}
    check_supported(named, "image_processor_type", kind in _PROCESSORS)
    return kind


def _resize_and_crop(config: dict[str, Any], kind: str) -> dict[str, Any]:
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
    from keras_vit.preprocessing import ImagePreprocessing

    if ImagePreprocessing(crop, crop_fraction=fraction).whole_size != whole:
        raise ValueError(
            f"size={whole} with crop_size={crop}, which is not the same share of both "
            "sides"
        )
    return fraction


def written_preprocessing(model: "ImageModel") -> dict[str, Any]:
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
