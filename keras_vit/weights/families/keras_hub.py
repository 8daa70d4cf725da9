"""keras-hub's checkpoints: what its presets have in common, and its ViTs.

Source: keras-team/keras-hub, models/vit. A preset keeps the backbone and the classifier
in two HDF5 files, which are written, too; `save_weights` writes one with a longer path.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from keras_vit.typing import JSON, Arrays
from keras_vit.weights.families.config_keys import (
    Config,
    ConfigKey,
    Keys,
    Stated,
    read_config,
    says,
    says_nothing,
    written,
)
from keras_vit.weights.families.family import WritableFamily, one_or_all
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

if TYPE_CHECKING:
    from keras_vit.base import ImageModel
    from keras_vit.preprocessing import ImagePreprocessing

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
        lambda value, config: {"channels": value[-1]} if value else {},
        write=lambda model: [*model.image_size, model.channels],
    ),
    **says_nothing("name", "dtype", "trainable", "data_format"),
}
# Rates that training alone reads.
DROPOUT: Keys = {
    "dropout_rate": ConfigKey(lambda v, c: {}, write=lambda model: model.dropout),
    "attention_dropout": ConfigKey(
        lambda v, c: {}, write=lambda model: model.attention_dropout
    ),
}
BACKBONE: Keys = {
    **ANY_BACKBONE,
    "mlp_dim": says("mlp_dim"),
    "use_mha_bias": says(*ATTENTION_BIASES, default=True),
    "use_mlp_bias": says("mlp_bias", default=True),
    "use_class_token": says("class_token", default=True),
    "layer_norm_epsilon": says("norm_epsilon", default=1e-6),
    "use_patch_bias": says("embedding_bias", default=True),
    **DROPOUT,
}
# Arguments of the task around it.
TASK: Keys = {
    "num_classes": says("classes"),
    "activation": ConfigKey(
        lambda value, config: {
            "classifier_activation": None if value == "linear" else value
        },
        write=lambda model: model.classifier_activation,
    ),
    "intermediate_dim": says("representation_size"),
    **says_nothing(
        *("backbone", "preprocessor", "pooling", "name", "dtype", "trainable"),
        *("dropout", "head_dtype"),
    ),
}
# The optimizer of every task, before its first step: its number and learning rate.
_ADAM = {
    "optimizer/vars/0": np.asarray(0, "int64"),
    "optimizer/vars/1": np.asarray(5e-5, "float32"),
}


def _heads(pre_logits: bool) -> dict[str, str]:
    """Names of a task's dense layers in its file, and ours, in the order of both."""
    if pre_logits:
        return {"layers/dense/": "pre_logits/", "layers/dense_1/": "predictions/"}
    return {"layers/dense/": "predictions/"}


def _serialized(kind: str, config: dict[str, JSON]) -> dict[str, JSON]:
    """An object of one of keras-hub's classes, as Keras writes it in JSON."""
    return {
        "class_name": kind,
        "config": config,
        "registered_name": f"keras_hub>{kind}",
    }


