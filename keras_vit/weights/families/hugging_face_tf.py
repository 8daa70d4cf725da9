"""Hugging Face's TensorFlow checkpoints: `tf_model.h5` of transformers 4.

Source: huggingface/transformers 4.57, models/vit, deit, vit_mae, clip, data2vec; there
is no TensorFlow in release 5. `save_pretrained` and `save_weights` write them. An array
has the name of PyTorch's, with `/` for `.`, behind the names of the outermost layer and
of the model.
"""

import re
from collections.abc import Iterable
from typing import ClassVar

from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import Config, Stated
from keras_vit.weights.families.family import QKV_BIASES, Family
from keras_vit.weights.families.hugging_face import (
    HUGGING_FACE,
    HuggingFace,
    HuggingFaceDeiT,
    HuggingFaceFamily,
    HuggingFaceMAE,
)
from keras_vit.weights.families.hugging_face_beit import (
    BEIT,
    HuggingFaceData2Vec,
)
from keras_vit.weights.families.hugging_face_towers import CLIP, HuggingFaceCLIP
from keras_vit.weights.families.layouts import (
    CONVOLUTION,
    LINEAR,
    SAME,
    ArrayRow,
    row,
)
from keras_vit.weights.reading import ArrayFile


def _in_tensorflow(torch: ArrayRow) -> ArrayRow:
    """The row of the same weight, whose axes Keras has in our order."""
    name = torch.theirs.replace(".", "/")
    name = re.sub(r"/(layers?)/\{i\}/", r"/\1_._{i}/", name)
    kind = torch.ours[0].rpartition("/")[2]  # kernel, bias, gamma, beta, embedding
    kind = "embeddings" if kind == "embedding" else kind
    name = re.sub("/(weight|bias)$", f"/{kind}", name)
    layout = SAME if torch.layout in (LINEAR, CONVOLUTION) else torch.layout
    return row(name, *torch.ours, layout=layout)


class _TensorFlow(Family):
    """Arrays of TensorFlow beside the documents of a family of PyTorch.

    Attributes:
        torch: That family.
        prefix: Regular expression of the bare model's name in a larger one.
    """

    project = "hugging_face"
    library = "Hugging Face"
    configured = ("gelu", "heads", "norm_epsilon")
    torch: ClassVar[HuggingFaceFamily]
    prefix: ClassVar[str]

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the bare model, or of a classifier -> names in the file."""
        around = rf"^[^/]+/[^/]+/((?:{self.prefix})/)?|:0$"
        return {re.sub(around, "", name): name for name in names}

    def described(self, config: Config) -> str | None:
        """The `model_type`."""
        return self.torch.described(config)

    def opens(self, name: str) -> bool:
        """Whether PyTorch's family has this model."""
        return self.torch.opens(name)

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the config states."""
        return self.torch.stated(file)

    def pooling(self, file: ArrayFile) -> tuple[str | None, bool]:
        """As PyTorch's classes pool."""
        return self.torch.pooling(file)

    def image_size(self, file: ArrayFile) -> JSON:
        """`image_size` of config.json."""
        return self.torch.image_size(file)

    def class_names(self, file: ArrayFile, classes: int) -> list[str] | None:
        """`id2label`, unless it holds the numbers alone."""
        return self.torch.class_names(file, classes)

    def preprocessing_config(self, file: ArrayFile) -> tuple[str, JSON]:
        """The document about the image processor."""
        return self.torch.preprocessing_config(file)

    def preprocessing(
        self, config: dict[str, JSON], model: dict[str, JSON]
    ) -> dict[str, JSON]:
        """The image processor's settings."""
        return self.torch.preprocessing(config, model)


class HuggingFaceTF(_TensorFlow):
    """TensorFlow's ViT."""

    title = "Hugging Face ViT (TensorFlow)"
    torch: ClassVar[HuggingFaceFamily] = HuggingFace()
    mark = "embeddings/patch_embeddings/projection/kernel"
    rows = tuple(map(_in_tensorflow, HUGGING_FACE))
    ignored = r"embeddings/mask_token|decoder/.*"
    assumed: ClassVar = HuggingFace.assumed
    prefix = "vit|deit"
    holds = HuggingFace.holds

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the config states; there are biases whatever `qkv_bias` says."""
        stated = super().stated(file)
        return {name: each for name, each in stated.items() if name not in QKV_BIASES}


class HuggingFaceTFDeiT(HuggingFaceTF):
    """TensorFlow's DeiT with its distillation token."""

    title = "Hugging Face DeiT (TensorFlow)"
    torch = HuggingFaceDeiT()
    always: ClassVar = HuggingFaceDeiT.always
    holds = HuggingFaceDeiT.holds


class HuggingFaceTFMAE(HuggingFaceTF):
    """The encoder of TensorFlow's MAE, which sees all patches here."""

    title = "Hugging Face MAE (TensorFlow)"
    torch = HuggingFaceMAE()


class HuggingFaceTFData2Vec(_TensorFlow):
    """TensorFlow's Data2VecVision."""

    title = "Hugging Face Data2VecVision (TensorFlow)"
    torch = HuggingFaceData2Vec()
    mark = HuggingFaceTF.mark
    rows = tuple(map(_in_tensorflow, BEIT))
    ignored = r"embeddings/mask_token"
    always: ClassVar = HuggingFaceData2Vec.always
    assumed: ClassVar = HuggingFaceData2Vec.assumed
    prefix = "data2vec_vision"
    holds = HuggingFaceData2Vec.holds


class HuggingFaceTFCLIP(_TensorFlow):
    """TensorFlow's image tower of CLIP: features before, or behind the projection."""

    title = "Hugging Face CLIP (TensorFlow)"
    torch = HuggingFaceCLIP()
    mark = "pre_layrnorm/gamma"
    rows = tuple(map(_in_tensorflow, CLIP))
    ignored = r"text_model/.*|text_projection/.*|logit_scale"
    always: ClassVar = HuggingFaceCLIP.always
    assumed: ClassVar = HuggingFaceCLIP.assumed
    prefix = "clip/vision_model|clip"
    holds = HuggingFaceCLIP.holds
