"""Which architectures of other libraries open, and how exactly?

    python -m benchmarks.architectures    # all of them; about ten minutes

Every one is made by its library as a narrow copy with random weights, written by that
library in float32, by timm and transformers in bfloat16 too, and opened by
`from_preset`: its outputs are the same, or it is refused with the reason. `make parity`
does the same in pieces. Needs `pip install -e ".[parity]"`; OpenCLIP's need
`pip install open_clip_torch` as well, and are left out without.
"""

from benchmarks import torch_libraries  # noqa: F401  isort: skip

import dataclasses
import functools
import importlib.util
import json
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from benchmarks.report import make_parser, show, write
from benchmarks.timm_architectures import TABLE
from keras_vit.typing import JSON, Array

Model: TypeAlias = Any  # of another library, or its outputs

TOLERANCE = 2e-5  # timm's ResNet stems have other epsilons than ours
DTYPES = ("float32", "bfloat16")
HEAD_WIDTH = 16  # K of the narrow copies
GRID = 4  # patches on each side of their images
CLASSES = 7


@dataclasses.dataclass
class Opened:
    """What became of one architecture.

    Args:
        library: `"timm"`, `"transformers"`, `"keras_hub"` or `"open_clip"`.
        name: The architecture, or the model and its variant.
        example: Published weights of it, as `open_model` takes them.
        refused: The reason; "" where it opens.
        difference: Largest difference of the outputs, relative to the largest output,
            by the dtype of the file.
        back: The same for the library's model in what we write; None where we do not.
        kept: Why we do not write it.
    """

    library: str
    name: str
    example: str = ""
    refused: str = ""
    difference: dict[str, float] = dataclasses.field(default_factory=dict)
    back: float | None = None
    kept: str = ""


def timm_names() -> list[str]:
    """The architectures of our table, but BiT's, which have no small copy."""
    table = json.loads(TABLE.read_text("utf-8"))["architectures"]
    return [name for name, own in table.items() if own["class"] != "ResNetV2"]


def randomize(model: Model) -> Model:
    """Random numbers everywhere that keep the size of a signal."""
    import torch

    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            matrix = parameter.ndim > 1 and parameter.shape[-1] > 1
            fan_in = max(parameter[0].numel(), 1) if matrix else 25
            parameter.copy_((0 if matrix else parameter) + noise * fan_in**-0.5)
    return model.eval()


def _timm_model(name: str) -> Model:
    """A narrow copy of an architecture."""
    import timm

    own = json.loads(TABLE.read_text("utf-8"))["architectures"][name]
    if own["class"] == "NaFlexVit":  # its widths are not in the table
        return timm.create_model(name, num_classes=CLASSES, depth=1)
    heads = own.get("num_heads", 12)
    arguments: dict[str, JSON] = {
        "embed_dim": HEAD_WIDTH * heads,
        "depth": 2,
        "num_classes": 0 if own.get("num_classes") == 0 else CLASSES,
    }
    if own.get("embed_layer", {}).get("backbone") not in (
        None,
        "ResNetV2",
        "Sequential",
    ):
        del arguments["embed_dim"]  # its stem's
    if "embed_layer" not in own:
        arguments["img_size"] = GRID * own.get("patch_size", 16)
    if isinstance(own.get("num_kv_heads"), list):
        arguments["num_kv_heads"] = [heads] * 2
    return timm.create_model(name, **arguments)