class KerasHubFamily(WritableFamily):
    """A backbone of keras-hub, by itself or with a classifier.

    Attributes:
        backbone: Name of its class.
        classifier: That of the model around it, if it has one.
        converter: That of its preprocessing.
        inside: The backbone's name in the file of a model around it.
        block: That of its blocks, of which the first has no number.
        keys: Arguments of the backbone.
        square: Whether its images must be square.
    """

    project = "keras_hub"
    library = "keras-hub"
    files: ClassVar = {
        "task.weights.h5": "(pre_logits|predictions|optimizer)/.*",
        "model.weights.h5": ".*",
    }
    optional = ("task.json", "preprocessor.json", "image_converter.json")
    names_classes = False
    poolings: ClassVar = {"token": "token", "gap": "avg"}
    backbone: ClassVar[str]
    classifier: ClassVar[str | None] = None
    converter: ClassVar[str]
    inside: ClassVar[str]
    block: ClassVar[str]
    keys: ClassVar[Keys]
    square: ClassVar[bool] = False

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the model, every block numbered -> names in the file.

        Dense layers of the task are numbered in the file: the last is the classifier,
        one before it is `pre_logits`. A compiled task's optimizer is left out.
        """
        names = [name for name in names if not name.startswith("optimizer/")]
        pre_logits = any(name.startswith("layers/dense_1/") for name in names)
        heads = _heads(pre_logits)
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

    def pools(self, model: "ImageModel") -> tuple[str | None, ...]:
        """Our poolings of what it computes: of all tokens, as its mean is."""
        return ("token" if model.class_token else "avg", None)

    def refusals(self, model: "ImageModel") -> list[str]:
        """What its classes have no place for."""
        found = []
        if model.classes is not None and self.classifier is None:
            found.append("classes must be None")
        if model.pooling not in (pools := self.pools(model)):
            found.append(f"pooling must be {' or '.join(map(repr, pools))}")
        if model.representation_size is not None and model.classes is None:
            found.append("representation_size must be None without classes")
        height, width = model.image_size
        if self.square and height != width:
            found.append(f"image_size must be square, not {height} x {width}")
        return found

    def file_name(self, name: str, model: "ImageModel") -> str:
        """The first block has no number, and a task's dense layers have only that."""
        for theirs, ours in _heads(model.representation_size is not None).items():
            if name.startswith(ours):
                return name.replace(ours, theirs)
        return name.replace(f"/{self.block}_0/", f"/{self.block}/")

    def further_arrays(self, arrays: Arrays, model: "ImageModel") -> Arrays:
        """A task's optimizer."""
        return {} if model.classes is None else _ADAM

    def documents(self, model: "ImageModel") -> dict[str, JSON]:
        """The configs of the backbone, and of what the model has around it."""
        backbone = _serialized(self.backbone, written(self.keys, model))
        found, preprocessor = {"config.json": backbone}, None
        if model.preprocessing is not None:
            converter = self._converter(model.preprocessing, model.channels)
            found["image_converter.json"] = converter
            preprocessor = _serialized(
                f"{self.classifier}Preprocessor", {"image_converter": converter}
            )
        if model.classes is not None and self.classifier is not None:
            said = written(TASK, model).items()
            names = {ours: theirs for theirs, ours in self.poolings.items()}
            task = {
                "backbone": backbone,
                "preprocessor": preprocessor,
                "pooling": names.get(model.pooling),
                **{name: value for name, value in said if value is not None},
            }
            found["task.json"] = _serialized(self.classifier, task)
            if preprocessor is not None:
                found["preprocessor.json"] = preprocessor
        return found

    def _converter(self, layer: "ImagePreprocessing", channels: int) -> dict[str, JSON]:
        """What it multiplies pixels with, and then adds to them."""
        means, stds = (
            np.broadcast_to(value, channels).tolist()
            for value in (layer.mean, layer.std)
        )
        config = {
            "image_size": list(layer.image_size),
            "scale": [1 / std for std in stds],
            "offset": [-mean / std for mean, std in zip(means, stds, strict=True)],
            "interpolation": layer.interpolation,
            "antialias": layer.antialias,
            "crop_to_aspect_ratio": layer.resize == "small",
        }
        return _serialized(self.converter, config)

    def lost_preprocessing(self, layer: "ImagePreprocessing") -> list[str]:
        """A crop of its own, and pixels of Pillow."""
        found = []
        if layer.crop_fraction != 1:
            found.append(f"crop_fraction={layer.crop_fraction}")
        if layer.convention != "big_vision":
            found.append(f"convention={layer.convention!r}")
        return found


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
    classifier = "ViTImageClassifier"
    converter = "ViTImageConverter"
    inside = "vi_t_backbone"
    block = "vi_t_encoder_block"
    keys = BACKBONE
