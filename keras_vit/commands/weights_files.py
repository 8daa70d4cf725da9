"""Commands that open weights files: `convert`, and `info FILE`."""

import argparse
import os
import pathlib
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import keras_vit.api  # noqa: F401  the whole library, registered with Keras
from keras_vit.base import ImageModel
from keras_vit.classifier import ImageClassifier
from keras_vit.common.atomic_files import replacing
from keras_vit.common.file_names import model_file
from keras_vit.costs import resnet_costs, vit_costs
from keras_vit.opening import holds_own_model, open_model
from keras_vit.options import ResNetOptions, ViTOptions
from keras_vit.resnet import ResNet
from keras_vit.specs import RESNET_DEPTHS, SPECS, patch_side
from keras_vit.vit import VisionTransformer
from keras_vit.weights.checkpoint import Checkpoint, open_checkpoint
from keras_vit.weights.config import assumed_settings, model_arguments
from keras_vit.weights.preprocessing_configs import preprocessing_arguments
from keras_vit.weights.presets import check_exists, fetch, find_preset
from keras_vit.weights.saving import WRITTEN, save_checkpoint

NAMED = 5  # class names that `info` prints
# Options that it prints where they have their default, too.
ALWAYS_NAMED = ("gelu", "norm_epsilon", "position_embedding")


def convert(arguments: argparse.Namespace) -> None:
    """Write IN as OUT."""
    target = pathlib.Path(arguments.target)
    family = {".npz": "google", ".keras": "keras"}.get(target.suffix, arguments.to)
    if family is None or (arguments.to is not None and family != arguments.to):
        raise ValueError(
            "OUT must be NAME.keras, NAME.npz, or a folder with --to "
            f"{' or '.join(WRITTEN[1:])}. Received: {arguments.target!r}, "
            f"--to {arguments.to}"
        )
    both = target.exists() and os.path.exists(arguments.source)
    if both and target.samefile(arguments.source):
        raise ValueError(f"OUT must not be IN. Received: {arguments.target!r}")
    changes = {
        name: getattr(arguments, name)
        for name in ("heads", "image_size")
        if getattr(arguments, name) is not None
    }
    model = open_model(arguments.source, arguments.resample, arguments.grid, **changes)
    if family == "keras":
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            model.save(temporary)
        written = [target]
    else:
        written = save_checkpoint(model, target, family)
    for path in written:
        print(f"{path}: {path.stat().st_size:,} bytes")


def print_file(source: str) -> None:
    """Print what a file is: family, model, classifier, grid, pixels.

    Args:
        source: See `open_model`.
    """
    row = find_preset(source)
    if row is None:
        check_exists(source)
    path = model_file(fetch(row or source))
    if holds_own_model(path):
        _print_facts(str(path), model_facts(open_model(path)))
        return
    with open_checkpoint(path) as checkpoint:
        arguments = model_arguments(checkpoint)
        facts = _facts(checkpoint, arguments)
        for key, value in (preprocessing_arguments(checkpoint) or {}).items():
            facts[key] = str(value)
        _print_facts(source, facts)


def _print_facts(title: str, facts: dict[str, str]) -> None:
    table = Table(title=title, show_header=False)
    for key, value in facts.items():
        table.add_row(key, value)
    Console().print(table)


def model_facts(model: ImageModel) -> dict[str, str]:
    """What a model is, in words, by title: architecture, size, pixels, classes."""
    height, width = model.image_size
    facts = {
        "family": "Keras, keras_vit",
        "model": _model_name(model),
        "parameters": f"{model.count_params():,}",
        "size": _size(model),
        "GFLOPs": _gflops(model),
        "image": f"{height} x {width} x {model.channels} pixels",
        "reads": model.input_pixels,
        "output": _output(model),
        "class names": _names(model.class_names),
        "dtype": model.dtype_policy.name,
    }
    return {title: fact for title, fact in facts.items() if fact}


def _model_name(model: ImageModel) -> str:
    if isinstance(model, ImageClassifier):
        return f"ImageClassifier around {model.backbone.name}"
    return _variant(model.options)


def _size(model: ImageModel) -> str:
    sizes = ("width", "depth", "mlp_dim", "heads", "blocks", "width_factor")
    given = {name: getattr(model, name) for name in sizes if hasattr(model, name)}
    return ", ".join(f"{name}={value}" for name, value in given.items())


