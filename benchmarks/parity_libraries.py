"""How timm, transformers and keras-hub build, run, write and read their models."""

from benchmarks import torch_libraries  # noqa: F401  isort: skip

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import published_arrays


@dataclasses.dataclass(frozen=True)
class Library:
    """How a library builds, runs, writes and reads a model.

    Args:
        package: Its name, which must be installed.
        build: (arguments, (H, W), classes) -> the model with random weights.
        run: (model, pixels [B, H, W, 3]) -> logits.
        write: (model, folder) -> the path for `from_preset`.
        read: (folder) -> the model.
    """

    package: str
    build: Callable[[dict[str, Any], tuple[int, int], int], Any]
    run: Callable[[Any, np.ndarray], np.ndarray]
    write: Callable[[Any, pathlib.Path], pathlib.Path]
    read: Callable[[pathlib.Path], Any] | None = None


def _noise(shape, random) -> np.ndarray:
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
    return (scale * random.normal(size=shape)).astype("float32")


def _disturb(model):
    """Random numbers in every parameter, also where a library begins with 0 or 1."""
    import torch

    random = np.random.default_rng(5)
    with torch.no_grad():
        for parameter in model.parameters():
            start = 0 if parameter.ndim > 1 else parameter
            parameter.copy_(start + torch.tensor(_noise(parameter.shape, random)))
    return model.eval()


def _run_torch(model, pixels):
    import torch

    with torch.no_grad():
        outputs = model(torch.tensor(pixels.transpose(0, 3, 1, 2)))
    for name in ("logits", "pooler_output"):
        outputs = getattr(outputs, name, outputs)
    return outputs.numpy()


def _build_timm(arguments, image_size, classes):
    import timm

    arguments = dict(arguments)
    architecture = arguments.pop("architecture")
    if not architecture.startswith("resnetv2"):
        arguments["img_size"] = image_size
    model = timm.create_model(architecture, num_classes=classes, **arguments)
    return _disturb(model)


def _write_timm(model, folder):
    import timm.models

    timm.models.save_for_hf(
        model, folder, model_config=_timm_config(model), safe_serialization=True
    )
    return folder


def _timm_config(model):
    if not hasattr(model, "blocks"):
        return None
    block = model.blocks[0]
    return {
        "model_args": {
            "num_heads": block.attn.num_heads,
            "img_size": list(model.patch_embed.img_size),
            "act_layer": {"GELU": "gelu", "GELUTanh": "gelu_tanh", "SiLU": "silu"}[
                type(block.mlp.act).__name__
            ],
        }
    }


def _write_npz(model, folder):
    """An .npz of random numbers, read by timm's own loader."""
    folder.mkdir()
    path = folder / "model.npz"
    random = np.random.default_rng(5)
    arrays = {
        name: _noise(shape[::-1], random).transpose()
        for name, shape in _npz_shapes(model).items()
    }
    np.savez(path, **arrays)  # type: ignore[arg-type]
    model.load_pretrained(str(path))
    return path


def _npz_shapes(model):
    if hasattr(model, "stages"):
        return published_arrays.bit(published_arrays.UNITS["R50"], 1, model.num_classes)
    block, embedding = model.blocks[0], model.patch_embed
    size = (
        model.embed_dim,
        len(model.blocks),
        block.mlp.fc1.out_features,
        block.attn.num_heads,
    )
    patch, grid = embedding.proj.kernel_size[0], embedding.grid_size[0]
    if model.attn_pool is not None:
        return published_arrays.big_vision(
            size, patch, grid, model.num_classes, pooling="map"
        )
    hybrid = hasattr(embedding, "backbone")
    units = published_arrays.UNITS["R50-3"] if hybrid else None
    return published_arrays.google(size, patch, grid, model.num_classes, units=units)


def _read_timm(folder):
    import timm

    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


def _build_transformers(name):
    def build(arguments, image_size, classes):
        import transformers

        kind = name.removesuffix("Model").removesuffix("ForImageClassification")
        config: Any = getattr(transformers, f"{kind}Config")
        height, width = image_size
        size = height if height == width else [height, width]
        model = getattr(transformers, name)(
            config(**arguments, image_size=size, num_labels=classes)
        )
        return _disturb(model)

    return build


def _write_transformers(model, folder):
    model.save_pretrained(folder)
    return folder


def _read_transformers(name):
    def read(folder):
        import transformers

        return getattr(transformers, name).from_pretrained(folder).eval()

    return read


def _build_keras_hub(arguments, image_size, classes):
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


def _write_keras_hub(model, folder):
    model.save_to_preset(str(folder))
    return folder


def _transformers(name: str) -> Library:
    return Library(
        "transformers",
        _build_transformers(name),
        _run_torch,
        _write_transformers,
        _read_transformers(name),
    )


LIBRARIES = {
    "timm": Library("timm", _build_timm, _run_torch, _write_timm, _read_timm),
    "timm .npz": Library("timm", _build_timm, _run_torch, _write_npz),
    "transformers": _transformers("ViTForImageClassification"),
    "transformers-bare": _transformers("ViTModel"),
    "transformers-deit": _transformers("DeiTForImageClassification"),
    "transformers-dinov2": _transformers("Dinov2Model"),
    "transformers-dinov2-registers": _transformers("Dinov2WithRegistersModel"),
    "keras-hub": Library(
        "keras_hub",
        _build_keras_hub,
        lambda model, pixels: np.asarray(model(pixels)),
        _write_keras_hub,
    ),
}
