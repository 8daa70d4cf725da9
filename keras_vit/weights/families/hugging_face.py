"""Hugging Face's checkpoints: what those of transformers have in common, and its ViTs.

Source: huggingface/transformers, models/vit, deit, vit_msn, vit_mae, ijepa. Files are
written with the names of release 4 by every release; the names inside of release 5 are
read too, but for a SwiGLU, whose first layer it splits in memory.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import (
    UNSAID,
    Config,
    ConfigKey,
    Keys,
    OneOf,
    Stated,
    must_be,
    read_config,
    says,
    says_nothing,
    written,
)
from keras_vit.weights.families.family import (
    GELUS,
    QKV_BIASES,
    WritableFamily,
    lost_to_pillow,
)
from keras_vit.weights.families.hugging_face_images import (
    read_preprocessing,
    written_preprocessing,
)
from keras_vit.weights.families.layouts import (
    CONVOLUTION,
    LINEAR,
    ArrayRow,
    affine,
    norm,
    row,
)
from keras_vit.weights.reading import ArrayFile

if TYPE_CHECKING:
    from keras_vit.base import ImageModel
    from keras_vit.preprocessing import ImagePreprocessing


def attention(theirs: str, ours: str) -> tuple[ArrayRow, ...]:
    """Rows of the four projections."""
    rows: list[ArrayRow] = []
    for name in ("query", "key", "value"):
        rows += affine(f"{theirs}.attention.{name}.", f"{ours}/{name}", LINEAR)
    return (*rows, *affine(f"{theirs}.output.dense.", f"{ours}/out", LINEAR))


def block() -> tuple[ArrayRow, ...]:
    """Rows of one block of a ViT."""
    theirs, ours = "encoder.layer.{i}", "encoder_block_{i}"
    return (
        *attention(f"{theirs}.attention", f"{ours}/attention"),
        *norm(f"{theirs}.layernorm_before.", f"{ours}/norm1"),
        *norm(f"{theirs}.layernorm_after.", f"{ours}/norm2"),
        *affine(f"{theirs}.intermediate.dense.", f"{ours}/mlp/Dense_0", LINEAR),
        *affine(f"{theirs}.output.dense.", f"{ours}/mlp/Dense_1", LINEAR),
    )


HUGGING_FACE = (
    *affine("embeddings.patch_embeddings.projection.", "embedding", CONVOLUTION),
    row("embeddings.cls_token", "class_token/token"),
    # DeiT's distillation token is a register with a classifier of its own.
    row("embeddings.distillation_token", "register_tokens/tokens"),
    row("embeddings.position_embeddings", "position_embedding/embedding"),
    *block(),
    *norm("layernorm.", "encoder_norm"),
    *affine("pooler.dense.", "pre_logits", LINEAR),
    *affine("classifier.", "head", LINEAR),
    *affine("cls_classifier.", "head", LINEAR),
    *affine("distillation_classifier.", "head_dist", LINEAR),
)


# Release 5's names inside the model -> the names on disk.
RENAMED_ATTENTION = (
    (re.compile(r"\.attention\.q_proj\."), ".attention.attention.query."),
    (re.compile(r"\.attention\.k_proj\."), ".attention.attention.key."),
    (re.compile(r"\.attention\.v_proj\."), ".attention.attention.value."),
    (re.compile(r"\.attention\.o_proj\."), ".attention.output.dense."),
)
_RENAMED = (
    *RENAMED_ATTENTION,
    (re.compile(r"^layers\.(\d+)\."), r"encoder.layer.\1."),
    (re.compile(r"\.mlp\.fc1\."), ".intermediate.dense."),
    (re.compile(r"\.mlp\.fc2\."), ".output.dense."),
)

# What every config of transformers may have, and no output depends on.
ANY_CONFIG = says_nothing(
    *("architectures", "model_type", "transformers_version", "dtype", "torch_dtype"),
    *("_name_or_path", "name_or_path", "_attn_implementation", "attn_implementation"),
    *("_attn_implementation_autoset", "auto_map", "_commit_hash", "finetuning_task"),
    *("id2label", "label2id", "num_labels", "_num_labels", "problem_type", "task"),
    *("return_dict", "output_attentions", "output_hidden_states", "use_cache"),
    *("torchscript", "use_bfloat16", "chunk_size_feed_forward", "pruned_heads"),
    *("initializer_range", "initializer_factor", "layer_norm_init", "image_size"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout"),
    *("dropout", "hidden_dropout", "drop_path_rate", "projection_dropout"),
    *("classifier_dropout", "gradient_checkpointing", "use_mask_token", "mask_ratio"),
    *("out_features", "out_indices", "stage_names", "apply_layernorm"),
    *("reshape_hidden_states", "encoder_stride", "num_classes", "padding"),
    *("image_processor_type", "patch_dropout_rate", "tie_word_embeddings"),
    # Of text: releases before 4.50 wrote them beside everything.
    *("add_cross_attention", "bad_words_ids", "begin_suppress_tokens", "bos_token_id"),
    *("cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty"),
    *("do_sample", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id"),
    *("exponential_decay_length_penalty", "forced_bos_token_id", "prefix"),
    *("forced_eos_token_id", "is_decoder", "is_encoder_decoder", "length_penalty"),
    *("max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups"),
    *("num_beams", "num_return_sequences", "output_scores", "pad_token_id"),
    *("remove_invalid_values", "repetition_penalty", "return_dict_in_generate"),
    *("sep_token_id", "suppress_tokens", "task_specific_params", "temperature"),
    *("tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p"),
    "typical_p",
)


# Classes of transformers whose ViT is one part of several.
_AROUND = re.compile("Segmentation|Detection|DepthEstimation|PoseEstimation|Matting")
# Classes of code beside the weights, whose models another library has too.
_ELSEWHERE = {
    "RADIOModel": "its layers are in NVIDIA's code; files of C-RADIO open that are "
    "transformers' own ('radio') or timm's, such as "
    "hf://timm/vit_base_patch16_radio_v3.c_radio",
}


def _classes(config: Config) -> JSON:
    """Number of classes where `architectures` names a model with a classifier."""
    kinds = config.get("architectures") or ()
    if not any("ForImageClassification" in kind for kind in kinds):
        return None if kinds else UNSAID
    labels = config.get("id2label")
    return len(labels) if labels else config.get("num_labels", 2)


# Keys of `ViTConfig`, which its relatives have too.
VIT_CONFIG: Keys = {
    **ANY_CONFIG,
    "patch_size": says("patch_size", default=16),
    "hidden_size": says("width", default=768),
    "num_hidden_layers": says("depth", default=12),
    "num_attention_heads": says("heads", default=12),
    "intermediate_size": says("mlp_dim", default=3072),
    "num_channels": says("channels", default=3),
    "hidden_act": says("gelu", default="gelu", read=OneOf(GELUS)),
    "layer_norm_eps": says("norm_epsilon", default=1e-12),
    "qkv_bias": says(*QKV_BIASES, default=True),
    "pooler_act": must_be("tanh", default="tanh"),
    **says_nothing("pooler_output_size"),
}


class HuggingFaceFamily(WritableFamily):
    """Arrays beside a `config.json`, and a document about the preprocessing.

    Attributes:
        model_types: Of the config, of our models. Other models, such as AST with its
            overlapping patches, have arrays of the same names.
        prefix: Regular expression of the bare model's name in a larger one.
        new_names: Release 5's names inside the model -> the names on disk.
        keys: What the config states.
        bare_class: The class of a model without a classifier.
        classifier_class: That of one with a classifier, if it is our model.
        pools: How its classes pool, in our terms; None for features of all tokens.
    """

    project = "hugging_face"
    library = "Hugging Face"
    configured: ClassVar[tuple[str, ...]] = ("gelu", "heads", "norm_epsilon")
    model_types: ClassVar[tuple[str, ...]]
    prefix: ClassVar[str]
    new_names: ClassVar[tuple[tuple[re.Pattern[str], str], ...]]
    keys: ClassVar[Keys]
    bare_class: ClassVar[str]
    classifier_class: ClassVar[str | None] = None
    pools: ClassVar[tuple[str | None, ...]] = ("token", None)

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the bare model, as on disk -> names in the file."""
        inside = {}
        for name in names:
            bare = re.sub(rf"^(?:{self.prefix})\.", "", name)
            for pattern, replacement in self.new_names:
                bare = pattern.sub(replacement, bare)
            inside[name if bare in inside else bare] = name
        return inside

    def described(self, config: Config) -> str | None:
        """The `model_type`, or the class of a model with other layers around it."""
        kinds = [k for k in config.get("architectures") or () if isinstance(k, str)]
        for kind in kinds:
            if _AROUND.search(kind):
                return kind
        name = config.get("model_type")
        if kinds and (name == "" or (name is None and "auto_map" in config)):
            return kinds[0]  # of code that lies beside the weights
        return name if isinstance(name, str) else None

    def opens(self, name: str) -> bool:
        """Whether it is among `model_types`."""
        return name in self.model_types

    def explained(self, name: str) -> str:
        """With where its weights open, where another library has them."""
        elsewhere = _ELSEWHERE.get(name)
        return super().explained(name) + (f"; {elsewhere}" if elsewhere else "")

    def config(self, file: ArrayFile) -> tuple[str, Config]:
        """How a key of the config is called in messages, and the config."""
        return "`{}`", file.config

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the config states, and the class that `architectures` names."""
        if not file.config:
            return {}
        stated = read_config(file.path, self.keys, [self.config(file)])
        classes = _classes(file.config)
        if classes is not UNSAID:
            stated["classes"] = Stated(classes, "`architectures`")
        return stated

    def pooling(self, file: ArrayFile) -> tuple[str | None, bool]:
        """As the arrays show; a mean is over the patches."""
        return None, False

    def image_size(self, file: ArrayFile) -> JSON:
        """`image_size` of config.json."""
        return self.config(file)[1].get("image_size")

    def class_names(self, file: ArrayFile, classes: int) -> list[str] | None:
        """`id2label`, unless it holds the numbers alone."""
        labels = file.config.get("id2label", {})
        names = [labels.get(str(index)) for index in range(classes)]
        own = any(name != f"LABEL_{index}" for index, name in enumerate(names))
        return names if own else None

    def preprocessing_config(self, file: ArrayFile) -> tuple[str, JSON]:
        """From the newer of two documents, where there is one."""
        name, key = "processor_config.json", "image_processor"
        if config := file.beside(name).get(key):
            return name, config
        name = "preprocessor_config.json"
        return name, file.beside(name) or None

    def preprocessing(
        self, config: dict[str, JSON], model: dict[str, JSON]
    ) -> dict[str, JSON]:
        """The image processor's settings."""
        return read_preprocessing(config, model)

    def refusals(self, model: "ImageModel") -> list[str]:
        """What its classes have no place for."""
        found = []
        if model.classes is not None and self.classifier_class is None:
            found.append("classes must be None")
        if model.pooling not in self.pools:
            found.append(f"pooling must be {' or '.join(map(repr, self.pools))}")
        if model.representation_size is not None:
            found.append("representation_size must be None")
        return found

    def file_name(self, name: str, model: "ImageModel") -> str:
        """A classifier's backbone is a module of its own."""
        bare = model.classes is None or re.match(r"(\w+_)?classifier\.", name)
        return name if bare else f"{self.prefix.partition('|')[0]}.{name}"

    def documents(self, model: "ImageModel") -> dict[str, JSON]:
        """`config.json`, and that of the image processor."""
        height, width = model.image_size
        document = {
            "architectures": [self._class_of(model)],
            "model_type": self.model_types[0],
            **written(self.keys, model),
            "image_size": height if height == width else [height, width],
            "dtype": "float32",
        }
        if model.classes is not None:
            names = model.class_names or [f"LABEL_{i}" for i in range(model.classes)]
            document["id2label"] = {str(i): name for i, name in enumerate(names)}
            document["label2id"] = {name: i for i, name in enumerate(names)}
        return {
            "config.json": document,
            "preprocessor_config.json": written_preprocessing(model),
        }

    def _class_of(self, model: "ImageModel") -> str:
        bare = model.classes is None or self.classifier_class is None
        return self.bare_class if bare else self.classifier_class or ""

    def lost_preprocessing(self, layer: "ImagePreprocessing") -> list[str]:
        """What Pillow does not compute, and crops that one number does not describe."""
        height, width = layer.whole_size
        found = []
        if layer.resize == "small" and height != width:
            found.append("resize='small' of images that are not square")
        return found + lost_to_pillow(layer, "hugging_face")


