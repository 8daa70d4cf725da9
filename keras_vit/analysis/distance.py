"""Mean attention distance by head and depth (section 4.5, appendix D.7)."""

from typing import Any

import numpy as np
from keras import ops

from keras_vit.analysis.models import BATCH_SIZE, check_full_attention, outputs_of
from keras_vit.features import block_attention_weights
from keras_vit.keras_classes import Layer, Model
from keras_vit.typing import Array, Images, Shape, Tensor, Weights
from keras_vit.vit import VisionTransformer


class MeanDistance(Layer):
    """Reduce the attention weights of a block to each head's mean distance.

    It is in the graph, so that [B, A] leaves it instead of [B, A, N, N].

    Args:
        distances: [h * w, h * w], between the patches.

    Call arguments:
        weights: Tensor [B, A, N, N], the last h * w of the tokens patches.

    Returns:
        float32 tensor [B, A], in the unit of the distances.
    """

    def __init__(self, distances: Array, **kwargs: Any) -> None:
        super().__init__(dtype="float32", **kwargs)
        self.distances = self.add_weight(
            name="distances",
            shape=distances.shape,
            initializer=lambda *_, **__: ops.convert_to_tensor(distances, "float32"),
            trainable=False,
        )
        self.built = True

    def call(self, weights: Weights) -> Tensor:
        patches = self.distances.shape[0]
        weights = weights[:, :, -patches:, -patches:]
        spanned = ops.sum(weights * self.distances, axis=-1)  # [B, A, h * w]
        return ops.mean(ops.divide_no_nan(spanned, ops.sum(weights, axis=-1)), axis=-1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape[:2]


def patch_distances(grid: tuple[int, int], image_size: tuple[int, int]) -> Array:
    """Distances between the centers of all patches.

    Args:
        grid: (h, w), rows and columns of patches.
        image_size: (H, W) in pixels.

    Returns:
        float64 [h * w, h * w], in pixels of the image, patches row by row.
    """
    indices = np.indices(grid).reshape(2, -1)  # [2, h * w]
    steps = np.divide(image_size, grid)[:, None, None]
    distances: Array = np.hypot(*(steps * (indices[:, :, None] - indices[:, None, :])))
    return distances


def attention_distance_model(model: VisionTransformer) -> Model:
    """Model of the mean attention distance of every block, for single images.

    Args:
        model: A `VisionTransformer` with `attention="full"`.

    Returns:
        A functional `keras.Model` from the same images to a list of float32 tensors
        [B, A], one for each block; see `attention_distance`.

    """
    mean_distance = MeanDistance(patch_distances(model.grid, model.image_size))
    weights = block_attention_weights(model, range(model.depth))
    outputs = [mean_distance(each) for each in weights]
    return Model(model.input, outputs, name=f"{model.name}_attention_distance")


def attention_distance(
    model: VisionTransformer, images: Images, batch_size: int = BATCH_SIZE
) -> Array:
    """Mean attention distance of each head (Figures 7 right and 11, appendix D.7).

    The distance between a query patch and all patches, center to center, is averaged
    with the attention weights, then over all queries and images. It is analogous to
    the size of a receptive field.

    Class token and registers have no place in the image: they count neither as
    queries nor as keys, and what a query gives to the patches is scaled to the sum
    1, as a mean needs it. (A query that gives them nothing counts 0.) In a hybrid a
    patch is as large as the part of the image that one position of the feature map
    stands for, such as 16 pixels in R50+B/16; its receptive field is larger.

    Attention weights are reduced inside the graph, batch by batch and block by block.

    Args:
        model: A `VisionTransformer` with `attention="full"`.
        images: [n, H, W, C], as the model reads them; the paper takes 128.
        batch_size: Images in a batch.

    Returns:
        float64 [depth, A], in pixels of the model's input.

    Raises:
        NotApplicableError: Another model, or attention is axial.
        ValueError: No images, or of another size.
    """
    check_full_attention(model)
    outputs = outputs_of(model, attention_distance_model, (), images, batch_size)
    return np.stack([each.mean(axis=0, dtype="float64") for each in outputs])
