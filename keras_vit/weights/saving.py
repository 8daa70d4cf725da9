"""Save a model as a checkpoint of Google, timm or Hugging Face."""

import contextlib
import json
import os
import pathlib
import warnings
import zipfile
from typing import Any

import keras
import numpy as np

from keras_vit.base import check_model
from keras_vit.checks import check_choice
from keras_vit.common.atomic_files import replacing
from keras_vit.option_rows import rows
from keras_vit.options import ViTOptions
from keras_vit.weights import config, preprocessing_configs
from keras_vit.weights.checkpoint import FAMILIES, CheckpointError
from keras_vit.weights.families.layouts import Row, match_ours
from keras_vit.weights.preprocessing_configs import (
    hugging_face_preprocessor,
    timm_preprocessing,
)

ROWS = rows(ViTOptions)
_TIMM_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_TIMM_RESNETS = {
    ((3, 4, 6, 3), 1): "resnetv2_50x1_bit",
    ((3, 4, 6, 3), 3): "resnetv2_50x3_bit",
    ((3, 4, 23, 3), 1): "resnetv2_101x1_bit",
    ((3, 4, 23, 3), 3): "resnetv2_101x3_bit",
    ((3, 8, 36, 3), 2): "resnetv2_152x2_bit",
    ((3, 8, 36, 3), 4): "resnetv2_152x4_bit",
}
_TIMM_POOLINGS = {"token": "token", "avg": "avg", "map": "map", None: ""}


def incompatibilities(model, family: str) -> list[str]:
    """Reasons why a family's code would compute something else; empty for none.

    Args:
        model: A `VisionTransformer` or a `ResNet`.
        family: `"google"`, `"timm"` or `"hugging_face"`.
    """
    found = []

    def need(holds: bool, wanted: str) -> None:
        if not holds:
            found.append(wanted)

    if hasattr(model, "blocks"):
        need(family != "hugging_face", "Hugging Face's ViT is no ResNet")
        known = family != "timm" or (model.blocks, model.width_factor) in _TIMM_RESNETS
        sizes = f"blocks={model.blocks}, width_factor={model.width_factor}"
        need(known, f"timm has no BiT with {sizes}")
        return found
    learned = model.position_embedding == "learned_1d"
    once = model.position_placement in (None, "stem")
    need(learned and once, "position_embedding must be 'learned_1d' at the stem")
    need(model.attention == "full", "attention must be 'full'")
    if family == "google":
        need(model.gelu == "tanh", "gelu must be 'tanh', which its code computes")
        need(not model.swiglu, "swiglu must be False")
        need(model.qkv_bias, "qkv_bias must be True")
    if family in ("google", "timm"):
        need(model.norm_epsilon == 1e-6, "norm_epsilon must be 1e-6, its own")
    if family == "google":
        need(model.pooling != "map", "pooling must not be 'map'")
        need(
            model.class_token == (model.pooling != "avg"),
            "there must be a class token, but not where pooling='avg'",
        )
    if family == "hugging_face":
        need(model.pooling in ("token", None), "pooling must be 'token'")
        need(model.class_token, "there must be a class token")
        need(model.resnet_blocks is None, "resnet_blocks must be None")
        both = model.representation_size is not None and model.classes is not None
        need(not both, "representation_size must be None where there are classes")
        pooler = model.representation_size in (None, model.width)
        need(pooler, "representation_size must be the width")
        pooled = model.representation_size is None or model.pooling == "token"
        need(pooled, "representation_size must be None where pooling=None")
        need(model.register_tokens == 0, "register_tokens must be 0")
        need(not model.swiglu, "swiglu must be False")
        # DINOv2 has them, whose layout there is only read.
        need(model.layer_scale is None, "layer_scale must be None")
    if family == "timm":
        known = model.resnet_blocks is None or model.resnet_blocks in _TIMM_HYBRIDS
        need(known, f"timm has no hybrid with resnet_blocks={model.resnet_blocks}")
        need(model.resnet_width_factor == 1, "resnet_width_factor must be 1")
        need(model.representation_size is None, "representation_size must be None")
        apart = model.pooling != "map" or not (
            model.class_token and model.register_tokens
        )
        need(apart, "pooling='map' must have no class token beside register tokens")
        plain = model.pooling != "map" and model.resnet_blocks is None
        need(
            plain or not model.swiglu,
            "swiglu must be False in a hybrid, and where pooling='map'",
        )
    return found


def name_in_file(name: str, model, family: str) -> str:
    """Name in the file, from that inside the bare model."""
    if family == "hugging_face":
        bare = model.classes is None or name.startswith("classifier.")
        return name if bare else f"vit.{name}"
    if family == "timm" and getattr(model, "resnet_blocks", None) == ():
        return name.replace(".backbone.stem.", ".backbone.")
    return name


