"""Hugging Face's checkpoints: ViT, DeiT and DINOv2 of transformers, as on disk.

Source: huggingface/transformers, models/vit, deit, dinov2, dinov2_with_registers. Files
are written with the names of release 4 by every release; the names inside of release 5
are read too, but for a SwiGLU, whose first layer it splits in memory.
"""

import re
from collections.abc import Iterable

from keras_vit.weights.families.layouts import (
    CONVOLUTION,
    LINEAR,
    Row,
    affine,
    norm,
    row,
)


def _attention(theirs: str, ours: str) -> tuple[Row, ...]:
    rows: list[Row] = []
    for name in ("query", "key", "value"):
        rows += affine(f"{theirs}.attention.{name}.", f"{ours}/{name}", LINEAR)
    return (*rows, *affine(f"{theirs}.output.dense.", f"{ours}/out", LINEAR))


def _block() -> tuple[Row, ...]:
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


def _dinov2_block() -> tuple[Row, ...]:
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


def _bare_names(names, prefix: str, renamed) -> dict[str, str]:
    inside = {}
    for name in names:
        bare = re.sub(rf"^(?:{prefix})\.", "", name)
        for pattern, replacement in renamed:
            bare = pattern.sub(replacement, bare)
        inside[bare] = name
    return inside


def model_names(names: Iterable[str]) -> dict[str, str]:
    """Names inside the bare model, as on disk -> names in the file."""
    return _bare_names(names, "vit|deit", _RENAMED)


def dinov2_names(names: Iterable[str]) -> dict[str, str]:
    """Names inside the bare DINOv2 -> names in the file.

    The mask token, which takes the place of patches in pre-training alone, is left out.
    """
    prefix = "dinov2|dinov2_with_registers"
    inside = _bare_names(names, prefix, _RENAMED_ATTENTION)
    inside.pop("embeddings.mask_token", None)
    return inside
