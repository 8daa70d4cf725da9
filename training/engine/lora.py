"""Low-rank adaptation of a Vision Transformer's dense layers (arXiv:2106.09685)."""

import contextlib
from collections.abc import Collection, Iterator

import keras
from keras import ops

from keras_vit.nested_layers import all_layers


def enable_lora(model: keras.Model, rank: int, layers: Collection[str]) -> None:
    """Freeze a model but for its classifier, and adapt dense layers of its blocks.

    Each gets Keras's two matrices [D, rank] and [rank, M]; their product, zero at
    first, is added to the kernel.

    Args:
        model: A built `keras_vit.VisionTransformer`. It is changed.
        rank: Rank of the product, at least 1.
        layers: What is adapted in each encoder block: some of `"query"`, `"key"`,
            `"value"`, `"out"` and `"mlp"`.
    """
    names = {*layers, *(("Dense_0", "Dense_1") if "mlp" in layers else ())}
    for layer in model.layers:
        if layer.name in ("head", "head_dist", "pre_logits", "projection"):
            continue
        for weight in layer.weights:
            weight.trainable = False
        if layer.name.startswith("encoder_block_"):
            for dense in all_layers(layer):
                if isinstance(dense, keras.layers.Dense) and dense.name in names:
                    dense.enable_lora(rank)


@contextlib.contextmanager
def merged(model: keras.Model) -> Iterator[None]:
    """Add the products to the kernels within a block, in which the model is ordinary.

    Keras does it by itself while it saves a model, but rounds the sum to bfloat16 in
    mixed precision. Afterwards all weights are bit for bit what they were.
    """
    adapted = [
        layer for layer in all_layers(model) if getattr(layer, "lora_enabled", False)
    ]
    kernels = []
    for layer in adapted:
        a, b = (m.value for m in (layer.lora_kernel_a, layer.lora_kernel_b))
        product = ops.matmul(a, b) * (layer.lora_alpha / layer.lora_rank)
        layer.lora_enabled = False  # now `kernel` is the variable, not the sum
        kernels.append(ops.copy(layer.kernel))
        layer.kernel.assign(layer.kernel + ops.cast(product, layer.kernel.dtype))
    try:
        yield
    finally:
        for layer, kernel in zip(adapted, kernels, strict=True):
            layer.kernel.assign(kernel)
            layer.lora_enabled = True
