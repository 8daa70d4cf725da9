"""Narrow copies of Meta's DINOv2 and DINOv3, which timm converts for its own models.

The state dicts are written by the names in Meta's code; the outputs are those of timm's
models, which timm's `checkpoint_filter_fn` fills.

Source: facebookresearch/dinov2 and facebookresearch/dinov3,
models/vision_transformer.py and layers.
"""

from benchmarks import torch_libraries  # noqa: F401  isort: skip

import dataclasses
import pathlib

from benchmarks.narrow_copies import DTYPES, GRID, Model, Opened, compare
from keras_vit.typing import JSON, Array

DEPTH = 2


@dataclasses.dataclass(frozen=True)
class Meta:
    """A model of Meta's.

    Args:
        title: Its name there, and what else differs.
        example: File that Meta publishes of it.
        timm: timm's architecture of it.
        heads: Number of heads.
        head_width: Elements of each.
        hidden: Hidden width of its MLPs.
        registers: Register tokens.
        gated: Whether its MLPs are SwiGLUs.
        biases: Whether queries, keys and values have biases.
        options: Of timm's model.
        training: Whether the file is one of a training, of the teacher and its heads,
            with its blocks in chunks.
    """

    title: str
    example: str
    timm: str
    heads: int = 2
    head_width: int = 64
    hidden: int = 512
    registers: int = 0
    gated: bool = False
    biases: bool = True
    options: dict[str, JSON] = dataclasses.field(default_factory=dict)
    training: bool = False

    @property
    def rotates(self) -> bool:
        """Whether it is one of DINOv3."""
        return "dinov3" in self.timm

    @property
    def width(self) -> int:
        """Width D."""
        return self.heads * self.head_width

    @property
    def patch_size(self) -> int:
        """Side of a patch."""
        return 16 if self.rotates else 14


# timm's hidden width counts both halves.
_GIANT: dict[str, JSON] = {
    "hidden": 344,
    "gated": True,
    "options": {"mlp_ratio": 2 * 344 / 128},
}
_ROTATES: dict[str, JSON] = {
    "heads": 3,
    "head_width": 16,
    "hidden": 192,
    "registers": 4,
}
META = (
    Meta("DINOv2", "dinov2_vitb14_pretrain.pth", "vit_small_patch14_dinov2"),
    Meta(
        "DINOv2 with registers",
        "dinov2_vitb14_reg4_pretrain.pth",
        "vit_small_patch14_reg4_dinov2",
        registers=4,
    ),
    Meta(
        "DINOv2 with SwiGLU",
        "dinov2_vitg14_pretrain.pth",
        "vit_giant_patch14_dinov2",
        **_GIANT,
    ),
    Meta(
        "DINOv2 with SwiGLU and registers",
        "dinov2_vitg14_reg4_pretrain.pth",
        "vit_giant_patch14_reg4_dinov2",
        registers=4,
        **_GIANT,
    ),
    Meta(
        "DINOv2, the teacher of a training",
        "teacher_checkpoint.pth",
        "vit_small_patch14_dinov2",
        training=True,
    ),
    Meta(
        "DINOv3",
        "dinov3_vitb16_pretrain_lvd1689m-73cec8be.pth",
        "vit_small_patch16_dinov3_qkvb",
        **_ROTATES,
    ),
    Meta(
        "DINOv3 with SwiGLU",
        "dinov3_vith16plus_pretrain_lvd1689m-7c1da9a5.pth",
        "vit_small_plus_patch16_dinov3_qkvb",
        gated=True,
        **_ROTATES,
    ),
    Meta(
        "DINOv3 without biases of queries, keys and values",
        "dinov3_vit7b16_pretrain_lvd1689m-a955f4ea.pth",
        "vit_7b_patch16_dinov3",
        gated=True,
        biases=False,
        **{**_ROTATES, "hidden": 128},
    ),
)


