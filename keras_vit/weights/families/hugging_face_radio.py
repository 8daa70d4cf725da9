"""RADIO: NVIDIA's arrays, which transformers keeps on disk, beside its own config.

Source: huggingface/transformers, models/radio, conversion_mapping.py. There a model
normalizes its pixels itself; here they are normalized before they reach it.
"""

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from keras_vit.errors import WeightsFileError
from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import (
    UNSAID,
    Keys,
    OneOf,
    Stated,
    must_be,
    read_by_another,
    says,
    says_nothing,
)
from keras_vit.weights.families.family import GELUS, QKV_BIASES, pixels_of
from keras_vit.weights.families.hugging_face import ANY_CONFIG, HuggingFaceFamily
from keras_vit.weights.families.layouts import (
    FLAT_CHANNELS,
    LINEAR,
    WITHOUT_BATCH,
    ArrayRow,
    affine,
    norm,
    row,
)
from keras_vit.weights.reading import ArrayFile

if TYPE_CHECKING:
    from keras_vit.base import ImageModel

_PATCHES = "model.patch_generator"


def _radio() -> tuple[ArrayRow, ...]:
    theirs, ours = "model.blocks.{i}", "encoder_block_{i}"
    qkv = [f"{ours}/attention/{name}" for name in ("query", "key", "value")]
    rows = [
        row(f"{_PATCHES}.embedder.weight", "embedding/kernel", layout=FLAT_CHANNELS),
        # Class tokens and registers, which differ in what reads them alone.
        row(
            f"{_PATCHES}.cls_token.token",
            "register_tokens/tokens",
            layout=WITHOUT_BATCH,
        ),
        row(f"{_PATCHES}.pos_embed", "position_embedding/embedding"),
        row(f"{theirs}.attn.qkv.weight", *(f"{p}/kernel" for p in qkv), layout=LINEAR),
        row(f"{theirs}.attn.qkv.bias", *(f"{part}/bias" for part in qkv)),
        *affine(f"{theirs}.attn.proj.", f"{ours}/attention/out", LINEAR),
        *affine(f"{theirs}.mlp.fc1.", f"{ours}/mlp/Dense_0", LINEAR),
        *affine(f"{theirs}.mlp.fc2.", f"{ours}/mlp/Dense_1", LINEAR),
    ]
    for number in ("1", "2"):
        scale = f"layer_scale{number}"
        rows += norm(f"{theirs}.norm{number}.", f"{ours}/norm{number}")
        rows.append(row(f"{theirs}.{scale}.lambda1", f"{ours}/{scale}/gamma"))
    return tuple(rows)


_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)


RADIO_CONFIG: Keys = {
    **ANY_CONFIG,
    "hidden_size": says("width", default=1280),
    "num_hidden_layers": says("depth", default=32),
    "num_attention_heads": says("heads", default=16),
    "mlp_ratio": says(
        "mlp_dim",
        default=4.0,
        read=lambda value, config: int(config["hidden_size"] * value),
        write=lambda model: (model.mlp_dim + 0.5) / model.width,
    ),
    "hidden_act": says("gelu", default="gelu", read=OneOf(GELUS)),
    "layer_norm_eps": says("norm_epsilon", default=1e-6),
    "use_swiglu_ffn": must_be(False),
    "qkv_bias": says(*QKV_BIASES, default=True),
    # Of the value 1 it is left out of the file.
    "layerscale_value": says(
        "layer_scale",
        default=1.0,
        read=lambda value, _: UNSAID if value == 1.0 else value,
    ),
    "num_channels": says("channels", default=3, read=OneOf({3: 3})),
    "patch_size": says("patch_size", default=16),
    "max_img_size": read_by_another(2048, write=lambda m: m.image_size[0]),
    "num_cls_tokens": says(
        "register_tokens",
        default=3,
        read=lambda value, config: value + config["num_registers"],
        write=lambda model: model.register_tokens,
    ),
    "num_registers": read_by_another(7, write=lambda model: 0),
    "summary_idxs": read_by_another(
        UNSAID, write=lambda model: [0, 1][: model.register_tokens]
    ),
    "norm_mean": read_by_another(_MEAN, write=lambda model: pixels_of(model)[1]),
    "norm_std": read_by_another(_STD, write=lambda model: pixels_of(model)[2]),
    **says_nothing("patch_dim", "video_patch_dim", "video_temporal_patch_size"),
}