def json_documents(model, family: str) -> dict[str, Any]:
    """JSON documents beside the weights, by file name."""
    if family == "timm":
        return {"config.json": _timm(model)}
    return {
        "config.json": _hugging_face(model),
        "preprocessor_config.json": hugging_face_preprocessor(model),
    }


def _timm(model) -> dict[str, Any]:
    resnet = hasattr(model, "blocks")
    height, width = model.image_size
    classes = model.classes or 0
    if resnet:
        architecture = _TIMM_RESNETS[model.blocks, model.width_factor]
        arguments = {"global_pool": _TIMM_POOLINGS[model.pooling]}
    else:
        architecture, arguments = _timm_vit(model)
    document = {
        "architecture": architecture,
        "num_classes": classes,
        "num_features": 2048 * model.width_factor if resnet else model.width,
        "model_args": {**arguments, "in_chans": model.channels},
        "pretrained_cfg": {
            "input_size": [model.channels, height, width],
            "fixed_input_size": not resnet,
            "num_classes": classes,
            **timm_preprocessing(model),
            # What timm replaces for other channels or classes.
            "first_conv": _timm_first(model),
            "classifier": "head.fc" if resnet else "head",
        },
    }
    if model.class_names is not None:
        document["pretrained_cfg"]["label_names"] = list(model.class_names)
    return document


def _timm_first(model) -> str:
    """Name of the layer that reads the pixels."""
    if hasattr(model, "blocks"):
        return "stem.conv"
    if model.resnet_blocks is None:
        return "patch_embed.proj"
    return name_in_file("patch_embed.backbone.stem.conv", model, "timm")


def _timm_vit(model) -> tuple[str, dict[str, Any]]:
    outputs = model.mlp_dim * (1 + model.swiglu)  # of the MLP's first layer
    ratio = outputs / model.width
    if int(model.width * ratio) != outputs:  # rounded down to one less
        ratio = (outputs + 0.5) / model.width
    # timm takes 0 for none; the weights come from the file.
    scale = 1e-5 if model.layer_scale == 0 else model.layer_scale
    arguments = {
        "img_size": list(model.image_size),
        "patch_size": model.patch_size,
        "embed_dim": model.width,
        "depth": model.depth,
        "num_heads": model.heads,
        "mlp_ratio": ratio,
        "global_pool": _TIMM_POOLINGS[model.pooling],
        # Our attention pooling includes the class token.
        "pool_include_prefix": model.pooling == "map" and model.class_token,
        "no_embed_class": not model.prefix_positions,
        "reg_tokens": model.register_tokens,
        "init_values": scale,
        # timm calls them as we do.
        **{name: getattr(model, name) for name, row in ROWS.items() if row.shown_by},
        "act_layer": {"tanh": "gelu_tanh", "exact": "gelu"}[model.gelu],
    }
    if model.swiglu:
        # No JSON names the kind of MLP; this architecture has it.
        return "vit_giant_patch14_dinov2", {**arguments, "act_layer": "silu"}
    if model.resnet_blocks is None:
        return "vit_base_patch16_224", arguments
    return _TIMM_HYBRIDS[model.resnet_blocks], arguments


def _square_or_pair(image_size: tuple[int, int]) -> int | list[int]:
    height, width = image_size
    return height if height == width else [height, width]


def _hugging_face(model) -> dict[str, Any]:
    document = {
        "architectures": [
            "ViTModel" if model.classes is None else "ViTForImageClassification"
        ],
        "model_type": "vit",
        "hidden_size": model.width,
        "num_hidden_layers": model.depth,
        "num_attention_heads": model.heads,
        "intermediate_size": model.mlp_dim,
        "hidden_act": {"tanh": "gelu_pytorch_tanh", "exact": "gelu"}[model.gelu],
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
        "layer_norm_eps": model.norm_epsilon,
        "image_size": _square_or_pair(model.image_size),
        "patch_size": model.patch_size,
        "num_channels": model.channels,
        "qkv_bias": model.qkv_bias,
        "dtype": "float32",
    }
    if model.classes is not None:
        names = model.class_names or [f"LABEL_{i}" for i in range(model.classes)]
        document["id2label"] = {str(i): name for i, name in enumerate(names)}
        document["label2id"] = {name: i for i, name in enumerate(names)}
    return document


WRITTEN = ("google", "timm", "hugging_face")
_FILES = (".npz", ".safetensors", ".h5", ".keras")
_POSITIONS = "position_embedding/embedding"


