"""What a Vision Transformer costs, in closed form: parameters, operations, memory."""

import dataclasses

from keras_vit.specs import ViTSpec, image_size_pair


@dataclasses.dataclass(frozen=True)
class Costs:
    """The cost of one model on one image.

    Args:
        tokens: Number N of tokens in the encoder, class token included.
        parameters: Number of weights.
        macs: Multiply-accumulate operations of one forward pass, attention's two
            products included. Normalisation, GELU and softmax are not counted.
        inference_bytes: Largest sum of activations that must be held at one time.
        training_bytes: Activations that a backward pass needs, without
            rematerialisation, kept in the compute dtype.
    """

    tokens: int
    parameters: int
    macs: int
    inference_bytes: int
    training_bytes: int

    @property
    def flops(self) -> int:
        """Floating-point operations of one forward pass: two for each MAC."""
        return 2 * self.macs


def model_costs(
    spec: ViTSpec,
    patch_size: int,
    image_size: int | tuple[int, int] = 224,
    channels: int = 3,
    classes: int | None = 1000,
    class_token: bool = True,
    bytes_per_value: int = 4,
) -> Costs:
    """Counts the cost of a plain ViT with a class-token or mean-pooling head.

    Args:
        spec: Width, depth, MLP width and heads.
        patch_size: Side P of a patch, in pixels.
        image_size: (H, W) or one integer, multiples of `patch_size`.
        channels: Channels C of the images.
        classes: Number of classes, or `None` for no classifier.
        class_token: Whether there is a class token.
        bytes_per_value: Of the compute dtype: 4 for float32, 2 for bfloat16.

    Returns:
        The `Costs`, for one image.

    Raises:
        ValueError: `image_size` is no multiple of `patch_size`.
    """
    height, width = image_size_pair(image_size)
    if height % patch_size or width % patch_size:
        raise ValueError(
            "`image_size` must be a multiple of `patch_size`. "
            f"Received: image_size={image_size}, patch_size={patch_size}"
        )
    d, depth, m = spec.width, spec.depth, spec.mlp_dim
    patches = (height // patch_size) * (width // patch_size)
    n = patches + class_token
    patch_weights = patch_size * patch_size * channels * d
    head = 0 if classes is None else d * classes

    block = 4 * d * (d + 1) + d * (m + 1) + m * (d + 1) + 4 * d
    parameters = patch_weights + d + class_token * d + n * d + depth * block + 2 * d
    parameters += 0 if classes is None else head + classes
    products = 4 * n * d * d + 2 * n * n * d + 2 * n * d * m
    macs = patches * patch_weights + depth * products + head

    tokens_size, scores_size, hidden_size = n * d, spec.heads * n * n, n * m
    # At the peak: residual stream and norm with either the attention's query, key,
    # value and two copies of the scores, or the MLP's hidden layer around its GELU.
    peak = 2 * tokens_size + max(3 * tokens_size + 2 * scores_size, 2 * hidden_size)
    # Kept for the backward pass: the inputs of both norms, of the query, key and value
    # projections, of the attention's two products (three tensors, and the weights), of
    # the output projection, of the MLP, and of its GELU and second layer.
    kept = 8 * tokens_size + scores_size + 2 * hidden_size
    image = height * width * channels
    return Costs(
        tokens=n,
        parameters=parameters,
        macs=macs,
        inference_bytes=(image + peak) * bytes_per_value,
        training_bytes=(image + depth * kept + 2 * tokens_size) * bytes_per_value,
    )
