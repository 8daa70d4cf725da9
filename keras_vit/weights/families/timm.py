"""timm's checkpoints: ViT, DeiT, DINOv2, hybrids, BiT, as its state dicts name them.

Source: huggingface/pytorch-image-models, models/vision_transformer.py, deit.py,
vision_transformer_hybrid.py, resnetv2.py. Query, key and value are one matrix.
"""

from collections.abc import Iterable

from keras_vit.weights.families.layouts import (
    CONVOLUTION,
    LINEAR,
    LINEAR_CONVOLUTION,
    Row,
    affine,
    norm,
    row,
)


def _together(theirs: str, ours: str, names: tuple[str, ...]) -> tuple[Row, ...]:
    """Several dense layers of ours in one of theirs."""
    return (
        row(f"{theirs}.weight", *(f"{ours}/{n}/kernel" for n in names), layout=LINEAR),
        row(f"{theirs}.bias", *(f"{ours}/{n}/bias" for n in names)),
    )


def _mlp(theirs: str, ours: str) -> tuple[Row, ...]:
    return (
        *affine(f"{theirs}.fc1.", f"{ours}/Dense_0", LINEAR),
        *affine(f"{theirs}.fc2.", f"{ours}/Dense_1", LINEAR),
    )


def _block() -> tuple[Row, ...]:
    theirs, ours = "blocks.{i}", "encoder_block_{i}"
    return (
        *norm(f"{theirs}.norm1.", f"{ours}/norm1"),
        *_together(
            f"{theirs}.attn.qkv", f"{ours}/attention", ("query", "key", "value")
        ),
        *norm(f"{theirs}.attn.q_norm.", f"{ours}/attention/query_norm"),
        *norm(f"{theirs}.attn.k_norm.", f"{ours}/attention/key_norm"),
        *affine(f"{theirs}.attn.proj.", f"{ours}/attention/out", LINEAR),
        row(f"{theirs}.ls1.gamma", f"{ours}/layer_scale1/gamma"),
        *norm(f"{theirs}.norm2.", f"{ours}/norm2"),
        *_mlp(f"{theirs}.mlp", f"{ours}/mlp"),
        row(f"{theirs}.ls2.gamma", f"{ours}/layer_scale2/gamma"),
    )


def _attention_pooling() -> tuple[Row, ...]:
    theirs, ours = "attn_pool", "attention_pooling"
    return (
        row(f"{theirs}.latent", f"{ours}/probe"),
        *affine(f"{theirs}.q.", f"{ours}/attention/query", LINEAR),
        *_together(f"{theirs}.kv", f"{ours}/attention", ("key", "value")),
        *affine(f"{theirs}.proj.", f"{ours}/attention/out", LINEAR),
        *norm(f"{theirs}.norm.", f"{ours}/norm"),
        *_mlp(f"{theirs}.mlp", f"{ours}/mlp"),
    )


def _hybrid_stem() -> tuple[Row, ...]:
    backbone = "patch_embed.backbone"
    rows: list[Row] = []
    for stem in (f"{backbone}.stem.", f"{backbone}."):  # the second: R+Ti/16
        rows += [
            row(f"{stem}conv.weight", "stem_conv/kernel", layout=CONVOLUTION),
            *norm(f"{stem}norm.", "stem_norm"),
        ]
    unit, ours = f"{backbone}.stages.{{s0}}.blocks.{{u0}}", "stage{s}_unit{u}"
    for conv, group, part in (
        ("conv1", "norm1", "1"),
        ("conv2", "norm2", "2"),
        ("conv3", "norm3", "3"),
        ("downsample.conv", "downsample.norm", "_proj"),
    ):
        rows += [
            row(
                f"{unit}.{conv}.weight", f"{ours}/conv{part}/kernel", layout=CONVOLUTION
            ),
            *norm(f"{unit}.{group}.", f"{ours}/norm{part}"),
        ]
    return tuple(rows)


TIMM = (
    *affine("patch_embed.proj.", "embedding", CONVOLUTION),
    row("cls_token", "class_token/token"),
    row("reg_token", "register_tokens/tokens"),
    # DeiT's distillation token is a register with a classifier of its own.
    row("dist_token", "register_tokens/tokens"),
    row("pos_embed", "position_embedding/embedding"),
    *_block(),
    *norm("norm.", "encoder_norm"),
    *norm("fc_norm.", "fc_norm"),
    *_attention_pooling(),
    *affine("head.", "head", LINEAR),
    *_hybrid_stem(),
)


def _bit() -> tuple[Row, ...]:
    theirs, ours = "stages.{s0}.blocks.{u0}", "stage{s}_unit{u}"
    rows = [
        row("stem.conv.weight", "stem_conv/kernel", layout=CONVOLUTION),
        *norm("norm.", "final_norm"),
        *affine("head.fc.", "head", LINEAR_CONVOLUTION),
    ]
    for conv in ("conv1", "conv2", "conv3"):
        rows.append(
            row(f"{theirs}.{conv}.weight", f"{ours}/{conv}/kernel", layout=CONVOLUTION)
        )
    for part in ("norm1", "norm2", "norm3"):
        rows += norm(f"{theirs}.{part}.", f"{ours}/{part}")
    downsample = f"{theirs}.downsample.conv.weight"
    return (*rows, row(downsample, f"{ours}/conv_proj/kernel", layout=CONVOLUTION))


TIMM_BIT = _bit()


def model_names(names: Iterable[str]) -> dict[str, str]:
    """Names inside the model -> names in the file, without a data-parallel prefix."""
    return {name.removeprefix("module."): name for name in names}