def _gflops(model: ImageModel) -> str:
    """GFLOPs for one image where there is a closed form, else ""."""
    size = (model.image_size, model.channels, model.classes)
    if isinstance(model, ResNet):
        costs = resnet_costs(model.blocks, model.width_factor, *size)
    elif isinstance(model, VisionTransformer):
        costs = vit_costs(model)
    else:
        return ""
    return f"{costs.flops / 1e9:.3g} for one image"


def _output(model: ImageModel) -> str:
    if not model.classes:
        return "features, no classifier"
    kind = model.classifier_activation or "logits"
    return f"{kind} of {model.classes:,} classes"


def _names(names: list[str] | None) -> str:
    if names is None:
        return "none"
    more = ", ..." if len(names) > NAMED else ""
    return f"{len(names):,}: {', '.join(names[:NAMED])}{more}"


def _facts(checkpoint: Checkpoint, arguments: dict[str, Any]) -> dict[str, str]:
    entries = checkpoint.entries.values()
    arrays = {id(array): array for entry in entries for array in entry.arrays}
    parameters = sum(int(np.prod(array.shape)) for array in arrays.values())
    family = checkpoint.described
    facts = {
        "family": f"{family.title}, {checkpoint.file.format}",
        "model": _variant(arguments),
        "arrays": f"{len(arrays)} of the model, {parameters:,} parameters",
        "classifier": _classifier(checkpoint, arguments),
    }
    if "image_size" in arguments:
        height, width = arguments["image_size"]
        facts["image"] = f"{height} x {width} x {arguments['channels']} pixels"
        side = patch_side(arguments["patch_size"], arguments.get("resnet_blocks"))
        square = "" if "grid" in arguments else "; assumed to be square"
        facts["grid"] = f"{height // side} x {width // side} patches{square}"
    printed = ("grid", "image_size", "channels", "classes", "pooling", "class_names")
    options = ResNetOptions if family.model == "resnet" else ViTOptions
    for key, value in arguments.items():
        usual = key not in ALWAYS_NAMED and value == getattr(options, key, None)
        if not usual and key not in printed:
            facts[key] = str(value)
    if guessed := assumed_settings(checkpoint):
        facts["assumed"] = f"{', '.join(guessed)}: there is no config.json"
    for title, names in (
        ("not part of the model", checkpoint.outside),
        ("classifier not read", checkpoint.second_classifiers),
        ("not known", checkpoint.unknown),
    ):
        if names:
            facts[title] = f"{len(names)} arrays: {', '.join(names[:3])} ..."
    return facts


def _classifier(checkpoint: Checkpoint, arguments: dict[str, Any]) -> str:
    if arguments["classes"] is None:
        return f"none; features pooling={arguments['pooling']!r}"
    empty = not np.any(checkpoint.entries["head/kernel"].read())
    zeros = ", all zeros: it predicts nothing" if empty else ""
    return f"{arguments['classes']:,} classes, pooling={arguments['pooling']!r}{zeros}"


def _variant(arguments: dict[str, Any]) -> str:
    """Name of the published size with these arguments, if any."""
    blocks: Any = arguments.get("blocks", arguments.get("resnet_blocks"))
    depths = {units: f"R{depth}" for depth, units in RESNET_DEPTHS.items()}
    # Stage 4 of a hybrid may be merged into stage 3.
    depths |= {(*u[:2], u[2] + u[3]): f"R{d}" for d, u in RESNET_DEPTHS.items()}
    stem = "R" if blocks == () else depths.get(blocks, str(blocks))
    if "blocks" in arguments:
        return f"BiT {stem}x{arguments['width_factor']}"
    size = tuple(arguments[key] for key in ("width", "depth", "mlp_dim", "swiglu"))
    names = {(s.width, s.depth, s.mlp_dim, s.swiglu): name for name, s in SPECS.items()}
    name = names.get(size)
    if name is None or (blocks and blocks not in depths):
        kind = "ViT" if blocks is None else "ViT behind a ResNet"
        return f"{kind}, of no published size"
    if blocks is None:
        return f"ViT {name}/{arguments['patch_size']}"
    patch = patch_side(arguments["patch_size"], blocks)
    patch = patch // 2 if blocks == () else patch  # as the official name has it
    return f"ViT {stem}+{name}/{patch}"
