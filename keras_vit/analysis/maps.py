"""Attention from the output to the patches, by head and by rollout (Figures 6, 14)."""

import numpy as np
from keras import ops

from keras_vit.analysis.models import BATCH_SIZE, check_full_attention, outputs_of
from keras_vit.errors import NotApplicableError
from keras_vit.features import attention_rollout_model, pooling_attention_weights
from keras_vit.keras_classes import Model
from keras_vit.typing import Array, Images
from keras_vit.vit import VisionTransformer


def class_attention(
    model: VisionTransformer,
    images: Images,
    block: int = -1,
    batch_size: int = BATCH_SIZE,
) -> Array:
    """Attention weights from the output to the patches, of each head.

    What the output is made of decides whose weights these are, as in rollout: the
    class token's with `pooling="token"` (and without pooling, where there is one), the
    mean of all patches' with `"avg"`, and with `"map"` those of the pooling's own
    query, the probe, which follows the last block.

    Args:
        model: A `VisionTransformer` with `attention="full"`.
        images: [n, H, W, C], as the model reads them.
        block: Index of the encoder block; negative ones count from the end. With
            `pooling="map"` only -1: the pooling.
        batch_size: Images in a batch.

    Returns:
        float32 [n, A, h, w]. The sum of each map is at most 1: the rest is what class
        token and registers get.

    Raises:
        NotApplicableError: Another model, attention is axial, or the model has neither
            pooling nor class token.
        ValueError: There is no such block; no images, or of another size.
    """
    check_full_attention(model)
    if model.pooling is None and not model.class_token:
        raise NotApplicableError(
            "`model` must have a pooling or a class token. "
            f"Received: pooling={model.pooling!r}, class_token={model.class_token}"
        )
    if model.pooling in ("map", "query") and block != -1:
        raise ValueError(
            f"`block` must be -1 with pooling={model.pooling!r}, whose query follows "
            f"the last block. Received: block={block}"
        )
    [weights] = outputs_of(model, _class_attention_model, (block,), images, batch_size)
    return weights.reshape(*weights.shape[:2], *model.grid)


def _class_attention_model(model: VisionTransformer, block: int) -> Model:
    """Model from images to [B, A, h * w]."""
    if model.pooling in ("map", "query"):
        weights = pooling_attention_weights(model)[:, :, 0]
    else:
        weights = model.attention_weights_model(block).output  # [B, A, N, N]
        if model.pooling == "avg":
            weights = ops.mean(weights[:, :, model.prefix_tokens :], axis=2)
        else:
            weights = weights[:, :, 0]
    patches = weights[:, :, -int(np.prod(model.grid)) :]
    return Model(model.input, patches, name=f"{model.name}_class_attention")


def attention_rollout(
    model: VisionTransformer, images: Images, batch_size: int = BATCH_SIZE
) -> Array:
    """Each patch's share in the output, by attention rollout (appendix D.8).

    See `VisionTransformer.attention_rollout_model`.

    Args:
        model: A `VisionTransformer` with `attention="full"` and a pooled output.
        images: [n, H, W, C], as the model reads them.
        batch_size: Images in a batch; the attention weights of all blocks for them are
            in memory at once.

    Returns:
        float32 [n, h, w]; the sum of each map is 1.

    Raises:
        NotApplicableError: Another model, attention is axial, or `pooling=None`.
        ValueError: No images, or of another size.
    """
    check_full_attention(model)
    if model.pooling is None:
        raise NotApplicableError(
            f"`model` must have a pooled output. Received: pooling={model.pooling!r}"
        )
    [rollout] = outputs_of(model, attention_rollout_model, (), images, batch_size)
    return rollout
