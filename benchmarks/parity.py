"""Do other libraries' models give the same logits through our loader, and back?

    python -m benchmarks.parity    # the published sizes; about five minutes

`make parity` compares the same models in small. Every model is built by its own library
with all weights random, written by that library, and read by `from_preset`; then ours
is written by `save_checkpoint` and read by the library. Needs
`pip install -e ".[parity]"`.
"""

from benchmarks import torch_libraries  # noqa: F401  isort: skip

import dataclasses
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import published_arrays
from benchmarks.narrow_copies import Model
from benchmarks.report import make_parser, show, write
from keras_vit.typing import Array

TOLERANCE = 1e-4


Arguments = dict[str, Any]  # of another library's model
ImageSize = tuple[int, int]  # (H, W)
Sizes = tuple[ImageSize, ImageSize]  # of the published model and of its small copy
AT_224: Sizes = ((224, 224), (64, 64))
AT_384: Sizes = ((384, 384), (96, 96))
G14_AT_224: Sizes = ((224, 224), (70, 70))
AT_518: Sizes = ((518, 518), (70, 70))


@dataclasses.dataclass(frozen=True)
class Case:
    """One model of another library."""

    title: str  # what it is, in our grammar
    library: str  # key of `LIBRARIES`
    model: Arguments  # the library's arguments for the published size
    sizes: Sizes = AT_224
    back: bool = True  # whether what we write is read too, if the library can


def _timm(
    title: str,
    architecture: str,
    sizes: Sizes = AT_224,
    library: str = "timm",
    back: bool = True,
    **options: Any,
) -> Case:
    model = {"architecture": architecture, **options}
    return Case(title, library, model, sizes, back)


def _keras_hub(width: int, depth: int, heads: int, mlp_dim: int) -> dict[str, int]:
    return {
        "hidden_dim": width,
        "num_layers": depth,
        "num_heads": heads,
        "mlp_dim": mlp_dim,
    }


B16, R50B16, R50X1 = "vit_base_patch16_224", "vit_base_r50_s16_224", "resnetv2_50x1_bit"
TANH: Arguments = {"act_layer": "gelu_tanh"}
MEAN: Arguments = {"global_pool": "avg", "class_token": False}
MAP: Arguments = {"global_pool": "map", "class_token": False}
DINOV2_S = {"patch_size": 14, "hidden_size": 384, "num_attention_heads": 6}
DINOV2_G = {
    **{"patch_size": 14, "hidden_size": 1536, "num_hidden_layers": 40},
    **{"num_attention_heads": 24, "use_swiglu_ffn": True},
}

CASES = (
    _timm("Ti/16", "vit_tiny_patch16_224"),
    _timm("S/32", "vit_small_patch32_224"),
    _timm("B/16", B16),
    _timm("B/32", "vit_base_patch32_224"),
    _timm("B/16 at 384", B16, AT_384),
    _timm("B/16 at 224x320", B16, ((224, 320), (64, 80))),
    _timm("B/16, tanh GELU", B16, **TANH),
    _timm("B/16, GAP, fc_norm", B16, **MEAN),
    _timm("B/16, GAP, no fc_norm", B16, **MEAN, fc_norm=False),
    _timm("B/16, MAP", B16, **MAP),
    _timm("B/16, 4 registers", B16, reg_tokens=4, no_embed_class=True),
    _timm("B/16, 4 registers with positions", B16, reg_tokens=4),
    _timm("B/16, LayerScale", B16, init_values=0.1, no_embed_class=True),
    _timm("B/16, qk-norm", B16, qk_norm=True),
    _timm("R+Ti/16", "vit_tiny_r_s16_p8_224"),
    _timm("R26+S/32", "vit_small_r26_s32_224"),
    _timm("R50+B/16", R50B16),
    _timm("BiT R50x1", R50X1),
    _timm("DeiT III M/16", "deit3_medium_patch16_224"),
    _timm("DeiT III S/16 at 384", "deit3_small_patch16_384", AT_384),
    _timm("DINOv2 S/14", "vit_small_patch14_dinov2", AT_518),
    _timm("DINOv2 S/14, 4 registers", "vit_small_patch14_reg4_dinov2", AT_518),
    # Both directions of a billion parameters would need 20 GB.
    _timm("DINOv2 g/14", "vit_giant_patch14_dinov2", G14_AT_224, back=False),
    # transformers' defaults are B/16's.
    Case("B/16", "transformers", {}),
    Case("B/16 at 224x320", "transformers", {}, ((224, 320), (48, 64))),
    Case("B/16, ViTModel", "transformers-bare", {}),
    Case("DeiT B/16 distilled", "transformers-deit", {}),
    Case("DINOv2 S/14", "transformers-dinov2", DINOV2_S, AT_518),
    Case("DINOv2 S/14", "transformers-dinov2-registers", DINOV2_S, AT_518),
    Case("DINOv2 g/14", "transformers-dinov2-registers", DINOV2_G, G14_AT_224),
    Case("B/16", "keras-hub", _keras_hub(768, 12, 12, 3072)),
    Case("L/16", "keras-hub", _keras_hub(1024, 24, 16, 4096)),
    _timm("B/16", B16, library="timm .npz", **TANH),
    _timm("R50+B/16", R50B16, library="timm .npz", **TANH),
    _timm("B/16 of big_vision, MAP", B16, library="timm .npz", **TANH, **MAP),
    _timm("BiT R50x1", R50X1, library="timm .npz"),
)