class HuggingFaceRADIO(HuggingFaceFamily):
    """RADIO at the image size of its positions; all its tokens are registers here."""

    title = "Hugging Face RADIO"
    mark = f"{_PATCHES}.embedder.weight"
    rows = _radio()
    ignored = r"summary_idxs|input_conditioner\..*|.*\.video_embedder\..*"
    always: ClassVar = {
        "class_token": False,
        "embedding_bias": False,
        "final_norm": False,
        "prefix_positions": False,
    }
    assumed: ClassVar = {"gelu": "exact", "norm_epsilon": 1e-6}
    holds = frozenset(
        (
            *("gelu", "norm_epsilon", *QKV_BIASES, "layer_scale", "class_token"),
            *("register_tokens", "prefix_positions", "embedding_bias", "final_norm"),
        )
    )
    model_types = ("radio",)
    bare_class = "RadioModel"
    pools = ("avg", None)
    prefix = "radio_model"
    new_names = ()
    keys = RADIO_CONFIG

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the config states; the arrays must normalize pixels in the same way.

        Raises:
            WeightsFileError: They do not.
        """
        stated = super().stated(file)
        names = self.model_names(file.arrays)
        for key, usual in (("norm_mean", _MEAN), ("norm_std", _STD)):
            name = names.get(f"input_conditioner.{key}")
            if not file.config or name is None:
                continue
            said = file.config.get(key) or usual
            held = np.ravel(file.arrays[name].read()).astype("float32").tolist()
            # The arrays may be of bfloat16.
            if len(held) != len(said) or not np.allclose(held, said, 2**-8, 0):
                raise WeightsFileError(
                    f"`{key}` must be the same in the config and in `{name}`. "
                    f"Received: {said} and {held} in {str(file.path)!r}"
                )
        return stated

    def notes(self, file: ArrayFile) -> list[str]:
        """What is outside of the model here, or left out."""
        found = [
            "transformers normalizes its pixels inside of the model; here they are "
            "normalized before",
            "for images of another size, squares alone, transformers resamples as "
            "resample='bilinear' does",
        ]
        if any(".video_embedder." in name for name in file.arrays):
            found.append("the patches of videos, which are left out")
        return found

    def image_size(self, file: ArrayFile) -> JSON:
        """`max_img_size`, that of the positions."""
        return file.config.get("max_img_size", 2048) if file.config else None

    def prefix_positions(self, prefix: int) -> tuple[int, ...]:
        """Only patches have positions."""
        return (0,)

    def preprocessing(
        self, config: dict[str, JSON], model: dict[str, JSON]
    ) -> dict[str, JSON]:
        """The image processor's settings, and then the model's mean and deviation."""
        if config.get("do_normalize", True):
            raise ValueError("do_normalize=True before a model that normalizes")
        both = {
            "do_normalize": True,
            "image_mean": model.get("norm_mean") or _MEAN,
            "image_std": model.get("norm_std") or _STD,
        }
        return super().preprocessing({**config, **both}, model)

    def refusals(self, model: "ImageModel") -> list[str]:
        """What the class has no place for."""
        found = super().refusals(model)
        height, width = model.image_size
        if height != width:
            found.append("image_size must be square")
        if not model.register_tokens:
            found.append("register_tokens must be at least 1")
        if model.channels != 3:
            found.append("channels must be 3")
        return found

    def file_name(self, name: str, model: "ImageModel") -> str:
        """All of them lie in one module."""
        return f"{self.prefix}.{name}"

    def documents(self, model: "ImageModel") -> dict[str, JSON]:
        """The processor leaves the pixels as they are, from 0 to 1."""
        documents = super().documents(model)
        documents["preprocessor_config.json"]["do_normalize"] = False
        return documents