def save_checkpoint(
    model, path: str | os.PathLike[str], family: str = "google"
) -> list[pathlib.Path]:
    """Save a model in the format of another project.

    Files are written beside their place and renamed when they are complete. What is
    read back by `load_checkpoint` is bit-identical. Warns of preprocessing that the
    family's files cannot state.

    Args:
        model: A `VisionTransformer`, or a `ResNet` (not for Hugging Face).
        path: For `"google"` an `.npz` file. For the others a folder, for
            `model.safetensors` and `config.json`.
        family: `"google"`, `"timm"` or `"hugging_face"`.

    Returns:
        The files that were written.

    Raises:
        CheckpointError: The family has no place for a part of the model, or computes
            it in another way. All reasons are listed; nothing is written.
        ValueError: An unknown `family`, or a `path` that does not suit it.
        TypeError: `model` is another kind of model.
    """
    check_model(model)
    check_choice("family", family, WRITTEN)
    path = pathlib.Path(path).expanduser()
    file = path.suffix == ".npz" if family == "google" else path.suffix in _FILES
    if file != (family == "google"):
        wanted = "an .npz file" if family == "google" else "a folder"
        raise ValueError(
            f"`path` must be {wanted} for family={family!r}. Received: {str(path)!r}"
        )
    problems, places = incompatibilities(model, family), _places(model, family)
    if lost := [weight for weight, place in places.items() if place is None]:
        problems.append(f"there is no place for {', '.join(lost)}")
    if problems:
        raise CheckpointError(
            f"The model must be one that {family} can hold. Received: {model.name!r}"
            + "".join(f"\n- {problem}" for problem in problems)
        )
    if unsaid := preprocessing_configs.lost_settings(model, family):
        warnings.warn(
            f"{path}: {family} cannot state the preprocessing's {', '.join(unsaid)}",
            stacklevel=2,
        )
    arrays = _their_arrays(model, family, places)
    metadata = config.grid_metadata(model.grid) if _POSITIONS in places else {}
    if family == "google":
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            _write_npz(temporary, arrays, metadata)
        return [path]
    documents = json_documents(model, family)
    return _write_folder(path, family, arrays, documents, metadata)


def _rows(model, family: str) -> tuple[Row, ...]:
    resnet = {"google": "bit", "timm": "timm_bit"}
    key = resnet[family] if hasattr(model, "blocks") else family
    return FAMILIES[key].rows


def _places(model, family: str) -> dict[str, tuple[Row, str, int] | None]:
    """For each weight its row, array name and part; None without a row."""
    rows = _rows(model, family)
    return {w.path: next(match_ours(rows, w.path), None) for w in model.weights}


def _their_arrays(model, family: str, places) -> dict[str, np.ndarray]:
    """The model's weights under the family's names and in its layout."""
    heads = getattr(model, "heads", 1)
    parts: dict[str, dict[int, np.ndarray]] = {}
    for weight in model.weights:
        row, name, part = places[weight.path]
        value = np.asarray(keras.ops.convert_to_numpy(weight), "float32")
        if weight.path == _POSITIONS and family != "timm":
            value = _with_prefix(value, model)
        name = name_in_file(name, model, family)
        parts.setdefault(name, {})[part] = row.layout.write(value, heads)
    # safetensors writes the memory as it lies.
    return {
        name: np.ascontiguousarray(np.concatenate([f[part] for part in sorted(f)]))
        for name, f in parts.items()
    }


def _with_prefix(positions: np.ndarray, model) -> np.ndarray:
    """Zeros for the class token where the model gives it no position."""
    height, width = model.grid
    absent = model.prefix_tokens + height * width - positions.shape[1]
    return np.pad(positions, ((0, 0), (absent, 0), (0, 0)))


def _write_npz(
    path: pathlib.Path, arrays: dict[str, np.ndarray], metadata: dict[str, str]
) -> None:
    # numpy.savez closes over all arrays at once; this holds one at a time.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        # The only place that readers of .npz pass over: an array more, or another
        # member, would be one of the model's to them.
        archive.comment = json.dumps(metadata).encode() if metadata else b""
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _write_folder(
    folder: pathlib.Path,
    family: str,
    arrays: dict[str, np.ndarray],
    documents: dict[str, Any],
    metadata: dict[str, str],
) -> list[pathlib.Path]:
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise ImportError(
            f"family={family!r} needs safetensors: "
            'pip install "keras-vit-serving[convert]"'
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        # All are complete before the first is renamed.
        for name, document in documents.items():
            temporary = stack.enter_context(replacing(folder / name))
            temporary.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
        temporary = stack.enter_context(replacing(folder / "model.safetensors"))
        # Not by its save_file, whose file only its owner may read.
        temporary.write_bytes(save(arrays, metadata={"format": "pt", **metadata}))
    return [folder / name for name in ("model.safetensors", *documents)]
