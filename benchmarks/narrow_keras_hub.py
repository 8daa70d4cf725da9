"""Narrow copies of keras-hub's presets."""

from benchmarks import torch_libraries  # noqa: F401  isort: skip

import dataclasses
import functools
import json
import pathlib

import numpy as np

from benchmarks.narrow_copies import (
    CLASSES,
    Model,
    Opened,
    compare,
    difference,
    write_back,
)
from keras_vit.typing import JSON, Array

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

        arguments = {**HUB, **self.arguments}
        if self.model == "ViTBackbone":  # which has another name for it
            arguments["mlp_dim"] = arguments.pop("intermediate_dim")
        backbone = getattr(models, self.model)(**arguments)
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
        if hasattr(model, "get_vision_embeddings"):
            return np.asarray(model.get_vision_embeddings(pixels))
        (name,) = model.input if isinstance(model.input, dict) else (None,)
        return np.asarray(model(pixels if name is None else {name: pixels}))


KERAS_HUB = (
    KerasHub("ViT", "ViTBackbone", {"use_mlp_bias": False}),
    KerasHub(
        "ViT, classifier, pre-logits",
        "ViTBackbone",
        {"layer_norm_epsilon": 1e-5},
        task={"intermediate_dim": 20},
        pooling="file",
    ),
    KerasHub(
        "ViT, classifier of the mean",
        "ViTBackbone",
        {"use_class_token": False, "use_patch_bias": False, "use_mha_bias": False},
        task={"pooling": "gap"},
        pooling="file",
    ),
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
    from keras_hub import models

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
    size = (32, 32)
    ours = compare(
        result, folder / "second", "float32", case.outputs, twin, size, **arguments
    )
    if ours is not None and (back := write_back(result, ours, folder, "keras_hub")):
        name = "task.json" if case.task is not None else "config.json"
        kind = json.loads((back / name).read_text("utf-8"))["class_name"]
        twin = getattr(models, kind).from_preset(str(back))
        outputs = functools.partial(case.outputs, twin)
        result.back = difference(ours, outputs, size)
    return result
