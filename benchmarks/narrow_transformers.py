"""Narrow copies of transformers' models, as `save_pretrained` writes them."""

from benchmarks import torch_libraries  # noqa: F401  isort: skip

import dataclasses
import functools
import json
import pathlib

from benchmarks.narrow_copies import (
    CLASSES,
    DTYPES,
    GRID,
    Model,
    Opened,
    compare,
    difference,
    randomize,
    write_back,
)
from keras_vit.typing import JSON, Array

SMALL = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 80,
    "image_size": 32,
    "patch_size": 8,
}
TEXT = {
    "hidden_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "vocab_size": 50,
    "max_position_embeddings": 8,
}
SIGLIP2 = {
    **{name: value for name, value in SMALL.items() if name != "image_size"},
    "num_patches": GRID**2,
}
# MAE shuffles the patches by noise, also where it drops none.
IN_ORDER = {"noise": [[0.1 * patch for patch in range(GRID**2)]] * 2}
DECODER = {
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 20,
}


@dataclasses.dataclass(frozen=True)
class Transformer:
    """A model of transformers.

    Args:
        title: What it is.
        hub: Published weights of it on the Hugging Face Hub.
        model: Name of its class.
        config: Name of its config's class.
        arguments: Of the config.
        output: Reads what our model returns from the output of theirs.
        pooling: Ours to compare with; `"file"` for the file's own.
        call: Tensors that their call gets too, as lists.
    """

    title: str
    hub: str
    model: str
    config: str
    arguments: dict[str, JSON]
    output: str = "last_hidden_state"
    pooling: str | None = None
    call: dict[str, JSON] = dataclasses.field(default_factory=dict)


def _towers(name: str, **vision: Model) -> dict[str, JSON]:
    return {"text_config": TEXT, "vision_config": {**SMALL, **vision}}


