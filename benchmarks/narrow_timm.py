"""Narrow copies of timm's architectures, as timm pushes them to the Hub."""

from benchmarks import torch_libraries  # noqa: F401  isort: skip

import functools
import json
import pathlib

from benchmarks.narrow_copies import (
    CLASSES,
    DTYPES,
    GRID,
    HEAD_WIDTH,
    Model,
    Opened,
    compare,
    difference,
    randomize,
    write_back,
)
from benchmarks.timm_architectures import TABLE
from keras_vit.typing import JSON, Array


def timm_names() -> list[str]:
    """The architectures of our table, but BiT's, which have no small copy."""
    table = json.loads(TABLE.read_text("utf-8"))["architectures"]
    return [name for name, own in table.items() if own["class"] != "ResNetV2"]


def _timm_model(name: str) -> Model:
    """A narrow copy of an architecture."""
    import timm

    own = json.loads(TABLE.read_text("utf-8"))["architectures"][name]
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
    if own["class"] == "NaFlexVit":
        arguments["pos_embed_grid_size"] = (GRID, GRID + 1)
    elif "embed_layer" not in own:
        arguments["img_size"] = GRID * own.get("patch_size", 16)
    if isinstance(own.get("num_kv_heads"), list):
        arguments["num_kv_heads"] = [heads] * 2
    return timm.create_model(name, **arguments)


def _image_size(model: Model) -> tuple[int, int]:
    """(H, W) of the images that a model is compared with."""
    if hasattr(model, "embeds"):
        height, width = model.embeds.pos_embed_grid_size
        side = model.embeds.patch_size[0]
        return height * side, width * side
    height, width = getattr(model.patch_embed, "img_size", None) or (224, 224)
    return height, width


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
    size = _image_size(model)

    def outputs(model: Model, pixels: Array) -> Array:
        with torch.no_grad():
            found: Array = model(torch.tensor(pixels.transpose(0, 3, 1, 2))).numpy()
        return found

    ours = None
    for dtype in DTYPES:
        with torch.no_grad():
            write_timm(model, folder, dtype)
        opened = compare(result, folder, dtype, outputs, model, size)
        ours = ours or opened
    if ours is not None and (back := write_back(result, ours, folder, "timm")):
        twin = timm.create_model(f"local-dir:{back}", pretrained=True).eval()
        result.back = difference(ours, functools.partial(outputs, twin), size)
    return result
