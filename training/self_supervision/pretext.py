"""The models of self-supervised pre-training around a Vision Transformer.

    masked_patches   appendix B.1.2 of arXiv:2010.11929
    mae              masked autoencoder, arXiv:2111.06377
    simmim           arXiv:2111.09886, with a linear head

A pretext model shares the layers of its encoder, and outputs each patch's loss.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

import keras_vit
from keras_vit import layers
from keras_vit.specs import patch_side
from keras_vit.typing import Array, Images, Tensor, Tokens

from ..data.masking import masked_patches
from ..engine.forward_pass import ForwardPass, preprocessing_of, strategy_of
from ..errors import require
from ..recipe import SelfSupervisionConfig
from .pretext_layers import (
    LEVELS,
    ColorLosses,
    CorruptPatches,
    KeepPatches,
    PixelLosses,
    RestorePatches,
)

DIVISIONS = {"mean_color": 1, "colors_4x4": 4}  # colors along the side of a patch


class PretextModel(keras.Model):
    """A Vision Transformer that predicts its masked patches.

    Args:
        encoder: A `keras_vit.VisionTransformer` without classes that reads pixels from
            0 to 255.
        config: The recipe's `self_supervision`.

    Call arguments:
        inputs: Dictionary of `images`, [B, H, W, C], and `patch_indices`, int32 [B, N];
            see `Masking`.

    Returns:
        float32 [B, N, 1 or 2]: each patch's loss and, of colors, the share that is
        predicted right.

    Raises:
        RecipeError: The encoder has parts that the task does not train or cannot mask.
    """

    def __init__(
        self, encoder: keras_vit.VisionTransformer, config: SelfSupervisionConfig
    ) -> None:
        _check_encoder(encoder, config)
        images = encoder.images_input()
        height, width = encoder.grid
        indices = keras.Input((height * width,), dtype="int32", name="patch_indices")
        connect = _autoencode if config.task == "mae" else _predict_corrupted
        tokens = connect(encoder, config, images, indices)
        head = keras.layers.Dense(
            _outputs(encoder, config), dtype="float32", name="predictions"
        )
        target = (
            images
            if config.predicts_colors
            else preprocessing_of(encoder)(images, fitted=True)
        )
        losses = _losses_layer(encoder, config)(head(tokens), target)
        inputs = {"images": images, "patch_indices": indices}
        super().__init__(inputs, losses, name=f"{encoder.name}_{config.task}")
        self.encoder = encoder
        self.config = config

    @property
    def preprocessing(self) -> keras_vit.ImagePreprocessing:
        """The encoder's layer from pixels to its first real one."""
        return preprocessing_of(self.encoder)

    def predictions(self, images: Array, patch_indices: Array) -> Array:
        """What is predicted of each patch: NumPy array [B, N, outputs]."""
        network = keras.Model(self.input, self.get_layer("predictions").output)
        forward = ForwardPass(network, strategy_of(self), len(images))
        return forward({"images": images, "patch_indices": patch_indices})

    def copy(self, weights: Sequence[Array]) -> "PretextModel":
        """The same model with other weights, of the current strategy."""
        encoder = type(self.encoder).from_config(self.encoder.get_config())
        model = PretextModel(encoder, self.config)
        model.set_weights(weights)
        return model


def _check_encoder(
    encoder: keras_vit.VisionTransformer, config: SelfSupervisionConfig
) -> None:
    wanted: dict[str, tuple[Any, ...]] = {
        "pooling": ("token", "avg"),
        "fc_norm": (False,),
        "final_norm": (True,),
        "patch_dropout": (0,),
    }
    wanted["representation_size"] = wanted["projection"] = (None,)
    if config.task == "mae":
        wanted |= {"attention": ("full",), "position_placement": ("stem",)}
        wanted["rotary"] = wanted["relative_bias"] = (None,)
    for name, values in wanted.items():
        value = getattr(encoder, name)
        choices = " or ".join(map(repr, values))
        text = f"{choices} with self_supervision.task {config.task}"
        require(value in values, f"model.{name}", text, value)
    side, divisions = _side(encoder), DIVISIONS.get(config.target, 1)
    require(
        config.task != "masked_patches" or side % divisions == 0,
        "self_supervision.target",
        f"mean_color or pixels for patches of {side} pixels, of which 4x4 colors "
        "cannot be made",
        config.target,
    )