_NUM_LABELS = {"num_labels": CLASSES}
_BEIT = {"use_relative_position_bias": True}
TRANSFORMERS = (
    Transformer(
        "ViT", "google/vit-base-patch16-224-in21k", "ViTModel", "ViTConfig", SMALL
    ),
    Transformer(
        "ViT, classifier",
        "google/vit-base-patch16-224",
        "ViTForImageClassification",
        "ViTConfig",
        {**SMALL, **_NUM_LABELS},
        output="logits",
        pooling="file",
    ),
    Transformer("MSN", "facebook/vit-msn-base", "ViTMSNModel", "ViTMSNConfig", SMALL),
    Transformer(
        "DeiT",
        "facebook/deit-base-distilled-patch16-224",
        "DeiTModel",
        "DeiTConfig",
        SMALL,
    ),
    Transformer(
        "DeiT, classifier",
        "facebook/deit-base-distilled-patch16-224",
        "DeiTForImageClassification",
        "DeiTConfig",
        {**SMALL, **_NUM_LABELS},
        output="logits",
        pooling="file",
    ),
    Transformer(
        "DeiT, two classifiers",
        "facebook/deit-base-distilled-patch16-224",
        "DeiTForImageClassificationWithTeacher",
        "DeiTConfig",
        {**SMALL, **_NUM_LABELS},
        output="logits",
        pooling="file",
    ),
    Transformer(
        "DINOv2",
        "facebook/dinov2-base",
        "Dinov2Model",
        "Dinov2Config",
        {**SMALL, "mlp_ratio": 2},
    ),
    Transformer(
        "DINOv2, SwiGLU",
        "facebook/dinov2-giant",
        "Dinov2Model",
        "Dinov2Config",
        {**SMALL, "use_swiglu_ffn": True},
    ),
    Transformer(
        "DINOv2, registers",
        "facebook/dinov2-with-registers-base",
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersConfig",
        {**SMALL, "mlp_ratio": 2, "num_register_tokens": 2},
    ),
    Transformer(
        "DINOv3",
        "facebook/dinov3-vitb16-pretrain-lvd1689m",
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        {**SMALL, "num_register_tokens": 2},
    ),
    Transformer(
        "DINOv3, SwiGLU",
        "facebook/dinov3-vith16plus-pretrain-lvd1689m",
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        {**SMALL, "use_gated_mlp": True, "hidden_act": "silu"},
    ),
    Transformer(
        "CLIP, image tower",
        "openai/clip-vit-base-patch32",
        "CLIPVisionModel",
        "CLIPVisionConfig",
        SMALL,
        output="pooler_output",
        pooling="file",
    ),
    Transformer(
        "CLIP, image tower and projection",
        "openai/clip-vit-base-patch32",
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        {**SMALL, "projection_dim": 20},
        output="image_embeds",
        pooling="file",
    ),
    Transformer(
        "CLIP",
        "openai/clip-vit-large-patch14",
        "CLIPModel",
        "CLIPConfig",
        {**_towers("clip"), "projection_dim": 20},
        output="image_features",
        pooling="file",
    ),
    Transformer(
        "MetaCLIP 2",
        "facebook/metaclip-2-worldwide-huge-quickgelu",
        "MetaClip2Model",
        "MetaClip2Config",
        {**_towers("metaclip_2"), "projection_dim": 20},
        output="image_features",
        pooling="file",
    ),
    Transformer(
        "RADIO",
        "nvidia/C-RADIOv4-H",
        "RadioModel",
        "RadioConfig",
        {
            **{key: SMALL[key] for key in SMALL if key != "intermediate_size"},
            **{"max_img_size": 32, "num_cls_tokens": 2, "num_registers": 3},
        },
    ),
    Transformer(
        "SigLIP, image tower",
        "google/siglip-base-patch16-224",
        "SiglipVisionModel",
        "SiglipVisionConfig",
        SMALL,
        output="pooler_output",
        pooling="file",
    ),
    Transformer(
        "SigLIP",
        "google/siglip2-base-patch16-224",
        "SiglipModel",
        "SiglipConfig",
        _towers("siglip"),
        output="image_features",
        pooling="file",
    ),
    Transformer(
        "SigLIP 2 of any resolution, image tower",
        "google/siglip2-base-patch16-naflex",
        "Siglip2VisionModel",
        "Siglip2VisionConfig",
        SIGLIP2,
        output="pooler_output",
        pooling="file",
    ),
    Transformer(
        "SigLIP 2 of any resolution",
        "google/siglip2-so400m-patch16-naflex",
        "Siglip2Model",
        "Siglip2Config",
        {"text_config": TEXT, "vision_config": SIGLIP2},
        output="image_features",
        pooling="file",
    ),
    Transformer(
        "MAE",
        "facebook/vit-mae-base",
        "ViTMAEModel",
        "ViTMAEConfig",
        {**SMALL, "mask_ratio": 0.0},
        call=IN_ORDER,
    ),
    Transformer(
        "MAE, pre-training",
        "facebook/vit-mae-large",
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        {**SMALL, **DECODER, "mask_ratio": 0.0},
        call=IN_ORDER,
    ),
    Transformer(
        "I-JEPA", "facebook/ijepa_vith14_1k", "IJepaModel", "IJepaConfig", SMALL
    ),
    Transformer(
        "I-JEPA, classifier",
        "facebook/ijepa_vith14_1k",
        "IJepaForImageClassification",
        "IJepaConfig",
        {**SMALL, **_NUM_LABELS},
        output="logits",
        pooling="file",
    ),
    Transformer(
        "BEiT, classifier",
        "microsoft/beit-base-patch16-224",
        "BeitForImageClassification",
        "BeitConfig",
        {**SMALL, **_BEIT, **_NUM_LABELS},
        output="logits",
        pooling="file",
    ),
    Transformer(
        "BEiT, shared bias, class token",
        "microsoft/beit-base-patch16-224-pt22k",
        "BeitForImageClassification",
        "BeitConfig",
        {
            **SMALL,
            **_NUM_LABELS,
            "use_shared_relative_position_bias": True,
            "use_absolute_position_embeddings": True,
            "use_mean_pooling": False,
        },
        output="logits",
        pooling="file",
    ),
    Transformer(
        "Data2VecVision, classifier",
        "facebook/data2vec-vision-base-ft1k",
        "Data2VecVisionForImageClassification",
        "Data2VecVisionConfig",
        {**SMALL, **_BEIT, **_NUM_LABELS},
        output="logits",
        pooling="file",
    ),
    Transformer(
        "Data2VecVision",
        "facebook/data2vec-vision-base",
        "Data2VecVisionModel",
        "Data2VecVisionConfig",
        {**SMALL, "use_shared_relative_position_bias": True},
    ),
    Transformer(
        "AIMv2, image tower",
        "apple/aimv2-large-patch14-224",
        "Aimv2VisionModel",
        "Aimv2VisionConfig",
        {**SMALL, "use_head": False},
    ),
    Transformer(
        "AIMv2, pooling",
        "apple/aimv2-large-patch14-224-lit",
        "Aimv2VisionModel",
        "Aimv2VisionConfig",
        SMALL,
        output="pooler_output",
        pooling="file",
    ),
)


