"""What the config beside a checkpoint states, and no array of it shows."""

import re
from typing import Any, NoReturn

from keras_vit.specs import image_size_pair
from keras_vit.weights.checkpoint import FAMILIES, Checkpoint
from keras_vit.weights.files import WeightsFileError

_GELUS = {
    "gelu": "exact",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_tanh": "tanh",
}
# timm's models that were trained with the approximation and compute it.
_TIMM_TANH = re.compile(
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_"
    r"|vit_large_patch16_siglip_(gap_)?512"
)
# timm's architectures whose pooling takes in the prefix tokens, by their names alone.
_TIMM_POOLS_PREFIX = re.compile(r"test_vit3")
# What `model_type` says of the models of transformers that compute a ViT. Others, such
# as AST with its overlapping patches, have arrays of the same names.
_MODEL_TYPES = ("vit", "deit", "vit_msn")
# What only the config of a family tells.
_CONFIGURED = {
    "timm": ("gelu", "heads", "pooling"),
    "hugging_face": ("gelu", "heads", "norm_epsilon"),
    "keras_hub": ("norm_epsilon", "pooling"),
}


def assumed(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The arguments that are only usual, for want of a config that tells them."""
    if checkpoint.family not in _CONFIGURED or checkpoint.file.config:
        return ()
    return _CONFIGURED[checkpoint.family]


def settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """What no array tells: the flavour of GELU and the epsilon of LayerNorm."""
    family, config = FAMILIES[checkpoint.family], checkpoint.file.config
    name, epsilon = None, family.norm_epsilon
    if checkpoint.family == "hugging_face":
        kind = config.get("model_type", "vit")
        if kind not in _MODEL_TYPES:
            rule = f"`model_type` must be one of {', '.join(_MODEL_TYPES)}"
            _refuse(checkpoint, rule, kind)
        name = config.get("hidden_act")
        epsilon = config.get("layer_norm_eps", epsilon)
    elif checkpoint.family == "keras_hub":
        epsilon = config.get("config", {}).get("layer_norm_epsilon", epsilon)
    elif checkpoint.family == "timm":
        architecture = config.get("architecture", "")
        name = "gelu_tanh" if _TIMM_TANH.match(architecture) else None
        name = "quick_gelu" if "quickgelu" in architecture else name
        name = config.get("model_args", {}).get("act_layer", name)
    if name is not None and name not in _GELUS:
        _refuse(checkpoint, f"The activation must be one of {', '.join(_GELUS)}", name)
    pooler = config.get("pooler_act", "tanh")
    if checkpoint.family == "hugging_face" and pooler != "tanh":
        _refuse(checkpoint, "The activation of the pooler must be 'tanh'", pooler)
    return {"gelu": _GELUS[name] if name else family.gelu, "norm_epsilon": epsilon}


def class_names(checkpoint: Checkpoint, classes: int | None) -> dict[str, Any]:
    """Names of the classes, where a config has one of its own for each."""
    config, names = checkpoint.file.config, None
    if checkpoint.family == "hugging_face":
        labels = config.get("id2label", {})
        names = [labels.get(str(index)) for index in range(classes or 0)]
    elif checkpoint.family in ("timm", "timm_bit"):
        names = config.get("pretrained_cfg", {}).get("label_names")
    if not names or len(names) != classes or None in names:
        return {}
    own = any(name != f"LABEL_{index}" for index, name in enumerate(names))
    return {"class_names": names} if own else {}


def pooling(checkpoint: Checkpoint) -> tuple[str | None, bool]:
    """How a config calls the pooling, and whether all tokens take part or patches."""
    if checkpoint.family.startswith("timm"):
        config = checkpoint.file.config
        options = config.get("model_args", {})
        name = options.get("global_pool", config.get("global_pool"))
        implied = _TIMM_POOLS_PREFIX.match(config.get("architecture", ""))
        return name, options.get("pool_include_prefix", bool(implied))
    if checkpoint.family == "keras_hub":
        task = checkpoint.file.beside("task.json").get("config", {})
        return task.get("pooling"), True
    return None, True


def heads(checkpoint: Checkpoint) -> int | None:
    """The number of attention heads, where a config says."""
    config = checkpoint.file.config
    return config.get("num_attention_heads") or config.get("model_args", {}).get(
        "num_heads"
    )


def check_patch(checkpoint: Checkpoint, name: str, sides: tuple[int, int]) -> None:
    """WeightsFileError for patches that are not square, or not those of the config.

    Args:
        checkpoint: An open checkpoint.
        name: Name of the kernel that reads a patch.
        sides: (height, width) of that kernel.
    """
    config = checkpoint.file.config
    places: dict[str, Any] = {
        "hugging_face": config,
        "timm": config.get("model_args", {}),
        "keras_hub": config.get("config", {}),
    }
    size = places.get(checkpoint.family, {}).get("patch_size", sides)
    size = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    if sides[0] != sides[1]:
        raise WeightsFileError(
            f"Patches must be square. Received: `{name}` with patches of {sides} pixels"
            f" in {str(checkpoint.file.path)!r}"
        )
    if size != sides:
        rule = f"`patch_size` must be {sides[0]}, the side of `{name}`"
        _refuse(checkpoint, rule, size)


def image_size(checkpoint: Checkpoint) -> tuple[int, int] | None:
    """(H, W) from a config, where there is one that says."""
    config = checkpoint.file.config
    size: Any = None
    if checkpoint.family == "hugging_face":
        size = config.get("image_size")
    elif checkpoint.family == "keras_hub":
        size = config.get("config", {}).get("image_shape")
    elif checkpoint.family == "timm":
        size = config.get("model_args", {}).get("img_size")
        size = size or config.get("pretrained_cfg", {}).get("input_size", [None])[1:]
    if not size:
        return None
    try:
        return image_size_pair(size if isinstance(size, int) else (size[0], size[1]))
    except ValueError as error:
        raise TypeError(error) from error


def _refuse(checkpoint: Checkpoint, rule: str, received: Any) -> NoReturn:
    raise WeightsFileError(
        f"{rule}. Received: {received!r} in the config of {str(checkpoint.file.path)!r}"
    )
