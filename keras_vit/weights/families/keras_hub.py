"""keras-hub's checkpoints: what its presets have in common, and its ViTs.

Source: keras-team/keras-hub, models/vit. A preset keeps the backbone and the classifier
in two HDF5 files, `save_weights` writes one with a longer path.
"""

from collections.abc import Iterable
from typing import ClassVar

from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import (
    Config,
    ConfigKey,
    Keys,
    Stated,
    read_config,
    says,
    says_nothing,
)
from keras_vit.weights.families.family import Family, one_or_all
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

NAMES = ("vars/0", "vars/1")  # of a kernel and its bias, of a norm's gamma and beta
_EMBEDDING = "layers/vi_t_patching_and_embedding"


def attention(theirs: str, ours: str) -> tuple[ArrayRow, ...]:
    """Rows of a `keras.layers.MultiHeadAttention`."""
    rows: list[ArrayRow] = []
    for name in ("query", "key", "value"):
        dense, projection = f"{theirs}/{name}_dense/", f"{ours}/{name}"
        rows += [
            row(f"{dense}{NAMES[0]}", f"{projection}/kernel", layout=HEADS_LAST),
            row(f"{dense}{NAMES[1]}", f"{projection}/bias", layout=HEADS_LAST),
        ]
    return (
        *rows,
        *affine(f"{theirs}/output_dense/", f"{ours}/out", HEADS_FIRST, NAMES),
    )


def _block() -> tuple[ArrayRow, ...]:
    theirs = "layers/vi_t_encoder/encoder_layers/vi_t_encoder_block_{i}"
    ours = "encoder_block_{i}"
    return (
        *attention(f"{theirs}/mha", f"{ours}/attention"),
        *norm(f"{theirs}/layer_norm_1/", f"{ours}/norm1", NAMES),
        *norm(f"{theirs}/layer_norm_2/", f"{ours}/norm2", NAMES),
        *affine(f"{theirs}/mlp/dense_1/", f"{ours}/mlp/Dense_0", SAME, NAMES),
        *affine(f"{theirs}/mlp/dense_2/", f"{ours}/mlp/Dense_1", SAME, NAMES),
    )


KERAS_HUB = (
    row(f"{_EMBEDDING}/vars/0", "class_token/token"),
    *affine(f"{_EMBEDDING}/patch_embedding/", "embedding", SAME, NAMES),
    row(
        f"{_EMBEDDING}/position_embedding/vars/0",
        "position_embedding/embedding",
        layout=WITHOUT_BATCH,
    ),
    *_block(),
    *norm("layers/vi_t_encoder/layer_norm/", "encoder_norm", NAMES),
    *affine("pre_logits/", "pre_logits", SAME, NAMES),
    *affine("predictions/", "head", SAME, NAMES),
)


# One argument for all four projections of the attention.
ATTENTION_BIASES = ("query_bias", "key_bias", "value_bias", "output_bias")
# What every backbone has.
ANY_BACKBONE: Keys = {
    "patch_size": says("patch_size"),
    "hidden_dim": says("width"),
    "num_layers": says("depth"),
    "num_heads": says("heads"),
    "image_shape": ConfigKey(
        lambda value, config: {"channels": value[-1]} if value else {}
    ),
    **says_nothing("name", "dtype", "trainable", "data_format"),
}
BACKBONE: Keys = {
    **ANY_BACKBONE,
    "mlp_dim": says("mlp_dim"),
    "use_mha_bias": says(*ATTENTION_BIASES, default=True),
    "use_mlp_bias": says("mlp_bias", default=True),
    "use_class_token": says("class_token", default=True),
    "layer_norm_epsilon": says("norm_epsilon", default=1e-6),
    "use_patch_bias": says("embedding_bias", default=True),
    **says_nothing("dropout_rate", "attention_dropout"),
}
# Arguments of the task around it.
TASK: Keys = {
    "num_classes": says("classes"),
    "activation": ConfigKey(
        lambda value, config: {
            "classifier_activation": None if value == "linear" else value
        }
    ),
    **says_nothing(
        *("backbone", "preprocessor", "pooling", "intermediate_dim", "name", "dtype"),
        *("trainable", "dropout", "head_dtype"),
    ),
}


class KerasHubFamily(Family):
    """A backbone of keras-hub, by itself or with a classifier.

    Attributes:
        backbone: Name of its class.
        inside: Its name in the file of a model around it.
        block: That of its blocks, of which the first has no number.
        keys: Arguments of the backbone.
    """

    project = "keras_hub"
    library = "keras-hub"
    poolings: ClassVar = {"token": "token", "gap": "avg"}
    backbone: ClassVar[str]
    inside: ClassVar[str]
    block: ClassVar[str]
    keys: ClassVar[Keys]

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
            bare = self.numbered(name.removeprefix(f"layers/{self.inside}/"))
            for dense, head in heads.items():
                bare = bare.replace(dense, head) if bare.startswith(dense) else bare
            inside[bare] = name
        return inside

    def numbered(self, name: str) -> str:
        """Name of an array in which the first block has the number 0."""
        return name.replace(f"/{self.block}/", f"/{self.block}_0/")

    def described(self, config: Config) -> str | None:
        """The class of the backbone."""
        if "registered_name" not in config:
            return None
        return str(config.get("class_name", config["registered_name"]))

    def opens(self, name: str) -> bool:
        """Whether it is this family's."""
        return name == self.backbone

    def config(self, file: ArrayFile) -> tuple[str, Config]:
        """How an argument of the backbone is called in messages, and all of them."""
        return "`{}`", file.config["config"]

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the configs of the backbone and of the task around it state."""
        if not file.config:
            return {}
        task = file.beside("task.json").get("config", {})
        return {
            **read_config(file.path, self.keys, [self.config(file)]),
            **read_config(file.path, TASK, [("`{}` of task.json", task)]),
        }

    def image_size(self, file: ArrayFile) -> JSON:
        """The backbone's (H, W, C), without the channels; None where it fixes none."""
        shape = file.config and self.config(file)[1].get("image_shape")
        return (shape[0], shape[1]) if shape and None not in shape[:2] else None

    def pooling(self, file: ArrayFile) -> tuple[str | None, bool]:
        """The task's pooling; its `"gap"` is a mean over the class token too."""
        return file.beside("task.json").get("config", {}).get("pooling"), True

    def preprocessing_config(self, file: ArrayFile) -> tuple[str, JSON]:
        """What its image converter is built from."""
        name = "image_converter.json"
        return name, file.beside(name).get("config")

    def preprocessing(
        self, config: dict[str, JSON], model: dict[str, JSON]
    ) -> dict[str, JSON]:
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

    def preprocessing_differences(self, policy: dict[str, JSON]) -> list[str]:
        """It crops the image, not the resized one."""
        if policy["resize"] == "plain":
            return []
        return [
            "crops before it resizes, and `ImagePreprocessing` after: pixels differ"
        ]


class KerasHub(KerasHubFamily):
    """keras-hub's ViTs."""

    title = "keras-hub ViT"
    mark = f"{_EMBEDDING}/patch_embedding/vars/0"
    rows = KERAS_HUB
    always: ClassVar = {"gelu": "exact"}
    holds = frozenset(
        (
            *("class_token", *ATTENTION_BIASES, "mlp_bias", "norm_epsilon"),
            *("embedding_bias", "gelu"),
        )
    )
    configured = ("norm_epsilon", "pooling")
    backbone = "ViTBackbone"
    inside = "vi_t_backbone"
    block = "vi_t_encoder_block"
    keys = BACKBONE