def write_timm(model: Model, folder: pathlib.Path, dtype: str) -> None:
    """A folder as timm pushes it to the Hub, the numbers in a dtype."""
    import safetensors.torch
    import torch
    from timm.models import save_for_hf

    save_for_hf(model, folder, safe_serialization=True)
    path = folder / "model.safetensors"
    path.unlink(missing_ok=True)
    kind = getattr(torch, dtype)
    state = {
        name: value.to(kind).contiguous() if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    safetensors.torch.save_file(state, path)
    model.load_state_dict(state)  # what the file holds, to compare with


def compare_timm(name: str, folder: pathlib.Path) -> Opened:
    """Open a narrow copy of an architecture, and compare its outputs."""
    import timm
    import torch

    result = Opened("timm", name, f"hf://timm/{name}.TAG")
    model = randomize(_timm_model(name))
    embed = getattr(model, "patch_embed", None)
    size = tuple(getattr(embed, "img_size", None) or (224, 224))

    def outputs(model: Model, pixels: Array) -> Array:
        with torch.no_grad():
            found: Array = model(torch.tensor(pixels.transpose(0, 3, 1, 2))).numpy()
        return found

    ours = None
    for dtype in DTYPES:
        with torch.no_grad():
            write_timm(model, folder, dtype)
        opened = _compare(result, folder, dtype, outputs, model, size)
        ours = ours or opened
    if ours is not None and (back := _write_back(result, ours, folder, "timm")):
        twin = timm.create_model(f"local-dir:{back}", pretrained=True).eval()
        result.back = _difference(ours, functools.partial(outputs, twin), size)
    return result


def _write_back(
    result: Opened, ours: Model, folder: pathlib.Path, project: str
) -> pathlib.Path | None:
    """Where our model was written as the project's; None if it has no place for it."""
    import keras_vit

    back = folder / "back"
    try:
        keras_vit.save_checkpoint(ours, back, project)
    except ValueError as error:
        result.kept = str(error)
        return None
    return back


def _difference(
    ours: Model, outputs: Callable[[Array], Array], size: tuple[int, int]
) -> float:
    """Of our outputs and theirs, relative to the largest of theirs."""
    pixels = np.random.default_rng(3).normal(size=(2, *size, 3)).astype("float32")
    theirs = outputs(pixels)
    height, width = ours.image_size
    # A convolution leaves out what is less than a patch at the border.
    found = np.asarray(ours(pixels[:, :height, :width]))
    largest = max(float(np.abs(theirs).max()), 1e-3)
    return float(np.abs(found - theirs).max()) / largest


def _compare(
    result: Opened,
    folder: pathlib.Path,
    dtype: str,
    outputs: Callable[[Model, Array], Array],
    model: Model,
    size: tuple[int, int],
    **arguments: Model,
) -> Model:
    """Open a folder, and note the reason of a refusal or the difference."""
    import keras_vit

    try:
        ours = keras_vit.open_model(folder, **arguments)
    except ValueError as error:
        result.refused = str(error)
        return None
    theirs = functools.partial(outputs, model)
    result.difference[dtype] = _difference(ours, theirs, size)
    return ours


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

    if case.output == "image_features" and hasattr(model, "get_image_features"):
        found = model.get_image_features(pixels)
        return getattr(found, "pooler_output", found)
    if case.output == "image_features":  # the tower that we write
        found = model(pixels)
        return found.image_embeds if "image_embeds" in found else found.pooler_output
    if hasattr(model, "vit") and case.output == "last_hidden_state":
        model = model.vit  # MAE's encoder
    found = model(pixels, **{k: torch.tensor(v) for k, v in case.call.items()})
    return getattr(found, case.output)


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
        opened = _compare(result, folder, dtype, outputs, model, size, **arguments)
        ours = ours or opened
    if ours is not None and (back := _write_back(result, ours, folder, "hugging_face")):
        kind = json.loads((back / "config.json").read_text("utf-8"))["architectures"][0]
        twin = getattr(transformers, kind).from_pretrained(back).eval()
        result.back = _difference(ours, functools.partial(outputs, twin), size)
    return result


HUB = {
    "hidden_dim": 48,
    "num_layers": 2,
    "num_heads": 3,
    "intermediate_dim": 80,
    "patch_size": 8,
    "image_shape": (32, 32, 3),
}
HUB_TEXT = {
    "vocabulary_size": 50,
    "embedding_dim": 48,
    "hidden_dim": 48,
    "num_layers": 1,
    "num_heads": 3,
    "intermediate_dim": 40,
    "max_sequence_length": 8,
}


@dataclasses.dataclass(frozen=True)
class KerasHub:
    """A model of keras-hub.

    Args:
        title: What it is.
        model: Name of the backbone's class, or of the image tower's.
        arguments: Of that class, beside `HUB`.
        task: Arguments of the image classifier around it, if there is one.
        towers: Arguments of the model of both towers around it, if there is one.
        pooling: Ours to compare with; `"file"` for the file's own.
    """

    title: str
    model: str
    arguments: dict[str, JSON] = dataclasses.field(default_factory=dict)
    task: dict[str, JSON] | None = None
    towers: dict[str, JSON] | None = None
    pooling: str | None = None

    def build(self) -> Model:
        """A new model."""
        from keras_hub import models

        backbone = getattr(models, self.model)(**{**HUB, **self.arguments})
        name = self.model.removesuffix("Backbone").removesuffix("VisionEncoder")
        if self.task is not None:
            kind = getattr(models, f"{name}ImageClassifier")
            return kind(backbone=backbone, num_classes=CLASSES, **self.task)
        if self.towers is None:
            return backbone
        text = getattr(models, f"{name}TextEncoder")(**HUB_TEXT)
        return getattr(models, f"{name}Backbone")(backbone, text, **self.towers)

    def outputs(self, model: Model, pixels: Array) -> Array:
        """What it computes of images, after the pooling of `pooling="file"`."""
        if self.towers is not None:
            return np.asarray(model.get_vision_embeddings(pixels))
        (name,) = model.input if isinstance(model.input, dict) else (None,)
        return np.asarray(model(pixels if name is None else {name: pixels}))


KERAS_HUB = (
    KerasHub("DeiT", "DeiTBackbone"),
    KerasHub(
        "DeiT, classifier",
        "DeiTBackbone",
        {"use_mha_bias": False},
        task={"activation": "softmax"},
        pooling="file",
    ),
    KerasHub("DINOv2", "DINOV2Backbone", {"position_embedding_shape": (32, 32, 3)}),
    KerasHub(
        "DINOv2, SwiGLU, registers, positions of larger images",
        "DINOV2Backbone",
        {
            "use_swiglu_ffn": True,
            "num_register_tokens": 2,
            "position_embedding_shape": (48, 48, 3),
        },
    ),
    KerasHub("DINOv3", "DINOV3Backbone", {"num_register_tokens": 0}),
    KerasHub(
        "DINOv3, SwiGLU, registers",
        "DINOV3Backbone",
        {"use_gated_mlp": True, "hidden_activation": "silu", "use_key_bias": False},
    ),
    KerasHub("CLIP, image tower", "CLIPVisionEncoder"),
    KerasHub(
        "CLIP",
        "CLIPVisionEncoder",
        {"intermediate_activation": "gelu"},
        towers={"projection_dim": 20},
        pooling="file",
    ),
    KerasHub("SigLIP, image tower", "SigLIPVisionEncoder", pooling="file"),
    KerasHub("SigLIP", "SigLIPVisionEncoder", towers={}, pooling="file"),
)


def compare_keras_hub(case: KerasHub, folder: pathlib.Path) -> Opened:
    """Open a model of keras-hub, and compare its outputs."""
    result = Opened("keras_hub", case.title)
    model, random = case.build(), np.random.default_rng(3)
    for weight in model.weights:
        if "position_ids" in weight.path:
            weight.assign(np.arange(weight.shape[-1])[None])
        elif "seed" not in weight.path:
            noise = random.normal(scale=0.2, size=weight.shape)
            weight.assign(noise + ("gamma" in weight.path))
    # DINOv2's file has the positions twice, the same only where it was opened before.
    model.save_to_preset(str(folder / "first"))
    twin = type(model).from_preset(str(folder / "first"))
    twin.save_to_preset(str(folder / "second"))
    arguments = {} if case.pooling == "file" else {"pooling": case.pooling}
    _compare(
        result, folder / "second", "float32", case.outputs, twin, (32, 32), **arguments
    )
    return result


OPEN_CLIP_TEXT = {
    "context_length": 8,
    "vocab_size": 50,
    "width": 24,
    "heads": 3,
    "layers": 1,
}
OPEN_CLIP_VISION = {
    "image_size": 32,
    "layers": 2,
    "width": 48,
    "head_width": HEAD_WIDTH,
    "patch_size": 8,
}


@dataclasses.dataclass(frozen=True)
class OpenCLIP:
    """A model of OpenCLIP.

    Args:
        title: What it is.
        vision: Of `vision_cfg`, beside `OPEN_CLIP_VISION`.
        model: Of `model_cfg`.
        kind: Name of its class, which names the arrays of the text tower.
        opens: Whether a model of ours computes it.
    """

    title: str
    vision: dict[str, JSON] = dataclasses.field(default_factory=dict)
    model: dict[str, JSON] = dataclasses.field(default_factory=dict)
    kind: str = "CLIP"
    opens: bool = True


def _timm_tower(
    title: str, name: str, side: int, pool: str, projection: str | None
) -> OpenCLIP:
    """A tower of timm, which OpenCLIP makes in its full size, and its projection."""
    vision = {
        "timm_model_name": name,
        "image_size": side,
        "timm_pool": pool,
        "timm_proj": projection,
    }
    opens = projection != "linear"
    return OpenCLIP(title, vision, kind="CustomTextCLIP", opens=opens)


OPEN_CLIP = (
    OpenCLIP("ViT"),
    OpenCLIP(
        "ViT, QuickGELU, LayerScale",
        {"ls_init_value": 0.1, "mlp_ratio": 2.5},
        {"quick_gelu": True},
        "CustomTextCLIP",
    ),
    OpenCLIP("ViT, mean of the patches", {"pool_type": "avg"}),
    OpenCLIP("ViT, norm after the pooling", {"final_ln_after_pool": True}),
    OpenCLIP(
        "CLIPA",
        {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True},
        kind="CustomTextCLIP",
    ),
    OpenCLIP(
        "CoCa's pooling",
        {"attentional_pool": True, "attn_pooler_heads": 4},
        opens=False,
    ),
    OpenCLIP("ViT, QK norm", {"qk_norm": True}, opens=False),
    OpenCLIP("ResNet", {"layers": [1, 1, 1, 1], "width": 32}, opens=False),
    _timm_tower("timm's, SigLIP's pooling", "test_vit2", 160, "map", "none"),
    _timm_tower("timm's, CLIP's pooling", "vit_tiny_patch16_224", 224, "token", None),
    _timm_tower("timm's EVA-02", "eva02_tiny_patch14_224", 224, "token", None),
    _timm_tower("timm's and a projection", "test_vit", 160, "", "linear"),
)


class _NoTokenizer:
    """What OpenCLIP writes beside a model is of no use to an image tower."""

    def save_pretrained(self, folder: pathlib.Path) -> None:
        """Write nothing."""


def compare_open_clip(case: OpenCLIP, folder: pathlib.Path) -> Opened:
    """Open a model of OpenCLIP, and compare its outputs."""
    import torch
    from open_clip import model as classes
    from open_clip.push_to_hf_hub import save_for_hf

    result = Opened("open_clip", case.title)
    config: dict[str, JSON] = {
        "embed_dim": 20,
        "vision_cfg": {**OPEN_CLIP_VISION, **case.vision},
        "text_cfg": OPEN_CLIP_TEXT,
        **case.model,
    }
    model = randomize(getattr(classes, case.kind)(**config))
    classes.set_model_preprocess_cfg(model, {"mean": [0.5] * 3, "std": [0.5] * 3})
    save_for_hf(model, _NoTokenizer(), config, folder, safe_serialization=True)

    def outputs(model: Model, pixels: Array) -> Array:
        with torch.no_grad():
            images = torch.tensor(pixels.transpose(0, 3, 1, 2))
            found: Array = model.encode_image(images).numpy()
        return found

    side = config["vision_cfg"]["image_size"]
    _compare(result, folder, "float32", outputs, model, (side, side))
    return result


def rows(folder: pathlib.Path) -> Iterator[Opened]:
    """All architectures, one after the other."""
    todo: list[Callable[[pathlib.Path], Opened]] = [
        functools.partial(compare_timm, name) for name in timm_names()
    ]
    todo += [functools.partial(compare_transformers, case) for case in TRANSFORMERS]
    todo += [functools.partial(compare_keras_hub, case) for case in KERAS_HUB]
    if importlib.util.find_spec("open_clip") is not None:
        todo += [functools.partial(compare_open_clip, case) for case in OPEN_CLIP]
    for number, compare in enumerate(todo):
        place = folder / str(number)
        place.mkdir()
        yield compare(place)


def main() -> None:
    """Print the table, and write it."""
    arguments = make_parser(__doc__ or "", "architectures").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = list(rows(pathlib.Path(folder)))
    show(
        [
            {
                "library": each.library,
                "architecture": each.name,
                **each.difference,
                "back": each.back,
                "refused": each.refused[:90],
            }
            for each in found
        ]
    )
    write([dataclasses.asdict(each) for each in found], arguments.output)


if __name__ == "__main__":
    main()