class HuggingFace(HuggingFaceFamily):
    """ViT and MSN."""

    title = "Hugging Face ViT"
    mark = "embeddings.patch_embeddings.projection.weight"
    rows = HUGGING_FACE
    ignored = r"embeddings\.mask_token"
    assumed: ClassVar = {"gelu": "exact", "norm_epsilon": 1e-12}
    model_types: ClassVar[tuple[str, ...]] = ("vit", "vit_msn")
    prefix = "vit|deit"
    new_names = _RENAMED
    keys: ClassVar = {
        **VIT_CONFIG,
        "hidden_dropout_prob": ConfigKey(lambda v, c: {}, write=lambda m: m.dropout),
        "attention_probs_dropout_prob": ConfigKey(
            lambda v, c: {}, write=lambda m: m.attention_dropout
        ),
    }
    bare_class = "ViTModel"
    classifier_class = "ViTForImageClassification"
    holds = frozenset(
        (
            *("gelu", "norm_epsilon", *QKV_BIASES, "prefix_positions"),
            *("register_tokens", "distilled"),
        )
    )

    def refusals(self, model: "ImageModel") -> list[str]:
        """A bare `ViTModel` may have a pooler of its width."""
        size = model.representation_size
        found = super().refusals(model)
        if model.register_tokens:
            found.append("register_tokens must be 0")
        if size is None or size != model.width:
            return found
        if model.classes is None and model.pooling == "token":
            found.remove("representation_size must be None")
        return found


