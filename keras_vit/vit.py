"""The Vision Transformer as a functional Keras model, and its named sizes.

The paper is "An Image is Worth 16x16 Words" (Dosovitskiy et al., arXiv:2010.11929);
details that it leaves out are those of its code, google-research/vision_transformer.
The letters in comments are those of `keras_vit.layers`.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import keras
from keras import ops

from keras_vit import features, layers
from keras_vit.applications import PublishedModel, application
from keras_vit.base import classifier, second_classifier
from keras_vit.layers.encoder_blocks import BlockContext
from keras_vit.layers.normalization import NORMS
from keras_vit.option_rows import built_from, documented, part_of
from keras_vit.options import BlockOptions, RotaryOptions, ViTOptions
from keras_vit.resnet import connect_stem
from keras_vit.specs import parse_variant, patch_side
from keras_vit.typing import Config, Images, Tensor, Tokens

TokensLayer: TypeAlias = Callable[[Tokens], Tokens]


@keras.saving.register_keras_serializable(package="keras_vit")
@documented
class VisionTransformer(PublishedModel):
    """The Vision Transformer of the paper, a functional `keras.Model`.

    An image is cut into patches by a convolution of stride P, a class token is put in
    front, learned position embeddings are added, pre-norm encoder blocks follow, then
    a final LayerNorm, a head and a linear classifier (section 3.1). The defaults are
    the paper's model with logits for 1,000 classes. `from_variant("B/16")` builds a
    published size, `from_preset` one with weights.

    The input is a batch [B, H, W, C] of pixels in [-1, 1] (see `preprocess_input`), or
    of pixels from 0 to 255 where `preprocessing` is given. The output is float32 logits
    [B, classes] (or their activation); without classes the pooled features [B, D]; with
    `pooling=None` all tokens [B, N, D] after the final LayerNorm. `features_model` and
    `attention_weights_model` give intermediate features and attention weights.

    Args:
    {options}

    Raises:
        ValueError: Sizes that do not fit each other, or an unknown choice.
    """

    architecture = "vit"
    options_class = ViTOptions
    patch_size: int
    width: int
    depth: int
    mlp_dim: int
    heads: int

    @built_from(ViTOptions)
    def __init__(self, options: ViTOptions) -> None:
        self.keep_options(options)
        images = self.images_input()
        super().__init__(images, self._connect(images), name=options.name)

    @property
    def grid(self) -> tuple[int, int]:
        """(h, w), rows and columns of patches."""
        side = patch_side(self.patch_size, self.resnet_blocks)
        height, width = self.image_size
        return height // side, width // side

    @property
    def prefix_tokens(self) -> int:
        """Number of tokens before the patches: class token and registers."""
        return int(self.class_token + self.register_tokens)

    def block_context(self, index: int) -> BlockContext:
        """What a block is given beside the tokens, in the model's own graph."""
        context: BlockContext = {**self._block_context}  # Keras wraps attributes
        if self.rotary is not None:
            context["rotary"] = self._rotary_tables[index]
        return context

    def _connect(self, images: Images) -> Tensor:
        """Images [B, H, W, C] -> the model's output."""
        x = self._prepared(images)
        x = self._embed(x)
        x = self._encode(x)
        x = self._pool(x)
        if self.fc_norm:
            x = self._norm("fc_norm", dtype="float32")(x)
        if self.projection is not None:
            x = keras.layers.Dense(
                self.projection, use_bias=False, dtype=self._policy, name="projection"
            )(x)
        if self.representation_size is not None:
            x = keras.layers.Dense(
                self.representation_size,
                activation="tanh",
                kernel_initializer="lecun_normal",
                dtype=self._policy,
                name="pre_logits",
            )(x)
        if self.distilled:
            return second_classifier(x[:, 0], x[:, 1], self)
        return classifier(x, self)

    def _embed(self, x: Images) -> Tokens:
        """Images -> tokens [B, N, D]: class token, registers, patches (equation 1)."""
        if self.resnet_blocks is not None:
            blocks, width_factor = self.resnet_blocks, self.resnet_width_factor
            x = connect_stem(x, blocks, width_factor, self._policy)
        x = keras.layers.Conv2D(
            self.width,
            self.patch_size,
            strides=self.patch_size,
            use_bias=self.embedding_bias,
            kernel_initializer="lecun_normal",
            data_format="channels_last",
            dtype=self._policy,
            name="embedding",
        )(x)  # [B, h, w, D]
        x = keras.layers.Reshape((-1, self.width), dtype=self._policy, name="patches")(
            x
        )
        if self.patch_norm:
            x = self._norm("patch_norm")(x)
        if self.register_tokens:
            x = layers.RegisterTokens(
                self.register_tokens, dtype=self._policy, name="register_tokens"
            )(x)
        if self.class_token:
            x = layers.ClassToken(dtype=self._policy, name="class_token")(x)
        return x

    def _encode(self, x: Tokens) -> Tokens:
        """Tokens -> tokens: positions, blocks, final norm (equations 1 to 4)."""
        at_stem, before_block = self._position_layers()
        x = at_stem(x)
        if self.embedding_norm:
            x = self._norm("embedding_norm")(x)
        x = keras.layers.Dropout(
            self.dropout, dtype=self._policy, name="embedding_dropout"
        )(x)
        if self.patch_dropout:
            x = layers.PatchDropout(
                self.patch_dropout,
                self.prefix_tokens,
                dtype=self._policy,
                name="patch_dropout",
            )(x)
        context: BlockContext = {}
        if (self.position_embedding, self.position_placement) == ("relative", "shared"):
            context["relative_embedding"] = layers.RelativePosition(
                self.heads,
                self.position_stddev,
                dtype=self._policy,
                name="relative_position",
            )(x)
        if self.relative_bias == "shared":
            context["relative_bias"] = layers.RelativeBias(
                self.grid, self.heads, dtype=self._policy, name="relative_bias"
            )(x)
        self._block_context = context
        self._rotary_tables = [] if self.rotary is None else self._rotate(x)
        for index in range(self.depth):
            inputs, context = before_block[index](x), self.block_context(index)
            block = self._block(index)
            x = block(inputs, context)
        norm: TokensLayer = _identity
        if self.final_norm and not self.fc_norm:
            norm = self._norm("encoder_norm")
        x = norm(x)  # all tokens, for whoever asks these layers for their `output`
        if self._tokens_read is not None:
            asked_for = inputs[:, : self._tokens_read]
            return norm(block(inputs, {**context, "asked_for": asked_for}))
        return x

    def _rotate(self, x: Tokens) -> list[Tensor]:
        """Table of rotary positions of each block, in float32 under any policy."""
        tables = layers.RotaryPositions(
            *(self.grid, self.heads, self.depth),
            **part_of(RotaryOptions, self),
            dtype=keras.backend.result_type(self._policy.compute_dtype, "float32"),
            name="rotary",
        )(x)  # [L, 2, N, A, K]
        if self.rotary == "mixed":
            return [tables[index] for index in range(self.depth)]
        return [tables[0]] * self.depth

    @property
    def _tokens_read(self) -> int | None:
        """How many tokens the last block computes (7 % of B/16); `None` for all."""
        full = self.attention == "full" and self.position_embedding != "relative"
        return 1 + self.distilled if self.pooling == "token" and full else None

    def _norm(self, name: str, dtype: str | None = None) -> keras.layers.Layer:
        return NORMS[self.norm](
            self.norm_epsilon, name=name, dtype=dtype or self._policy
        )

    def _position_layers(self) -> tuple[TokensLayer, list[TokensLayer]]:
        """The position layer of the stem, and one for each block (appendix D.4)."""
        name, none = "position_embedding", _identity
        if self.position_placement == "stem":
            return self._position_layer(name), [none] * self.depth
        if self.position_placement == "shared":
            return none, [self._position_layer(name)] * self.depth
        return none, [self._position_layer(f"{name}_{i}") for i in range(self.depth)]

    def _position_layer(self, name: str) -> TokensLayer:
        skip_tokens = 0 if self.prefix_positions else self.prefix_tokens
        common = {"dtype": self._policy, "name": name}
        match self.position_embedding:
            case "learned_1d":
                return layers.PositionEmbedding(
                    self.position_stddev, skip_tokens, **common
                )
            case "learned_2d":
                return layers.PositionEmbedding2D(
                    self.grid, self.position_stddev, skip_tokens, **common
                )
            case "sincos2d" | "sincos2d_mae":
                return layers.SinCosPositionEmbedding(
                    self.grid, self.position_embedding == "sincos2d", **common
                )
            case "none" | "relative":  # the attention adds relative ones
                return _identity
        raise NotImplementedError(self.position_embedding)

    def _block(self, index: int) -> layers.EncoderBlock | layers.AxialEncoderBlock:
        relative = self.position_embedding == "relative"
        own_bias = self.relative_bias == "every_layer"
        own_relative = relative and self.position_placement != "shared"
        arguments = {
            **part_of(BlockOptions, self),
            "mlp_dim": self.mlp_dim,
            "heads": self.heads,
            "stochastic_depth": self.stochastic_depth * index / max(self.depth - 1, 1),
            "relative_stddev": self.position_stddev if own_relative else None,
            "relative_bias_grid": self.grid if own_bias else None,
        }
        common = {"dtype": self._policy, "name": f"encoder_block_{index}"}
        if self.attention == "axial":
            return layers.AxialEncoderBlock(self.grid, arguments, **common)
        return layers.EncoderBlock(**arguments, **common)

    def _pool(self, x: Tokens) -> Tensor:
        """Tokens [B, N, D] -> features [B, D]; registers take no part.

        Those of the class token and of DeiT's distillation token are [B, 2, D].
        """
        if self.pooling == "token":
            return x[:, :2] if self.distilled else x[:, 0]
        if self.pooling == "avg":
            patches = x[:, self.prefix_tokens :] if self.prefix_tokens else x
            return keras.layers.GlobalAveragePooling1D(
                data_format="channels_last", dtype="float32", name="pooling"
            )(patches)
        if self.pooling is None:
            return x
        if self.register_tokens:
            patches = x[:, self.prefix_tokens :]
            x = ops.concatenate([x[:, : self.class_token], patches], axis=1)
        return self._attention_pooling()(x)

    def _attention_pooling(self) -> keras.layers.Layer:
        heads = self.pool_heads or self.heads
        common = {"dtype": self._policy, "name": "attention_pooling"}
        if self.pooling == "query":
            return layers.QueryPooling(heads, self.key_bias, self.value_bias, **common)
        width = self.pool_mlp_dim or self.mlp_dim
        return layers.AttentionPooling(
            width, heads, self.gelu, self.norm_epsilon, **common
        )

    features_model = features.features_model
    attention_weights_model = features.attention_weights_model
    attention_rollout_model = features.attention_rollout_model

    @classmethod
    def variant_arguments(cls, variant: str) -> Config:
        """Arguments of a size such as `"B/16"`; see `keras_vit.SPECS`."""
        spec, patch_size = parse_variant(variant)
        return {**dataclasses.asdict(spec), "patch_size": patch_size}


def _identity(x: Tokens) -> Tokens:
    return x


def _application(variant: str) -> Callable[..., VisionTransformer]:
    return application(
        VisionTransformer,
        variant,
        name="ViT".join(variant.replace("/", "").rpartition("+")[::2]),
        poolings=("token", "avg", "map", None),
    )


ViTTi16 = _application("Ti/16")
ViTS16 = _application("S/16")
ViTS32 = _application("S/32")
ViTB8 = _application("B/8")
ViTB16 = _application("B/16")
ViTB32 = _application("B/32")
ViTL16 = _application("L/16")
ViTL32 = _application("L/32")
ViTH14 = _application("H/14")

# The hybrids: a ResNet stem of so many layers, and the total down-sampling.
RViTTi16 = _application("R+Ti/16")
R26ViTS32 = _application("R26+S/32")
R26ViTB32 = _application("R26+B/32")
R50ViTB16 = _application("R50+B/16")
R50ViTB32 = _application("R50+B/32")
R50ViTL16 = _application("R50+L/16")
R50ViTL32 = _application("R50+L/32")
