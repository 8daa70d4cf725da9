"""What a Vision Transformer holds inside, by models that share its layers.

Both functions are methods of `VisionTransformer` too. They branch off the model's own
graph, so the model's layers, weights and names stay as they are.
"""

from collections.abc import Iterable

import keras

from keras_vit.base import check_choice

LAYOUTS = ("tokens", "map")


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionWeights(keras.layers.Layer):
    """The attention weights of an encoder block that it shares.

    Args:
        block: An `EncoderBlock`.

    Call arguments:
        tokens: Tensor [B, N, D], what the block is given.
        relative_embedding: Tensor [2 N - 1, K] where the block is given one.

    Returns:
        Tensor [B, A, N, N] in float32.
    """

    def __init__(self, block, **kwargs):
        super().__init__(**kwargs)
        self.block = block

    def call(self, tokens, relative_embedding=None):
        return self.block.attention_weights(tokens, relative_embedding)

    def get_config(self):
        block = keras.saving.serialize_keras_object(self.block)
        return {**super().get_config(), "block": block}

    @classmethod
    def from_config(cls, config):
        block = keras.saving.deserialize_keras_object(config["block"])
        return cls(**{**config, "block": block})


def _block_layers(model, blocks: int | Iterable[int]) -> list[keras.layers.Layer]:
    indices = list(blocks) if isinstance(blocks, Iterable) else [blocks]
    for index in indices:
        if not -model.depth <= index < model.depth:
            raise ValueError(
                f"`blocks` must be indices of the model's {model.depth} encoder "
                f"blocks, from {-model.depth} to {model.depth - 1}. "
                f"Received: blocks={blocks!r}"
            )
    return [model.get_layer(f"encoder_block_{i % model.depth}") for i in indices]


def features(
    model,
    blocks: int | Iterable[int] = -1,
    prefix_tokens: bool = False,
    layout: str = "tokens",
) -> keras.Model:
    """A model of the outputs of encoder blocks, before the final LayerNorm.

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
        ValueError: There is no such block or layout, or a map of prefix tokens.
    """
    check_choice("layout", layout, LAYOUTS)
    if prefix_tokens and layout == "map":
        raise ValueError(
            "Prefix tokens have no place on a map. "
            "Received: prefix_tokens=True, layout='map'"
        )

    def output(block):
        x = block.output
        if not prefix_tokens and model.prefix_tokens:
            x = x[:, model.prefix_tokens :]
        if layout == "map":
            shape = (*model.grid, model.width)
            x = keras.layers.Reshape(
                shape, dtype=model.dtype_policy, name=f"{block.name}_map"
            )(x)
        return x

    outputs = [output(block) for block in _block_layers(model, blocks)]
    return _model(model, outputs, "features")


def attention_weights(model, blocks: int | Iterable[int] | None = None) -> keras.Model:
    """A model of the attention weights of encoder blocks (appendix A, equation 6).

    Args:
        model: A `VisionTransformer` with `attention="full"`.
        blocks: Index of a block, or several; all when absent.

    Returns:
        A functional `keras.Model` from the same images. For one block it gives a
        float32 tensor [B, A, N, N], what each token (third axis) takes of each (fourth
        axis, the sum is 1), prefix tokens included; for several a list of them.

    Raises:
        ValueError: There is no such block, or attention is axial.
    """
    if model.attention != "full":
        raise ValueError(
            "Attention weights of all tokens need `attention='full'`. "
            f"Received: attention={model.attention!r}"
        )
    outputs = [
        AttentionWeights(
            block, dtype=block.dtype_policy, name=f"{block.name}_attention_weights"
        )(*keras.tree.flatten(block.input))
        for block in _block_layers(
            model, range(model.depth) if blocks is None else blocks
        )
    ]
    return _model(model, outputs, "attention_weights")


def _model(model, outputs, name) -> keras.Model:
    outputs = outputs[0] if len(outputs) == 1 else outputs
    return keras.Model(model.input, outputs, name=f"{model.name}_{name}")
