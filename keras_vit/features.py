"""Intermediate features and attention weights, as models that share a ViT's layers.

The functions are methods of `VisionTransformer` too. They branch off the model's own
graph, so the model's layers, weights and names stay as they are.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Self

import keras
import numpy as np
from keras import ops

from keras_vit.checks import check_choice
from keras_vit.configured_layer import ConfiguredLayer
from keras_vit.keras_classes import Layer, Model
from keras_vit.typing import Config, Shape, Tensor, Tokens, Weights

if TYPE_CHECKING:
    from keras_vit.layers import AttentionPooling, EncoderBlock
    from keras_vit.layers.encoder_blocks import BlockContext
    from keras_vit.vit import VisionTransformer

LAYOUTS = ("tokens", "map")


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionWeights(Layer):
    """Output the attention weights of an existing encoder block or attention pooling.

    Args:
        block: An `EncoderBlock` or an `AttentionPooling`.

    Call arguments:
        tokens: Tensor [B, N, D], what the block is given.
        context: What else the block is given, see `BlockContext` of the layers.

    Returns:
        Tensor [B, A, N, N], of the pooling [B, A, 1, N], in float32.
    """

    def __init__(self, block: "EncoderBlock | AttentionPooling", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.block = block
        self.autocast = False  # the block casts what it is given

    def call(self, tokens: Tokens, context: "BlockContext | None" = None) -> Weights:
        return self.block.attention_weights(tokens, context)

    def get_config(self) -> Config:
        block = keras.saving.serialize_keras_object(self.block)
        return {**super().get_config(), "block": block}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        block = keras.saving.deserialize_keras_object(config["block"])
        return cls(**{**config, "block": block})


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionRollout(ConfiguredLayer):
    """Attention weights of all blocks to one map (arXiv:2005.00928, section 3).

    A block's matrix is the mean of identity (the residual connection) and of the heads'
    mean attention weights. The product over the blocks, from the pooled output down,
    is the share of each patch in the output.

    Args:
        grid: (h, w), rows and columns of patches.
        prefix_tokens: Number of tokens before the patches.
        pooling: `"token"`, `"avg"`, `"map"` or `"query"`: what the output is made of.
        class_token: Whether the first of the tokens is the class token.

    Call arguments:
        blocks: List of tensors [B, A, N, N], first block first.
        pooling_weights: Tensor [B, A, 1, n] of attention pooling over the class token,
            if there is one, and the patches; for `"map"` and `"query"`.

    Returns:
        float32 tensor [B, h, w]; the sum of each map is 1.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        prefix_tokens: int,
        pooling: str,
        class_token: bool,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("dtype", None)
        super().__init__(dtype="float32", **kwargs)
        rows, columns = grid
        self.grid = rows, columns
        self.prefix_tokens = prefix_tokens
        self.pooling = pooling
        self.class_token = class_token

    def call(
        self, blocks: list[Weights], pooling_weights: Weights | None = None
    ) -> Tensor:
        row = self._output_row(pooling_weights)
        for weights in reversed(blocks):
            row = 0.5 * (row + ops.matmul(row, ops.mean(weights, axis=1)))
        patches = row[:, 0, self.prefix_tokens :]
        patches = patches / ops.sum(patches, axis=-1, keepdims=True)
        return ops.reshape(patches, (-1, *self.grid))

    def _output_row(self, pooling_weights: Weights | None) -> Tensor:
        """Shares of the last block's tokens in the output: [1 or B, 1, N]."""
        height, width = self.grid
        tokens = np.eye(self.prefix_tokens + height * width, dtype="float32")
        patches = tokens[self.prefix_tokens :]
        if self.pooling == "token":
            return tokens[None, :1]
        if self.pooling == "avg":
            return patches.mean(0)[None, None]
        read = np.concatenate([tokens[: int(self.class_token)], patches])
        return ops.matmul(ops.mean(pooling_weights, axis=1), read)

    def compute_output_shape(
        self, blocks_shape: list[Shape], pooling_weights_shape: Shape | None = None
    ) -> Shape:
        return (blocks_shape[0][0], *self.grid)


def _block_indices(
    model: "VisionTransformer", blocks: int | Iterable[int]
) -> list[int]:
    """The indices from 0 on; ValueError for an unknown one."""
    indices = list(blocks) if isinstance(blocks, Iterable) else [blocks]
    for index in indices:
        if not -model.depth <= index < model.depth:
            raise ValueError(
                f"`blocks` must be indices of the model's {model.depth} encoder "
                f"blocks, from {-model.depth} to {model.depth - 1}. "
                f"Received: blocks={blocks!r}"
            )
    return [index % model.depth for index in indices]


def _block(model: "VisionTransformer", index: int) -> keras.layers.Layer:
    return model.get_layer(f"encoder_block_{index}")


