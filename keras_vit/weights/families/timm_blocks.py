"""Forms of the blocks of timm's ViTs, as `block_fn` names them, and their arrays.

Source: huggingface/pytorch-image-models, models/vision_transformer.py, eva.py, beit.py.
"""

import dataclasses
from collections.abc import Mapping

from keras_vit.option_rows import UNSEEN
from keras_vit.option_rows import rows as option_rows
from keras_vit.options import ViTOptions
from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import Config, OneOf
from keras_vit.weights.families.layouts import (
    LINEAR,
    ArrayRow,
    affine,
    norm,
    row,
    together,
)


@dataclasses.dataclass(frozen=True)
class BlockForm:
    """What blocks of one class have.

    Args:
        rows: The table of their arrays and our weights.
        options: Options of ours that the class implies; others have their defaults.
        architectures: Name of one that has such blocks by our `norm`, as no JSON
            states the class; none for the form that every architecture may have.
        scaled: Whether `init_values` is of a LayerScale, not of the norms' gamma.
    """

    rows: tuple[ArrayRow, ...]
    options: Mapping[str, JSON] = dataclasses.field(default_factory=dict)
    architectures: Mapping[str, str] = dataclasses.field(default_factory=dict)
    scaled: bool = True


def mlp_rows(theirs: str, ours: str) -> tuple[ArrayRow, ...]:
    """The two dense layers of an MLP, and the norm between them."""
    return (
        *affine(f"{theirs}.fc1.", f"{ours}/Dense_0", LINEAR),
        *norm(f"{theirs}.norm.", f"{ours}/norm"),
        *affine(f"{theirs}.fc2.", f"{ours}/Dense_1", LINEAR),
    )


def _attention(theirs: str, ours: str) -> tuple[ArrayRow, ...]:
    return (
        *together(f"{theirs}.qkv", ours, ("query", "key", "value")),
        *norm(f"{theirs}.q_norm.", f"{ours}/query_norm"),
        *norm(f"{theirs}.k_norm.", f"{ours}/key_norm"),
        *norm(f"{theirs}.norm.", f"{ours}/norm"),
        *affine(f"{theirs}.proj.", f"{ours}/out", LINEAR),
    )


def _split_projections(theirs: str, ours: str) -> tuple[ArrayRow, ...]:
    """Of `Eva` and `Beit`: biases beside one matrix, or three layers."""
    rows: list[ArrayRow] = []
    for letter, name in (("q", "query"), ("k", "key"), ("v", "value")):
        rows += affine(f"{theirs}.{letter}_proj.", f"{ours}/{name}", LINEAR)
        if letter != "k":
            rows.append(row(f"{theirs}.{letter}_bias", f"{ours}/{name}/bias"))
    return tuple(rows)


def _split_gate(theirs: str, ours: str) -> tuple[ArrayRow, ...]:
    """Of `SwiGLU`: gate and values are two layers."""
    rows: list[ArrayRow] = []
    for part, name in enumerate(("fc1_g", "fc1_x")):
        rows += affine(f"{theirs}.{name}.", f"{ours}/Dense_0", LINEAR, half=part)
    return tuple(rows)


def _block() -> tuple[ArrayRow, ...]:
    theirs, ours = "blocks.{i}", "encoder_block_{i}"
    return (
        *norm(f"{theirs}.norm1.", f"{ours}/norm1"),
        *_attention(f"{theirs}.attn", f"{ours}/attention"),
        *_split_projections(f"{theirs}.attn", f"{ours}/attention"),
        row(
            f"{theirs}.attn.relative_position_bias_table",
            f"{ours}/attention/relative_bias",
        ),
        *norm(f"{theirs}.norm2.", f"{ours}/norm2"),
        *mlp_rows(f"{theirs}.mlp", f"{ours}/mlp"),
        *_split_gate(f"{theirs}.mlp", f"{ours}/mlp"),
        # The second name: of `Eva` and `Beit`.
        *(
            row(name.format(i="{i}", n=number), f"{ours}/layer_scale{number}/gamma")
            for number in (1, 2)
            for name in ("blocks.{i}.ls{n}.gamma", "blocks.{i}.gamma_{n}")
        ),
    )