def _side(encoder: keras_vit.VisionTransformer) -> int:
    """Side of a patch in pixels of the image."""
    return patch_side(encoder.patch_size, encoder.resnet_blocks)


def _predict_corrupted(
    encoder: keras_vit.VisionTransformer,
    config: SelfSupervisionConfig,
    images: Images,
    indices: Tensor,
) -> Tokens:
    """The encoder's output for corrupted patch embeddings: [B, N, D]."""
    patches = encoder.get_layer("patches").output
    embed = keras.Model(encoder.input, patches, name="patch_embedding")
    last = encoder.get_layer("encoder_norm").output
    encode = keras.Model(patches, last, name="encoder")
    corrupted = CorruptPatches(dtype=encoder.dtype_policy, name="corruption")(
        embed(images), indices
    )
    return encode(corrupted)[:, encoder.prefix_tokens :]


def _autoencode(
    encoder: keras_vit.VisionTransformer,
    config: SelfSupervisionConfig,
    images: Images,
    indices: Tensor,
) -> Tokens:
    """The decoder's output for the encoder's of the visible patches: [B, N, W]."""
    policy, prefix = encoder.dtype_policy, encoder.prefix_tokens
    with_positions = encoder.get_layer("embedding_dropout").output
    embed = keras.Model(encoder.input, with_positions, name="patch_embedding")
    height, width = encoder.grid
    masked = masked_patches(config, height * width)
    x = KeepPatches(height * width - masked, prefix, name="visible", dtype=policy)(
        embed(images), indices
    )
    for index in range(encoder.depth):
        x = encoder.get_layer(f"encoder_block_{index}")(x)
    x = encoder.get_layer("encoder_norm")(x)
    x = keras.layers.Dense(
        config.decoder_width, dtype=policy, name="decoder_embedding"
    )(x)
    x = RestorePatches(prefix, name="restored", dtype=policy)(x, indices)
    x = layers.SinCosPositionEmbedding(
        encoder.grid, last_frequency=False, dtype=policy, name="decoder_positions"
    )(x)
    for index in range(config.decoder_depth):
        x = layers.EncoderBlock(
            4 * config.decoder_width,
            config.decoder_heads,
            gelu=encoder.gelu,
            norm_epsilon=encoder.norm_epsilon,
            dtype=policy,
            name=f"decoder_block_{index}",
        )(x)
    x = layers.LayerNorm(encoder.norm_epsilon, dtype=policy, name="decoder_norm")(x)
    return x[:, prefix:]


def _outputs(
    encoder: keras_vit.VisionTransformer, config: SelfSupervisionConfig
) -> int:
    """Number of values that are predicted for a patch."""
    channels: int = encoder.channels
    if config.predicts_colors:
        return DIVISIONS[config.target] ** 2 * int(LEVELS**channels)
    return _side(encoder) ** 2 * channels


def _losses_layer(
    encoder: keras_vit.VisionTransformer, config: SelfSupervisionConfig
) -> keras.layers.Layer:
    side = _side(encoder)
    if config.predicts_colors:
        divisions = DIVISIONS[config.target]
        return ColorLosses(side, divisions, dtype="float32", name="losses")
    normalize = config.task == "mae" and config.normalize_pixels
    power = 1 if config.task == "simmim" else 2
    return PixelLosses(side, power, normalize, dtype="float32", name="losses")


def masked_loss(masked: Tensor, outputs: Tensor) -> Tensor:
    """Mean loss of each example's masked patches, float32 [B].

    `masked` is the mask [B, N], 1 for masked patches; `outputs` are those of a
    `PretextModel`.
    """
    return _masked_mean(outputs[..., 0], masked)


def _masked_mean(values: Tensor, masked: Tensor) -> Tensor:
    # Copies that only fill a batch up have no masked patches, and the weight 0.
    return ops.divide_no_nan(ops.sum(values * masked, -1), ops.sum(masked, -1))


class PatchAccuracy(keras.metrics.Mean):
    """Share of right predictions among the colors of masked patches."""

    def __init__(self, name: str = "patch_accuracy", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)

    def update_state(
        self, masked: Tensor, outputs: Tensor, weights: Tensor | None = None
    ) -> None:
        """Add a batch: mask [B, N], outputs [B, N, 2], weights [B] of the examples."""
        super().update_state(_masked_mean(outputs[..., 1], masked), weights)
