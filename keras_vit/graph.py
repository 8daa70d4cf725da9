"""The graph of a Vision Transformer, layer by layer, from pixels to the output.

The functions take a namespace of `VisionTransformer`'s arguments, and of its dtype
policy, grid and number of prefix tokens.
"""

from types import SimpleNamespace

import keras
from keras import ops

from keras_vit import layers
from keras_vit.base import connect_classifier
from keras_vit.resnet import connect_stem


def connect(images, vit: SimpleNamespace):
    """From images [B, H, W, C] to the model's output."""
    included = vit.preprocessing is not None and vit.include_preprocessing
    x = vit.preprocessing(images) if included else images
    x = _embed(x, vit)
    x = _encode(x, vit)
    x = _pool(x, vit)
    if vit.fc_norm:
        x = layers.LayerNorm(vit.norm_epsilon, name="fc_norm", dtype="float32")(x)
    if vit.representation_size is not None:
        x = keras.layers.Dense(
            vit.representation_size,
            activation="tanh",
            kernel_initializer="lecun_normal",
            dtype=vit.policy,
            name="pre_logits",
        )(x)
    return connect_classifier(
        x, vit.classes, vit.head_bias_init, vit.classifier_activation
    )


def _embed(x, vit):
    """From images to tokens [B, N, D]: class token, registers, patches."""
    if vit.resnet_blocks is not None:
        x = connect_stem(x, vit.resnet_blocks, vit.resnet_width, vit.policy)
    x = keras.layers.Conv2D(
        vit.width,
        vit.patch_size,
        strides=vit.patch_size,
        kernel_initializer="lecun_normal",
        data_format="channels_last",
        dtype=vit.policy,
        name="embedding",
    )(x)
    x = keras.layers.Reshape((-1, vit.width), dtype=vit.policy, name="patches")(x)
    if vit.register_tokens:
        x = layers.RegisterTokens(
            vit.register_tokens, dtype=vit.policy, name="register_tokens"
        )(x)
    if vit.class_token:
        x = layers.ClassToken(dtype=vit.policy, name="class_token")(x)
    return x


def _encode(x, vit):
    """The encoder: positions, blocks, and the final LayerNorm if it is here."""
    at_stem, before_block = _position_layers(vit)
    x = _call(at_stem, x)
    x = keras.layers.Dropout(vit.dropout, dtype=vit.policy, name="embedding_dropout")(x)
    if vit.patch_dropout:
        x = layers.PatchDropout(
            vit.patch_dropout, vit.prefix_tokens, dtype=vit.policy, name="patch_dropout"
        )(x)
    shared = {}
    if vit.position_embedding == "relative" and vit.position_placement == "shared":
        shared["relative_embedding"] = layers.RelativePosition(
            vit.heads, vit.position_stddev, dtype=vit.policy, name="relative_position"
        )(x)
    for index in range(vit.depth):
        x = _call(before_block[index], x)
        x = _block(vit, index)(x, **shared)
    if not vit.fc_norm:
        x = layers.LayerNorm(vit.norm_epsilon, name="encoder_norm", dtype=vit.policy)(x)
    return x


def _call(layer, x):
    return x if layer is None else layer(x)


def _position_layers(vit):
    """What adds positions, or None: at the stem, and before each block."""
    name = "position_embedding"
    if vit.position_placement == "stem":
        return _position_layer(vit, name), [None] * vit.depth
    if vit.position_placement == "shared":
        return None, [_position_layer(vit, name)] * vit.depth
    return None, [_position_layer(vit, f"{name}_{i}") for i in range(vit.depth)]


def _position_layer(vit, name):
    skip_tokens = 0 if vit.prefix_positions else vit.prefix_tokens
    common = {"dtype": vit.policy, "name": name}
    match vit.position_embedding:
        case "learned_1d":
            return layers.PositionEmbedding(vit.position_stddev, skip_tokens, **common)
        case "learned_2d":
            return layers.PositionEmbedding2D(
                vit.grid, vit.position_stddev, skip_tokens, **common
            )
        case "sincos2d" | "sincos2d_mae":
            return layers.SinCosPositionEmbedding(
                vit.grid, vit.position_embedding == "sincos2d", **common
            )
    return None  # there are none, or they are relative: in the attention


def _block(vit, index):
    own_relative = (
        vit.position_embedding == "relative" and vit.position_placement != "shared"
    )
    arguments = {
        "mlp_dim": vit.mlp_dim,
        "heads": vit.heads,
        "dropout": vit.dropout,
        "attention_dropout": vit.attention_dropout,
        "stochastic_depth": vit.stochastic_depth * index / max(vit.depth - 1, 1),
        "gelu": vit.gelu,
        "layer_scale": vit.layer_scale,
        "qk_norm": vit.qk_norm,
        "norm_epsilon": vit.norm_epsilon,
        "relative_stddev": vit.position_stddev if own_relative else None,
    }
    common = {"dtype": vit.policy, "name": f"encoder_block_{index}"}
    if vit.attention == "axial":
        return layers.AxialEncoderBlock(vit.grid, arguments, **common)
    return layers.EncoderBlock(**arguments, **common)


def _pool(x, vit):
    """From tokens [B, N, D] to [B, D] as the head has it; registers take no part."""
    if vit.head == "token":
        return x[:, 0]
    if vit.head == "gap":
        patches = x[:, vit.prefix_tokens :] if vit.prefix_tokens else x
        return keras.layers.GlobalAveragePooling1D(dtype="float32", name="pooling")(
            patches
        )
    if vit.head == "map":
        if vit.register_tokens:
            patches = x[:, vit.prefix_tokens :]
            x = ops.concatenate([x[:, : vit.class_token], patches], axis=1)
        return layers.AttentionPooling(
            vit.mlp_dim,
            vit.heads,
            vit.gelu,
            vit.norm_epsilon,
            dtype=vit.policy,
            name="attention_pooling",
        )(x)
    return x