def shapes(case: Meta) -> dict[str, tuple[int, ...]]:
    """Shapes of its parameters by their names in Meta's code."""
    width, hidden, side = case.width, case.hidden, case.patch_size
    registers = "storage_tokens" if case.rotates else "register_tokens"
    found: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "mask_token": (1, width),
        "patch_embed.proj.weight": (width, 3, side, side),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    if case.registers:
        found[registers] = (1, case.registers, width)
    if not case.rotates:
        found["pos_embed"] = (1, 1 + GRID**2, width)
    linear = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
    if not case.gated:
        linear |= {"mlp.fc1": (hidden, width), "mlp.fc2": (width, hidden)}
    elif case.rotates:
        linear |= {"mlp.w1": (hidden, width), "mlp.w2": (hidden, width)}
    else:
        linear |= {"mlp.w12": (2 * hidden, width)}
    if case.gated:
        linear |= {"mlp.w3": (width, hidden)}
    for block in range(DEPTH):
        place = f"blocks.{block}"
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"):
            found[f"{place}.{name}"] = (width,)
        for name in ("ls1.gamma", "ls2.gamma"):
            found[f"{place}.{name}"] = (width,)
        for name, shape in linear.items():
            found[f"{place}.{name}.weight"] = shape
            if name != "attn.qkv" or case.biases:
                found[f"{place}.{name}.bias"] = shape[:1]
    return found


def state_dict(case: Meta, dtype: str) -> dict[str, Model]:
    """Random numbers that keep the size of a signal, and the buffers of its code."""
    import torch

    generator = torch.Generator().manual_seed(3)
    kind = getattr(torch, dtype)
    state = {}
    for name, shape in shapes(case).items():
        noise = torch.randn(shape, generator=generator)
        matrix = len(shape) > 1 and shape[-1] > 1
        fan_in = noise[0].numel() if matrix else 25
        start = 1 if "norm" in name and name.endswith("weight") else 0
        state[name] = (start + noise * fan_in**-0.5).to(kind)
    if case.rotates:
        count = case.head_width // 4
        state["rope_embed.periods"] = 100.0 ** (torch.arange(count) / count)
        if case.biases:
            mask = torch.ones(3, case.width)
            mask[1] = 0
            for block in range(DEPTH):
                state[f"blocks.{block}.attn.qkv.bias_mask"] = mask.flatten()
        else:  # the large one, whose norms of small crops are in its file
            state["local_cls_norm.weight"] = state["norm.weight"] + 1
            state["local_cls_norm.bias"] = state["norm.bias"] + 1
    return state


def _as_in_training(state: dict[str, Model]) -> JSON:
    """The teacher's, whose every block is a chunk, and one of its heads."""
    teacher = {}
    for name, value in state.items():
        if name.startswith("blocks."):
            number = name.split(".")[1]
            name = name.replace("blocks.", f"blocks.{number}.", 1)
        teacher[f"backbone.{name}"] = value
    teacher["dino_head.mlp.0.weight"] = state["norm.weight"].repeat(3, 1)
    return {"teacher": teacher}


def timm_twin(case: Meta, state: dict[str, Model]) -> Model:
    """timm's model with the weights of a state dict of Meta's, by timm's code."""
    import timm
    from timm.models import eva, vision_transformer

    model = timm.create_model(
        case.timm,
        **{
            "embed_dim": case.width,
            "depth": DEPTH,
            "num_heads": case.heads,
            "num_classes": 0,
            "global_pool": "token",
            "img_size": GRID * case.patch_size,
            **case.options,
        },
    )
    convert = (eva if case.rotates else vision_transformer).checkpoint_filter_fn
    model.load_state_dict(convert(dict(state), model))
    return model.eval()


def compare_meta(case: Meta, folder: pathlib.Path) -> Opened:
    """Open a state dict of Meta's, and compare its outputs with those of timm."""
    import torch

    result = Opened("meta", case.title, case.example)
    side = GRID * case.patch_size

    def outputs(model: Model, pixels: Array) -> Array:
        with torch.no_grad():
            found: Array = model(torch.tensor(pixels.transpose(0, 3, 1, 2))).numpy()
        return found

    for dtype in DTYPES:
        state = state_dict(case, dtype)
        path = folder / f"{dtype}.pth"
        torch.save(_as_in_training(state) if case.training else state, path)
        twin = timm_twin(case, {name: value.float() for name, value in state.items()})
        compare(result, path, dtype, outputs, twin, (side, side), image_size=side)
    return result