@dataclasses.dataclass(frozen=True)
class Library:
    """How a library builds, runs, writes and reads a model."""

    # Arguments, (H, W) and classes to a model with random weights; its logits of pixels
    # [B, H, W, 3]; what `from_preset` reads, if not the folder; the model in a folder.
    package: str  # which must be installed
    small: Arguments  # what replaces a model's arguments in its small copy
    build: Callable[[Arguments, ImageSize, int], Model]
    run: Callable[[Model, Array], Array]
    write: Callable[[Model, pathlib.Path], pathlib.Path | None]
    read: Callable[[pathlib.Path], Model] | None = None


def _noise(shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Random numbers that keep a signal's size through a layer of this shape.

    Outputs come first in `shape`. Vectors and tokens, of which all axes but one or two
    are 1, get 0.2; attention's [K, A, D] counts as [D, D].
    """
    if len(shape) == 3 and 1 not in shape:
        scale = max(shape) ** -0.5
    elif len(shape) in (2, 4):
        scale = np.sqrt(shape[0] / np.prod(shape))
    else:
        scale = 0.2
    return np.asarray(scale * random.normal(size=shape), "float32")


def _disturb(model: Model) -> Model:
    """Random numbers in every parameter, also where a library begins with 0 or 1."""
    import torch

    random = np.random.default_rng(5)
    with torch.no_grad():
        for parameter in model.parameters():
            start = 0 if parameter.ndim > 1 else parameter
            parameter.copy_(start + torch.tensor(_noise(parameter.shape, random)))
    return model.eval()


def _run_torch(model: Model, pixels: Array) -> Array:
    import torch

    with torch.no_grad():
        outputs: Any = model(torch.tensor(pixels.transpose(0, 3, 1, 2)))
    for name in ("logits", "pooler_output"):
        outputs = getattr(outputs, name, outputs)
    return np.asarray(outputs)


def _build_timm(arguments: Arguments, image_size: ImageSize, classes: int) -> Model:
    import timm

    arguments = dict(arguments)
    architecture = arguments.pop("architecture")
    if not architecture.startswith("resnetv2"):
        arguments["img_size"] = image_size
    model = timm.create_model(architecture, num_classes=classes, **arguments)
    return _disturb(model)


def _write_timm(model: Model, folder: pathlib.Path) -> None:
    import timm.models

    config = None
    if hasattr(model, "blocks"):
        block = model.blocks[0]
        names = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "SiLU": "silu"}
        arguments = {
            "num_heads": block.attn.num_heads,
            "img_size": list(model.patch_embed.img_size),
            "act_layer": names[type(block.mlp.act).__name__],
        }
        config = {"model_args": arguments}
    timm.models.save_for_hf(
        model, str(folder), model_config=config, safe_serialization=True
    )


def _write_npz(model: Model, folder: pathlib.Path) -> pathlib.Path:
    """An .npz of random numbers, read by timm's own loader."""
    folder.mkdir()
    path = folder / "model.npz"
    random = np.random.default_rng(5)
    arrays: dict[str, Any] = {
        name: _noise(shape[::-1], random).transpose()
        for name, shape in _npz_shapes(model).items()
    }
    np.savez(path, **arrays)
    model.load_pretrained(str(path))
    return path


def _npz_shapes(model: Model) -> published_arrays.Shapes:
    classes = model.num_classes
    if hasattr(model, "stages"):
        return published_arrays.bit(published_arrays.UNITS["R50"], 1, classes)
    mlp, embedding = model.blocks[0].mlp, model.patch_embed
    heads = model.blocks[0].attn.num_heads
    size = (model.embed_dim, len(model.blocks), mlp.fc1.out_features, heads)
    sides = embedding.proj.kernel_size[0], embedding.grid_size[0]
    if model.attn_pool is not None:
        return published_arrays.big_vision(size, *sides, classes, pooling="map")
    hybrid = hasattr(embedding, "backbone")
    units = published_arrays.UNITS["R50-3"] if hybrid else None
    return published_arrays.google(size, *sides, classes, units=units)


def _read_timm(folder: pathlib.Path) -> Model:
    import timm

    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


def _hugging_face(name: str) -> Library:
    """A class of transformers' models; we write ViTs alone."""
    small = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    if "Dinov2" not in name:
        small["intermediate_size"] = 52

    def build(arguments: Arguments, image_size: ImageSize, classes: int) -> Model:
        import transformers

        kind = name.removesuffix("Model").removesuffix("ForImageClassification")
        config: Any = getattr(transformers, f"{kind}Config")
        height, width = image_size
        size = height if height == width else [height, width]
        config = config(**arguments, image_size=size, num_labels=classes)
        return _disturb(getattr(transformers, name)(config))

    def write(model: Model, folder: pathlib.Path) -> None:
        model.save_pretrained(folder)

    def read(folder: pathlib.Path) -> Model:
        import transformers

        return getattr(transformers, name).from_pretrained(folder).eval()

    back = read if name.startswith("ViT") else None
    return Library("transformers", small, build, _run_torch, write, back)


def _build_keras_hub(
    arguments: Arguments, image_size: ImageSize, classes: int
) -> Model:
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(*image_size, 3), patch_size=16, **arguments
    )
    model = keras_hub.models.ViTImageClassifier(
        backbone=backbone, num_classes=classes, preprocessor=None
    )
    random = np.random.default_rng(5)
    for weight in model.weights:
        # Keras has the outputs last where PyTorch has them first.
        noise = _noise(weight.shape[::-1], random).transpose()
        weight.assign(noise if len(weight.shape) > 1 else weight + noise)
    return model