def _their_outputs(case: Transformer, model: Model, pixels: Model) -> Model:
    """The output that our model is compared with."""
    import torch

    arguments = {name: torch.tensor(value) for name, value in case.call.items()}
    if type(model).__name__.startswith("Siglip2"):
        pixels, arguments = flat_patches(pixels, side=SMALL["patch_size"])
    if case.output == "image_features" and hasattr(model, "get_image_features"):
        found = model.get_image_features(pixels, **arguments)
        return getattr(found, "pooler_output", found)
    if case.output == "image_features":  # the tower that we write
        found = model(pixels)
        return found.image_embeds if "image_embeds" in found else found.pooler_output
    if hasattr(model, "vit") and case.output == "last_hidden_state":
        model = model.vit  # MAE's encoder
    if hasattr(model, "input_conditioner"):  # it normalizes its pixels itself
        conditioner = model.input_conditioner
        pixels = pixels * conditioner.norm_std + conditioner.norm_mean
    return getattr(model(pixels, **arguments), case.output)


def flat_patches(pixels: Model, side: int) -> tuple[Model, dict[str, Model]]:
    """Patches as vectors [B, N, P * P * C], and the arguments that go with them."""
    import torch

    images, channels, height, width = pixels.shape
    grid = height // side, width // side
    patches = pixels.reshape(images, channels, grid[0], side, grid[1], side)
    flat = patches.permute(0, 2, 4, 3, 5, 1).reshape(images, grid[0] * grid[1], -1)
    return flat, {
        "pixel_attention_mask": torch.ones(flat.shape[:2], dtype=torch.int32),
        "spatial_shapes": torch.tensor([grid] * images),
    }


def compare_transformers(case: Transformer, folder: pathlib.Path) -> Opened:
    """Open a model of transformers, and compare its outputs."""
    import torch
    import transformers

    result = Opened("transformers", case.title, f"hf://{case.hub}")
    config = getattr(transformers, case.config)(**case.arguments)
    model = randomize(getattr(transformers, case.model)(config))

    def outputs(model: Model, pixels: Array) -> Array:
        with torch.no_grad():
            images = torch.tensor(pixels.transpose(0, 3, 1, 2))
            found: Array = _their_outputs(case, model, images).numpy()
        return found

    size, ours = (32, 32), None
    arguments = {} if case.pooling == "file" else {"pooling": case.pooling}
    for dtype in DTYPES:
        state = {k: v.to(getattr(torch, dtype)) for k, v in model.state_dict().items()}
        model.load_state_dict(state)
        model.save_pretrained(folder, state_dict=state)
        opened = compare(result, folder, dtype, outputs, model, size, **arguments)
        ours = ours or opened
    if ours is not None and (back := write_back(result, ours, folder, "hugging_face")):
        kind = json.loads((back / "config.json").read_text("utf-8"))["architectures"][0]
        twin = getattr(transformers, kind).from_pretrained(back).eval()
        result.back = difference(ours, functools.partial(outputs, twin), size)
    return result
