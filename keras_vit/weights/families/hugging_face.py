"""Hugging Face's checkpoints: ViT and DeiT of transformers, as they lie on disk.

Source: huggingface/transformers, models/vit and models/deit. Files are written with the
names of release 4 by every release; the names inside of release 5 are read too.
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


def _block() -> tuple[Row, ...]:
    theirs, ours = "encoder.layer.{i}", "encoder_block_{i}"
    attention = f"{theirs}.attention"
    rows: list[Row] = []
    for name in ("query", "key", "value"):
        rows += affine(
            f"{attention}.attention.{name}.", f"{ours}/attention/{name}", LINEAR
        )
    return (
        *rows,
        *affine(f"{attention}.output.dense.", f"{ours}/attention/out", LINEAR),
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

# Release 5's names inside the model -> the names on disk.
_RENAMED = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^layers\.(\d+)\.", r"encoder.layer.\1."),
        (r"\.attention\.q_proj\.", ".attention.attention.query."),
        (r"\.attention\.k_proj\.", ".attention.attention.key."),
        (r"\.attention\.v_proj\.", ".attention.attention.value."),
        (r"\.attention\.o_proj\.", ".attention.output.dense."),
        (r"\.mlp\.fc1\.", ".intermediate.dense."),
        (r"\.mlp\.fc2\.", ".output.dense."),
    )
)


def model_names(names: Iterable[str]) -> dict[str, str]:
    """Names inside the bare model, as on disk -> names in the file."""
    inside = {}
    for name in names:
        bare = name.removeprefix("vit.").removeprefix("deit.")
        for pattern, replacement in _RENAMED:
            bare = pattern.sub(replacement, bare)
        inside[bare] = name
    return inside
