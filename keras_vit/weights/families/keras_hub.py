"""keras-hub's checkpoints: ViT presets and weight files, as HDF5 names them.

Source: keras-team/keras-hub, models/vit. A preset keeps the backbone and the classifier
in two files, `save_weights` writes one with a longer path.
"""

import re
from collections.abc import Iterable
from typing import Any, ClassVar

from keras_vit.weights.families.family import (
    QKV_BIASES,
    Family,
    one_or_all,
    qkv_biases,
    renamed,
)
from keras_vit.weights.families.layouts import (
    HEADS_FIRST,
    HEADS_LAST,
    SAME,
    WITHOUT_BATCH,
    ArrayRow,
    affine,
    norm,
    row,
)
from keras_vit.weights.reading import ArrayFile

_NAMES = ("vars/0", "vars/1")
_EMBEDDING = "layers/vi_t_patching_and_embedding"


def _block() -> tuple[ArrayRow, ...]:
    theirs = "layers/vi_t_encoder/encoder_layers/vi_t_encoder_block_{i}"
    ours = "encoder_block_{i}"
    rows: list[ArrayRow] = []
    for name in ("query", "key", "value"):
        dense, projection = f"{theirs}/mha/{name}_dense/", f"{ours}/attention/{name}"
        rows += [
            row(f"{dense}{_NAMES[0]}", f"{projection}/kernel", layout=HEADS_LAST),
            row(f"{dense}{_NAMES[1]}", f"{projection}/bias", layout=HEADS_LAST),
        ]
    return (
        *rows,
        *affine(
            f"{theirs}/mha/output_dense/", f"{ours}/attention/out", HEADS_FIRST, _NAMES
        ),
        *norm(f"{theirs}/layer_norm_1/", f"{ours}/norm1", _NAMES),
        *norm(f"{theirs}/layer_norm_2/", f"{ours}/norm2", _NAMES),
        *affine(f"{theirs}/mlp/dense_1/", f"{ours}/mlp/Dense_0", SAME, _NAMES),
        *affine(f"{theirs}/mlp/dense_2/", f"{ours}/mlp/Dense_1", SAME, _NAMES),
    )


KERAS_HUB = (
    row(f"{_EMBEDDING}/vars/0", "class_token/token"),
    *affine(f"{_EMBEDDING}/patch_embedding/", "embedding", SAME, _NAMES),
    row(
        f"{_EMBEDDING}/position_embedding/vars/0",
        "position_embedding/embedding",
        layout=WITHOUT_BATCH,
    ),
    *_block(),
    *norm("layers/vi_t_encoder/layer_norm/", "encoder_norm", _NAMES),
    *affine("pre_logits/", "pre_logits", SAME, _NAMES),
    *affine("predictions/", "head", SAME, _NAMES),
)


# Our names of what the backbone's config states.
_OPTIONS = {
    "patch_size": "patch_size",
    "hidden_dim": "width",
    "num_layers": "depth",
    "mlp_dim": "mlp_dim",
    "num_heads": "heads",
    "use_class_token": "class_token",
    "layer_norm_epsilon": "norm_epsilon",
}


class KerasHub(Family):
    """keras-hub's ViTs."""

    project = "keras_hub"
    title = "keras-hub ViT"
    mark = f"{_EMBEDDING}/patch_embedding/vars/0"
    rows = KERAS_HUB
    holds = frozenset(("class_token", *QKV_BIASES, "output_bias"))
    configured = ("norm_epsilon", "pooling")
    poolings: ClassVar = {"token": "token", "gap": "avg"}

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the model, every block numbered -> names in the file.

        Dense layers of the task are numbered in the file: the last is the classifier,
        one before it is `pre_logits`. A compiled task's optimizer is left out.
        """
        names = [name for name in names if not name.startswith("optimizer/")]
        pre_logits = any(name.startswith("layers/dense_1/") for name in names)
        heads = {"layers/dense/": "predictions/"}
        if pre_logits:
            heads = {"layers/dense/": "pre_logits/", "layers/dense_1/": "predictions/"}
        inside = {}
        for name in names:
            bare = name.removeprefix("layers/vi_t_backbone/")
            bare = re.sub(r"/vi_t_encoder_block/", "/vi_t_encoder_block_0/", bare)
            for dense, head in heads.items():
                bare = bare.replace(dense, head) if bare.startswith(dense) else bare
            inside[bare] = name
        return inside

    def stated(self, file: ArrayFile, swiglu: bool) -> dict[str, Any]:
        """What the backbone's config states."""
        config = file.config.get("config", {})
        # One argument for all four projections of the attention.
        output = renamed(config, {"use_mha_bias": "output_bias"})
        return {
            **renamed(config, _OPTIONS),
            **qkv_biases(config, "use_mha_bias"),
            **output,
        }

    def image_size(self, file: ArrayFile) -> Any:
        """The backbone's (H, W, C), without the channels."""
        shape = file.config.get("config", {}).get("image_shape")
        return shape and (shape[0], shape[1])

    def pooling(self, file: ArrayFile) -> tuple[str | None, bool]:
        """The task's pooling; its `"gap"` is a mean over the class token too."""
        return file.beside("task.json").get("config", {}).get("pooling"), True

    def preprocessing_config(self, file: ArrayFile) -> tuple[str, Any]:
        """What its image converter is built from."""
        name = "image_converter.json"
        return name, file.beside(name).get("config")

    def preprocessing(
        self, config: dict[str, Any], model: dict[str, Any]
    ) -> dict[str, Any]:
        """The image converter's scale and offset as mean and standard deviation."""
        if config.get("pad_to_aspect_ratio"):
            raise ValueError("pad_to_aspect_ratio=True")
        scale, offset = config.get("scale") or 1.0, config.get("offset") or 0.0
        scales = scale if isinstance(scale, list) else [scale]
        offsets = offset if isinstance(offset, list) else [offset] * len(scales)
        scales = scales * (len(offsets) // len(scales))
        pairs = list(zip(scales, offsets, strict=True))
        return {
            "mean": one_or_all([-offset / scale for scale, offset in pairs]),
            "std": one_or_all([1 / scale for scale, _ in pairs]),
            "interpolation": config.get("interpolation", "bilinear"),
            "antialias": config.get("antialias", False),
            "resize": "small" if config.get("crop_to_aspect_ratio", True) else "plain",
        }

    def preprocessing_differences(self, policy: dict[str, Any]) -> list[str]:
        """It crops the image, not the resized one."""
        if policy["resize"] == "plain":
            return []
        return [
            "crops before it resizes, and `ImagePreprocessing` after: pixels differ"
        ]