def _read_keras_hub(folder: pathlib.Path) -> Model:
    import keras_hub

    return keras_hub.models.ImageClassifier.from_preset(str(folder))


SMALL_TIMM = {"embed_dim": 24, "depth": 2, "num_heads": 3}
TIMM = ("timm", SMALL_TIMM, _build_timm, _run_torch)
LIBRARIES = {
    "timm": Library(*TIMM, _write_timm, _read_timm),
    "timm .npz": Library(*TIMM, _write_npz),
    "transformers": _hugging_face("ViTForImageClassification"),
    "transformers-bare": _hugging_face("ViTModel"),
    "transformers-deit": _hugging_face("DeiTForImageClassification"),
    "transformers-dinov2": _hugging_face("Dinov2Model"),
    "transformers-dinov2-registers": _hugging_face("Dinov2WithRegistersModel"),
    "keras-hub": Library(
        "keras_hub",
        _keras_hub(24, 2, 3, 52),
        _build_keras_hub,
        lambda model, pixels: np.asarray(model(pixels)),
        lambda model, folder: model.save_to_preset(str(folder)),
        _read_keras_hub,
    ),
}


def compare(case: Case, small: bool, folder: pathlib.Path) -> dict[str, Any]:
    """Runs one case in both directions.

    Returns:
        The model's parameters; the largest of the library's logits, without sign; the
        largest difference of ours from them ("read"), and from those of the library
        with what we wrote ("back"), if it reads it.
    """
    import keras_vit

    library = LIBRARIES[case.library]
    bit = case.title.startswith("BiT")
    arguments = case.model | (library.small if small and not bit else {})
    image_size = case.sizes[1 if small else 0]
    twin = library.build(arguments, image_size, 7 if small else 1000)
    random = np.random.default_rng(6)
    pixels = random.uniform(-1, 1, (2, *image_size, 3)).astype("float32")
    path = library.write(twin, folder / "theirs") or folder / "theirs"
    expected = library.run(twin, pixels)
    del twin
    model_class: Any = keras_vit.ResNet if bit else keras_vit.VisionTransformer
    model = model_class.from_preset(path, image_size=image_size)
    ours = np.asarray(model(pixels))
    back = None
    if case.back and library.read is not None:
        family = library.package.replace("transformers", "hugging_face")
        keras_vit.save_checkpoint(model, folder / "ours", family)
        twin = library.read(folder / "ours")
        back = float(np.abs(library.run(twin, pixels) - ours).max())
    return {
        "parameters": model.count_params(),
        "logits": float(np.abs(expected).max()),
        "read": float(np.abs(ours - expected).max()),
        "back": back,
    }


def main() -> int:
    """Prints the table and writes `benchmarks/parity.json`."""
    options = make_parser(__doc__, "parity").parse_args()
    results = {}
    for case in CASES:
        name = f"{case.library}: {case.title}"
        with tempfile.TemporaryDirectory() as folder:
            results[name] = compare(case, False, pathlib.Path(folder))
        print(f"{name}: {results[name]['read']:.1e}", file=sys.stderr)
    show([{"model": name, **row} for name, row in results.items()])
    write(results, options.output)
    worst = max(max(r["read"], r["back"] or 0.0) for r in results.values())
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main())