def features_model(
    model: "VisionTransformer",
    blocks: int | Iterable[int] = -1,
    prefix_tokens: bool = False,
    layout: Literal["tokens", "map"] = "tokens",
) -> Model:
    """Model of the outputs of encoder blocks, before the final LayerNorm.

    Args:
        model: A `VisionTransformer`.
        blocks: Index of a block, or several; negative ones count from the end.
        prefix_tokens: Whether class token and registers are in front of the patches.
        layout: `"tokens"`, or `"map"` for the patches at their places, which needs all
            of them: no training with `patch_dropout`.

    Returns:
        A functional `keras.Model` from the same images. For one block it gives a
        tensor [B, N, D] or, as a map, [B, h, w, D] with (h, w) = `model.grid`; for
        several a list of them.

    Raises:
        ValueError: An unknown block or layout, or a map of prefix tokens.
    """
    check_choice("layout", layout, LAYOUTS)
    if prefix_tokens and layout == "map":
        raise ValueError(
            "Prefix tokens have no place on a map. "
            "Received: prefix_tokens=True, layout='map'"
        )

    def output(block: keras.layers.Layer) -> Tensor:
        x = block.output
        if not prefix_tokens and model.prefix_tokens:
            x = x[:, model.prefix_tokens :]
        if layout == "map":
            shape = (*model.grid, model.width)
            x = keras.layers.Reshape(
                shape, dtype=model.dtype_policy, name=f"{block.name}_map"
            )(x)
        return x

    indices = _block_indices(model, blocks)
    outputs = [output(_block(model, index)) for index in indices]
    return _model(model, outputs, "features")


def attention_weights_model(
    model: "VisionTransformer", blocks: int | Iterable[int] | None = None
) -> Model:
    """Model of the attention weights of encoder blocks (appendix A, equation 6).

    Args:
        model: A `VisionTransformer` with `attention="full"`.
        blocks: Index of a block, or several; all when absent.

    Returns:
        A functional `keras.Model` from the same images. For one block it gives a
        float32 tensor [B, A, N, N], for each query (third axis) a softmax over the keys
        (fourth axis), prefix tokens included; for several a list of them.

    Raises:
        ValueError: An unknown block, or attention is axial.
    """
    outputs = block_attention_weights(
        model, range(model.depth) if blocks is None else blocks
    )
    return _model(model, outputs, "attention_weights")


def attention_rollout_model(model: "VisionTransformer") -> Model:
    """Model of each patch's share in the output (Abnar and Zuidema, 2020).

    It starts at the class token with `pooling="token"`, at the mean of the patches with
    `"avg"`, and with `"map"` and `"query"` at the pooling's own attention weights.
    Prefix tokens' shares are left out.

    Args:
        model: A `VisionTransformer` with `attention="full"` and a pooled output.

    Returns:
        A functional `keras.Model` from the same images to a float32 tensor [B, h, w]
        with (h, w) = `model.grid`; the sum of each map is 1.

    Raises:
        ValueError: Attention is axial, or `pooling=None`.
    """
    if model.pooling is None:
        raise ValueError(
            "Attention rollout needs a pooled output. "
            f"Received: pooling={model.pooling!r}"
        )
    inputs = {"blocks": block_attention_weights(model, range(model.depth))}
    if model.pooling in ("map", "query"):
        inputs["pooling_weights"] = pooling_attention_weights(model)
    rollout = AttentionRollout(
        model.grid,
        model.prefix_tokens,
        model.pooling,
        model.class_token,
        name="attention_rollout",
    )(**inputs)
    return _model(model, [rollout], "attention_rollout")


def block_attention_weights(
    model: "VisionTransformer", blocks: int | Iterable[int]
) -> list[Weights]:
    """The tensors [B, A, N, N] that `attention_weights` makes a model of."""
    if model.attention != "full":
        raise ValueError(
            "Attention weights of all tokens need `attention='full'`. "
            f"Received: attention={model.attention!r}"
        )

    def weights(index: int) -> Weights:
        block = _block(model, index)
        tokens, *_ = keras.tree.flatten(block.input)
        return AttentionWeights(
            block, dtype=block.dtype_policy, name=f"{block.name}_attention_weights"
        )(tokens, model.block_context(index))

    return [weights(index) for index in _block_indices(model, blocks)]


def pooling_attention_weights(model: "VisionTransformer") -> Weights:
    """Tensor [B, A, 1, n] of the weights of attention pooling, `"map"` or `"query"`."""
    layer = model.get_layer("attention_pooling")
    return AttentionWeights(
        layer, dtype=layer.dtype_policy, name="attention_pooling_weights"
    )(layer.input)


def _model(model: "VisionTransformer", outputs: list[Tensor], name: str) -> Model:
    output = outputs[0] if len(outputs) == 1 else outputs
    return Model(model.input, output, name=f"{model.name}_{name}")