class HuggingFaceDeiT(HuggingFace):
    """DeiT with its distillation token, and with one classifier or two.

    Published DeiTs without the token are ViTs there.
    """

    title = "Hugging Face DeiT"
    always: ClassVar = {"register_tokens": 1}
    model_types = ("deit",)
    bare_class = "DeiTModel"
    classifier_class = "DeiTForImageClassification"
    prefix = "deit|vit"
    holds = HuggingFace.holds - {"register_tokens"}

    def refusals(self, model: "ImageModel") -> list[str]:
        """Its token is the only register."""
        found = super().refusals(model)
        return [reason for reason in found if not reason.startswith("register_tokens")]

    def written_rows(self, model: "ImageModel") -> tuple[ArrayRow, ...]:
        """With two classifiers, the first has another name."""
        other = "classifier." if model.distilled else "cls_classifier."
        return tuple(row for row in self.rows if not row.theirs.startswith(other))

    def _class_of(self, model: "ImageModel") -> str:
        teacher = "WithTeacher" if model.distilled else ""
        return super()._class_of(model) + teacher


class HuggingFaceMAE(HuggingFaceFamily):
    """The encoder of MAE, which sees all patches here; its decoder is left out."""

    title = "Hugging Face MAE"
    mark = HuggingFace.mark
    rows = HUGGING_FACE
    ignored = r"decoder\..*"
    assumed: ClassVar = HuggingFace.assumed
    model_types = ("vit_mae",)
    bare_class = "ViTMAEModel"
    prefix = "vit"
    new_names = _RENAMED
    keys: ClassVar = {
        **VIT_CONFIG,
        **says_nothing(
            *("decoder_hidden_size", "decoder_num_hidden_layers", "norm_pix_loss"),
            *("decoder_num_attention_heads", "decoder_intermediate_size"),
        ),
    }
    holds = HuggingFace.holds - {"register_tokens", "distilled"}


class HuggingFaceIJEPA(HuggingFaceFamily):
    """I-JEPA, whose classifiers read the mean of the patches."""

    title = "Hugging Face I-JEPA"
    mark = HuggingFace.mark
    rows = HUGGING_FACE
    ignored = r"embeddings\.mask_token"
    always: ClassVar = {"class_token": False}
    assumed: ClassVar = HuggingFace.assumed
    model_types = ("ijepa",)
    bare_class = "IJepaModel"
    classifier_class = "IJepaForImageClassification"
    pools = ("avg", None)
    prefix = "ijepa"
    new_names = _RENAMED
    keys = VIT_CONFIG
    holds = HuggingFace.holds - {"register_tokens", "distilled"}