def _scaling_block() -> tuple[ArrayRow, ...]:
    """Of `ParallelScalingBlock`: one projection for the MLP and the attention."""
    theirs, ours = "blocks.{i}", "encoder_block_{i}"
    layers = ("mlp/Dense_0", *(f"attention/{n}" for n in ("query", "key", "value")))
    return (
        *norm(f"{theirs}.in_norm.", f"{ours}/norm1"),
        row(
            f"{theirs}.in_proj.weight",
            *(f"{ours}/{layer}/kernel" for layer in layers),
            layout=LINEAR,
            rest=True,
        ),
        row(
            f"{theirs}.in_proj.bias",
            *(f"{ours}/{layer}/bias" for layer in layers),
            rest=True,
        ),
        row(f"{theirs}.mlp_bias", f"{ours}/mlp/Dense_0/bias"),
        *norm(f"{theirs}.q_norm.", f"{ours}/attention/query_norm"),
        *norm(f"{theirs}.k_norm.", f"{ours}/attention/key_norm"),
        *affine(f"{theirs}.attn_out_proj.", f"{ours}/attention/out", LINEAR),
        *affine(f"{theirs}.mlp_out_proj.", f"{ours}/mlp/Dense_1", LINEAR),
        row(f"{theirs}.ls.gamma", f"{ours}/layer_scale1/gamma"),
    )


def _things_block() -> tuple[ArrayRow, ...]:
    """Of `ParallelThingsBlock`: lists of attentions and of MLPs."""
    rows: list[ArrayRow] = []
    for number, branch in (("0", ""), ("{b}", "/branch_{b}")):
        ours = f"encoder_block_{{i}}{branch}"
        attention = f"blocks.{{i}}.attns.{number}"
        mlp = f"blocks.{{i}}.ffns.{number}"
        rows += [
            *norm(f"{attention}.norm.", f"{ours}/norm1"),
            *_attention(f"{attention}.attn", f"{ours}/attention"),
            row(f"{attention}.ls.gamma", f"{ours}/layer_scale1/gamma"),
            *norm(f"{mlp}.norm.", f"{ours}/norm2"),
            *mlp_rows(f"{mlp}.mlp", f"{ours}/mlp"),
            row(f"{mlp}.ls.gamma", f"{ours}/layer_scale2/gamma"),
        ]
    return tuple(rows)


_BLOCK = _block()
BLOCKS = {
    "Block": BlockForm(_BLOCK),
    "ResPostBlock": BlockForm(
        _BLOCK,
        {"post_norm": True},
        {"layer": "vit_base_patch16_rpn_224"},
        scaled=False,
    ),
    "ParallelScalingBlock": BlockForm(
        _scaling_block(),
        {"parallel": True},
        {"layer": "vit_pwee_patch16_reg1_gap_256", "rms": "vit_base_patch16_xp_224"},
    ),
    "ParallelThingsBlock": BlockForm(
        _things_block(), {"branches": 2}, {"layer": "vit_small_patch16_18x2_224"}
    ),
}
BLOCK_ROWS = tuple(dict.fromkeys(row for form in BLOCKS.values() for row in form.rows))
# The options that a form of block decides, with their defaults.
BLOCK_OPTIONS: Mapping[str, JSON] = {
    name: getattr(ViTOptions, name) for form in BLOCKS.values() for name in form.options
}
# Those that no array shows, which are assumed where no config states them.
ASSUMED_OF_BLOCKS: Mapping[str, JSON] = {
    name: usual
    for name, usual in BLOCK_OPTIONS.items()
    if UNSEEN in option_rows(ViTOptions)[name].marks
}


def read_form(value: JSON, config: Config) -> Mapping[str, JSON]:
    """What `block_fn` states."""
    form: BlockForm = OneOf(BLOCKS)(value, config)
    return {**BLOCK_OPTIONS, **form.options}


def read_scale(value: JSON, config: Config) -> JSON:
    """What `init_values` states, where 0 is none."""
    form = BLOCKS.get(str(config["block_fn"]))
    return None if form is not None and not form.scaled else value or None


def form_of(model: JSON) -> BlockForm | None:
    """The form of a model's blocks, if timm has an architecture with such ones."""
    own = {name: getattr(model, name) for name in BLOCK_OPTIONS}
    for form in BLOCKS.values():
        fits = not form.architectures or model.norm in form.architectures
        if fits and own == {**BLOCK_OPTIONS, **form.options}:
            return form
    return None


def rows_of_form(table: tuple[ArrayRow, ...], model: JSON) -> tuple[ArrayRow, ...]:
    """The table without rows of the blocks of other forms."""
    form = form_of(model) or BLOCKS["Block"]
    return tuple(row for row in table if row in form.rows or row not in BLOCK_ROWS)
