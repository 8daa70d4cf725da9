"""Layers of a Vision Transformer, for any Keras backend, and the glossary of letters.

Letters in comments and docstrings:

    B       images in the batch
    H, W    height and width of an image, in pixels
    C       channels of an image
    P       side of a patch, in pixels
    h, w    rows and columns of patches
    N       tokens: patches, and before them class token and registers if there are any
    R       register tokens
    D       width of a token
    A, K    attention heads, and the width D / A of each
    M       width of the hidden layer of the MLP, in a SwiGLU after its gate
"""

from keras_vit.layers.encoder_blocks import (
    AxialEncoderBlock,
    EncoderBlock,
    LayerScale,
    StochasticDepth,
)
from keras_vit.layers.mlp import MLP
from keras_vit.layers.normalization import LayerNorm, RMSNorm
from keras_vit.layers.pooling import AttentionPooling, QueryPooling
from keras_vit.layers.positions import (
    PositionEmbedding,
    PositionEmbedding2D,
    RelativeBias,
    RelativePosition,
    SinCosPositionEmbedding,
)
from keras_vit.layers.rotary import RotaryPositions
from keras_vit.layers.self_attention import MultiHeadSelfAttention
from keras_vit.layers.tokens import ClassToken, PatchDropout, RegisterTokens

__all__ = [
    "MLP",
    "AttentionPooling",
    "AxialEncoderBlock",
    "ClassToken",
    "EncoderBlock",
    "LayerNorm",
    "LayerScale",
    "MultiHeadSelfAttention",
    "PatchDropout",
    "PositionEmbedding",
    "PositionEmbedding2D",
    "QueryPooling",
    "RMSNorm",
    "RegisterTokens",
    "RelativeBias",
    "RelativePosition",
    "RotaryPositions",
    "SinCosPositionEmbedding",
    "StochasticDepth",
]
