"""The Vision Transformer as a functional Keras model, and its named sizes.

The paper is "An Image is Worth 16x16 Words" (Dosovitskiy et al., arXiv:2010.11929);
details that it leaves out are those of its code, google-research/vision_transformer.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit import layers
from keras_vit.base import (
    ImageModel,
    application,
    check_choice,
    check_counts,
    check_labels,
    check_rates,
    connect_classifier,
)
from keras_vit.preprocessing import ImagePreprocessing
from keras_vit.specs import image_size_pair, parse_variant

HEADS = ("token", "gap", "map", "none")


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(ImageModel):
    """The Vision Transformer of the paper, a functional `keras.Model`.

    An image is cut into patches by a convolution of stride P, a class token is put in
    front, learned position embeddings are added, pre-norm encoder blocks follow, then
    a final LayerNorm, a head and a linear classifier (section 3.1). The defaults are
    the paper's model with logits for 1,000 classes. `from_variant("B/16")` knows the
    published sizes.

    The input is a batch [B, H, W, C] of pixels in [-1, 1] (see `preprocess_input`), or
    of pixels from 0 to 255 where `preprocessing` is given. The output is float32 logits
    [B, classes] (or their activation); without classes the pooled features [B, D]; with
    `head="none"` all tokens [B, N, D] after the final LayerNorm.

    Args:
        image_size: (H, W) or one integer for both; multiples of `patch_size`.
        patch_size: Side P of the square patches, in pixels.
        width: Width D of the tokens.
        depth: Number of encoder blocks.
        mlp_dim: Width M of the hidden layer in each block's MLP.
        heads: Number of attention heads A; divides `width`.
        channels: Channels C of the images.
        classes: Number of classes, or `None` for features instead of scores.
        head: How tokens become one vector: `"token"` (the class token), `"gap"` (mean
            over the patches), `"map"` (attention pooling), `"none"` (not at all;
            `classes` is ignored).
        class_token: Whether there is a class token.
        dropout: Dropout rate after every dense layer except the query, key and value
            projections, and after adding the position embedding (appendix B.1).
        attention_dropout: Dropout rate on the attention weights; the paper has none.
        stochastic_depth: Drop rate of the last block's residual branches; it rises
            linearly from 0 at the first block.
        representation_size: Width of the dense tanh layer before the classifier that
            pre-training used (section 3.2), or `None` for no such layer.
        gelu: `"tanh"`, the approximation of the official code, or `"exact"`, what
            timm and Hugging Face compute.
        position_stddev: Standard deviation of the initial position embedding: 0.02 in
            the official code, D^-0.5 in big_vision.
        head_bias_init: Initial bias of the classifier, for example -10 for a sigmoid
            loss over many classes. Its kernel starts at zero.
        classifier_activation: Activation of the scores, or `None` for logits.
        preprocessing: An `ImagePreprocessing` layer to put in front, or `None`.
        class_names: Names of the classes, which are saved with the model.
        dtype: A dtype policy, such as `"mixed_bfloat16"`; the global policy when
            absent. LayerNorm, softmax and the classifier compute in float32 in any.
        name: Name of the model.

    Raises:
        ValueError: Sizes that do not fit each other, or an unknown choice.
    """

    def __init__(
        self,
        *,
        image_size: int | tuple[int, int] = 224,
        patch_size: int,
        width: int,
        depth: int,
        mlp_dim: int,
        heads: int,
        channels: int = 3,
        classes: int | None = 1000,
        head: str = "token",
        class_token: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        representation_size: int | None = None,
        gelu: str = "tanh",
        position_stddev: float = 0.02,
        head_bias_init: float = 0.0,
        classifier_activation: str | None = None,
        preprocessing: ImagePreprocessing | None = None,
        class_names: Sequence[str] | None = None,
        dtype: Any = None,
        name: str | None = None,
    ):
        arguments: dict[str, Any] = {
            "image_size": image_size_pair(image_size),
            "patch_size": patch_size,
            "width": width,
            "depth": depth,
            "mlp_dim": mlp_dim,
            "heads": heads,
            "channels": channels,
            "classes": None if head == "none" else classes,
            "head": head,
            "class_token": class_token,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "stochastic_depth": stochastic_depth,
            "representation_size": representation_size,
            "gelu": gelu,
            "position_stddev": position_stddev,
            "head_bias_init": head_bias_init,
            "classifier_activation": classifier_activation,
            "preprocessing": preprocessing,
            "class_names": None if class_names is None else list(class_names),
        }
        _check(arguments)
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        images = keras.Input((*arguments["image_size"], channels), name="images")
        outputs = _connect(images, policy, **arguments)
        super().__init__(images, outputs, name=name)
        self.describe(arguments, policy)

    @classmethod
    def from_variant(cls, variant: str, **kwargs) -> "VisionTransformer":
        """Builds a published size.

        Args:
            variant: A size and a patch size: `"B/16"`. See `keras_vit.SPECS`.
            **kwargs: The other arguments of `VisionTransformer`.

        Returns:
            The model, with random weights.

        Raises:
            ValueError: There is no such size.
        """
        spec, patch_size = parse_variant(variant)
        return cls(**{**dataclasses.asdict(spec), "patch_size": patch_size, **kwargs})


def _check(arguments: dict[str, Any]) -> None:
    """Raises ValueError where an argument is wrong or does not fit the others."""
    check_counts(
        arguments, ("patch_size", "width", "depth", "mlp_dim", "heads", "channels")
    )
    optional = ("classes", "representation_size")
    check_counts(arguments, [key for key in optional if arguments[key] is not None])
    check_rates(arguments, ("dropout", "attention_dropout", "stochastic_depth"))
    check_choice("head", arguments["head"], HEADS)
    check_labels(**arguments)
    image_size, patch_size = arguments["image_size"], arguments["patch_size"]
    if any(side % patch_size for side in image_size):
        raise ValueError(
            "`image_size` must be a multiple of `patch_size`. "
            f"Received: image_size={image_size}, patch_size={patch_size}"
        )
    if arguments["head"] == "token" and not arguments["class_token"]:
        raise ValueError(
            "`head='token'` needs the class token. "
            "Received: head='token', class_token=False"
        )


def _connect(
    images,
    policy,
    *,
    patch_size,
    width,
    depth,
    mlp_dim,
    heads,
    class_token,
    dropout,
    attention_dropout,
    stochastic_depth,
    gelu,
    position_stddev,
    preprocessing,
    **head_arguments,
):
    """The graph from [B, H, W, C] to the output, layer by layer."""
    x = images if preprocessing is None else preprocessing(images)
    x = keras.layers.Conv2D(
        width,
        patch_size,
        strides=patch_size,
        kernel_initializer="lecun_normal",
        data_format="channels_last",
        dtype=policy,
        name="embedding",
    )(x)
    x = keras.layers.Reshape((-1, width), dtype=policy, name="patches")(x)  # [B, N, D]
    if class_token:
        x = layers.ClassToken(dtype=policy, name="class_token")(x)
    x = layers.PositionEmbedding(
        position_stddev, dtype=policy, name="position_embedding"
    )(x)
    x = keras.layers.Dropout(dropout, dtype=policy, name="embedding_dropout")(x)
    for index in range(depth):
        x = layers.EncoderBlock(
            mlp_dim,
            heads,
            dropout=dropout,
            attention_dropout=attention_dropout,
            stochastic_depth=stochastic_depth * index / max(depth - 1, 1),
            gelu=gelu,
            dtype=policy,
            name=f"encoder_block_{index}",
        )(x)
    x = layers.layer_norm("encoder_norm", policy)(x)
    if head_arguments["head"] == "map":
        x = layers.AttentionPooling(
            mlp_dim, heads, gelu=gelu, dtype=policy, name="attention_pooling"
        )(x)
    return _connect_head(x, policy, class_token=class_token, **head_arguments)


def _connect_head(
    x,
    policy,
    *,
    head,
    class_token,
    classes,
    representation_size,
    head_bias_init,
    classifier_activation,
    **_,
):
    """From tokens [B, N, D] (from [B, D] after attention pooling) to the output."""
    if head == "token":
        x = x[:, 0]  # [B, D]
    elif head == "gap":
        patches = x[:, 1:] if class_token else x
        x = keras.layers.GlobalAveragePooling1D(dtype="float32", name="pooling")(
            patches
        )
    if representation_size is not None:
        x = keras.layers.Dense(
            representation_size,
            activation="tanh",
            kernel_initializer="lecun_normal",
            dtype=policy,
            name="pre_logits",
        )(x)
    return connect_classifier(x, classes, head_bias_init, classifier_activation)


def _application(variant: str):
    return application(
        VisionTransformer,
        variant,
        name="ViT" + variant.replace("/", ""),
        top="token",
        poolings={None: "none", "avg": "gap", "token": "token", "map": "map"},
    )


ViTTi16 = _application("Ti/16")
ViTS16 = _application("S/16")
ViTS32 = _application("S/32")
ViTB8 = _application("B/8")
ViTB16 = _application("B/16")
ViTB32 = _application("B/32")
ViTL16 = _application("L/16")
ViTL32 = _application("L/32")
ViTH14 = _application("H/14")
