"""Similarity of position embeddings (section 4.5, appendix D.4)."""

import numpy as np
from keras import ops

from keras_vit.analysis.models import check_vision_transformer
from keras_vit.errors import NotApplicableError
from keras_vit.typing import Array
from keras_vit.vit import VisionTransformer


def position_similarity(model: VisionTransformer, block: int = 0) -> Array:
    """Cosine similarity of each patch's position with all others (Figures 7 and 10).

    Learned 1-D and 2-D positions and sines and cosines are compared as they are added
    to the patches. Relative embeddings belong to offsets, not to positions (appendix
    D.4): of a patch, the embedding of no offset is compared with those of its offsets
    to the other patches, so that the entry of the patch itself is 1 here, too. They
    are offsets in the sequence of tokens, in which a row follows the one above.

    Args:
        model: A `VisionTransformer` with position embeddings.
        block: Whose embeddings, where each block has its own
            (`position_placement="every_layer"`); the others have one for all.

    Returns:
        float64 [h, w, h, w] in [-1, 1]: the entry [i, j] is the map of the patch in
        row i, column j.

    Raises:
        NotApplicableError: Another model, or one without position embeddings.
        ValueError: There is no such block.
    """
    check_vision_transformer(model)
    if model.position_embedding == "none":
        raise NotApplicableError(
            "`model` must have position embeddings. "
            f"Received: position_embedding={model.position_embedding!r}"
        )
    if not 0 <= block < model.depth:
        raise ValueError(
            f"`block` must be the index of one of the model's {model.depth} encoder "
            f"blocks. Received: block={block}"
        )
    if model.position_embedding == "relative":
        similarity = _relative_similarity(model, block)
    else:
        vectors = _normalized(_positions(model, block))
        similarity = vectors @ vectors.T
    return similarity.reshape(*model.grid, *model.grid)


def _positions(model: VisionTransformer, block: int) -> Array:
    """What is added to the patches: float64 [h * w, D]."""
    own = model.position_placement == "every_layer"
    layer = model.get_layer(f"position_embedding_{block}" if own else _NAME)
    patches = np.prod(model.grid)
    tokens = np.zeros((1, model.prefix_tokens + patches, model.width), "float32")
    # `call` alone leaves the weights in float32; a call would round them to the dtype
    # that the model computes in.
    embedding = ops.convert_to_numpy(layer.call(ops.convert_to_tensor(tokens)))
    return np.asarray(embedding[0, model.prefix_tokens :], "float64")


_NAME = "position_embedding"


def _relative_similarity(model: VisionTransformer, block: int) -> Array:
    """Cosines of the embeddings of all offsets with that of none: [h * w, h * w]."""
    if model.position_placement == "shared":
        table = model.get_layer("relative_position").embedding
    else:
        table = model.get_layer(f"encoder_block_{block}").attention.relative_embedding
    vectors = _normalized(np.asarray(ops.convert_to_numpy(table), "float64"))
    center = len(vectors) // 2  # the row of the offset 0, of 2 N - 1
    patches = np.arange(np.prod(model.grid))
    cosines = vectors @ vectors[center]
    by_pair: Array = cosines[center + patches[None, :] - patches[:, None]]
    return by_pair


def _normalized(vectors: Array) -> Array:
    """Rows of length 1; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    normalized: Array = vectors / np.maximum(lengths, np.finfo("float64").tiny)
    return normalized
