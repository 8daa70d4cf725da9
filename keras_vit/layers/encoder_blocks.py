"""Encoder blocks, and what they are made of beside attention and MLP."""

from typing import Any, cast

import keras
from keras import ops

from keras_vit import options
from keras_vit.checks import check_rate
from keras_vit.configured_layer import ConfiguredLayer, SameShapeLayer
from keras_vit.layers.mlp import MLP
from keras_vit.layers.normalization import NORMS, dense
from keras_vit.layers.options_layer import OptionsLayer
from keras_vit.layers.self_attention import (
    AttentionPositions,
    MultiHeadSelfAttention,
)
from keras_vit.option_rows import part_of
from keras_vit.typing import (
    Config,
    InputShape,
    SequenceShape,
    Shape,
    Tensor,
    Tokens,
    TokensShape,
    Weights,
)


@keras.saving.register_keras_serializable(package="keras_vit")
class StochasticDepth(SameShapeLayer):
    """Drop a residual branch for whole examples while training (arXiv:1603.09382).

    Args:
        rate: Probability in [0, 1) that an example skips the branch. The branches
            that stay are scaled by 1 / (1 - rate).
        seed: Integer or `keras.random.SeedGenerator`.

    Call arguments:
        branch: Tensor [B, ...].
        training: Nothing is dropped unless true.

    Returns:
        Tensor of the same shape.
    """

    def __init__(
        self,
        rate: float,
        seed: int | keras.random.SeedGenerator | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_rate("rate", rate)
        self.rate = rate
        self.seed = seed
        if rate > 0.0:
            self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, branch: Tensor, training: bool = False) -> Tensor:
        if not training or self.rate == 0.0:
            return branch
        shape = (ops.shape(branch)[0],) + (1,) * (len(branch.shape) - 1)
        keep = 1.0 - self.rate
        uniform = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)
        kept = ops.cast(uniform < keep, branch.dtype)
        return branch * kept / keep


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerScale(SameShapeLayer):
    """Multiply a residual branch by a learned vector (arXiv:2103.17239, section 2).

    Args:
        initial_value: Of each element: 0.1 up to 18 blocks, 1e-5 up to 24 and 1e-6
            beyond in the paper.

    Call arguments:
        branch: Tensor [B, ..., D].

    Returns:
        Tensor of the same shape.
    """

    def __init__(self, initial_value: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial_value = initial_value

    def build(self, input_shape: InputShape) -> None:
        self.gamma = self.add_weight(
            name="gamma",
            shape=(input_shape[-1],),
            initializer=keras.initializers.Constant(self.initial_value),
        )

    def call(self, branch: Tensor) -> Tensor:
        return branch * ops.cast(self.gamma, branch.dtype)


class BlockContext(AttentionPositions, total=False):
    """What a model gives to each of its blocks beside the tokens: tensors alone.

    Attributes:
        asked_for: The first Q of the tokens, [B, Q, D], where nothing reads the others
            after the block.
    """

    asked_for: Tokens


def _positions(context: BlockContext | None) -> AttentionPositions:
    """A context's tensors for the attention."""
    positions = {**(context or {})}
    positions.pop("asked_for", None)
    return cast(AttentionPositions, positions)


class _AnyBlock(ConfiguredLayer):
    """Base of the encoder blocks, which are called alike."""

    def compute_output_shape(self, tokens_shape: Shape) -> Shape:
        return tokens_shape

    def compute_output_spec(
        self,
        tokens: Tokens,
        context: BlockContext | None = None,
        training: bool = False,
    ) -> keras.KerasTensor:
        asked_for = (context or {}).get("asked_for", tokens)
        return keras.KerasTensor(asked_for.shape, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class EncoderBlock(OptionsLayer, _AnyBlock):
    """One encoder block (equations 2 and 3), pre-norm by default.

    With `post_norm` the norms are the last step of the residual branches. With
    `parallel` there is one branch: x + attention(norm(x)) + MLP(norm(x)). Of several
    `branches` the block itself has the first, `branch_1` and so on the others.

    Args:
        mlp_dim: Width M of the MLP's hidden layer.
        heads: Number of attention heads A.
        relative_stddev: Standard deviation of the initial relative embeddings of its
            own, or `None` for none.
        relative_bias_grid: (h, w) of the patches, for relative positions of its own as
            BEiT's, or `None`.
        **kwargs: Those of `keras_vit.options.BlockOptions`, and of every layer.

    Call arguments:
        tokens: Tensor [B, N, D]; or [B, ..., N, D], where N tokens attend to each
            other.
        context: See `BlockContext`; it may be absent.
        training: Whether dropout and stochastic depth are active.

    Returns:
        Tensor of the shape of the tokens, or of those that are asked for.
    """

    options_class = options.BlockOptions

    def __init__(
        self,
        mlp_dim: int,
        heads: int,
        relative_stddev: float | None = None,
        relative_bias_grid: tuple[int, int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mlp_dim = mlp_dim
        self.heads = heads
        self.relative_stddev = relative_stddev
        self.relative_bias_grid = relative_bias_grid
        self.autocast = False  # tables of rotary positions are not rounded
        dtype = self.dtype_policy
        norm = NORMS[self.norm]
        self.norm1 = norm(self.norm_epsilon, name="norm1", dtype=dtype)
        self.attention = MultiHeadSelfAttention(
            heads,
            relative_stddev,
            relative_bias_grid,
            **part_of(options.AttentionOptions, self),
            name="attention",
            dtype=dtype,
        )
        self.norm2 = None
        if not self.parallel:
            self.norm2 = norm(self.norm_epsilon, name="norm2", dtype=dtype)
        self.mlp = MLP(
            mlp_dim,
            **part_of(options.MLPOptions, self),
            name="mlp",
            dtype=dtype,
        )
        self.dropout_layer = keras.layers.Dropout(self.dropout, dtype=dtype)
        self.stochastic_depth_layer = StochasticDepth(
            self.stochastic_depth, dtype=dtype
        )
        self.others = [
            EncoderBlock(
                *(mlp_dim, heads, relative_stddev, relative_bias_grid),
                **{**part_of(options.BlockOptions, self), "branches": 1},
                name=f"branch_{number}",
                dtype=dtype,
            )
            for number in range(1, self.branches)
        ]
        self.layer_scale1 = self._layer_scale("layer_scale1")
        self.layer_scale2 = None
        if not self.parallel:
            self.layer_scale2 = self._layer_scale("layer_scale2")

    def _layer_scale(self, name: str) -> LayerScale | None:
        if self.layer_scale is None:
            return None
        return LayerScale(self.layer_scale, dtype=self.dtype_policy, name=name)

    def build(self, tokens_shape: SequenceShape) -> None:
        scales = (self.layer_scale1, self.layer_scale2)
        layers = (self.norm1, self.attention, self.norm2, self.mlp, *scales)
        for layer in (*layers, *self.others):
            if layer is not None:
                layer.build(tokens_shape)

    def call(
        self,
        tokens: Tokens,
        context: BlockContext | None = None,
        training: bool = False,
    ) -> Tokens:
        tokens, positions = ops.cast(tokens, self.compute_dtype), _positions(context)
        asked_for = (context or {}).get("asked_for")
        count = None if asked_for is None else asked_for.shape[1]
        x = tokens if count is None else tokens[:, :count]
        for block in (self, *self.others):
            x = x + block.attention_branch(tokens, positions, count, training)
        if self.parallel:
            return x
        tokens = x
        for block in (self, *self.others):
            x = x + block.mlp_branch(tokens, training)
        return x

    def attention_branch(
        self,
        tokens: Tokens,
        positions: AttentionPositions,
        count: int | None,
        training: bool,
    ) -> Tokens:
        """What is added to the first tokens, or all; with a parallel MLP."""
        branch = self._attend(tokens, positions, count, training)
        branch = self.dropout_layer(branch, training=training)
        if self.post_norm:
            branch = self.norm1(branch, training=training)
        if self.parallel:
            tokens = tokens if count is None else tokens[:, :count]
            branch += self.mlp(tokens, project=self.norm1.dense, training=training)
        return self._scaled(branch, self.layer_scale1, training)

    def mlp_branch(self, tokens: Tokens, training: bool) -> Tokens:
        """What is added to the tokens after the attention, unless it is parallel."""
        norm2 = cast(keras.layers.Layer, self.norm2)
        if self.post_norm:
            branch = norm2(self.mlp(tokens, training=training), training=training)
        else:
            branch = self.mlp(tokens, project=norm2.dense, training=training)
        return self._scaled(branch, self.layer_scale2, training)

    def _attend(
        self,
        tokens: Tokens,
        positions: AttentionPositions,
        count: int | None,
        training: bool,
    ) -> Tokens:
        """The attention's output for the first tokens, or all."""
        if count is None:
            return self.attention(
                tokens,
                positions=positions,
                project=dense if self.post_norm else self.norm1.dense,
                training=training,
            )
        if "relative_embedding" not in positions and self.relative_stddev is None:
            inputs = self.attended(tokens, training)
            return self.attention(
                inputs,
                queries=inputs[:, :count],
                positions=positions,
                training=training,
            )
        # Relative scores are computed of all tokens with all.
        return self._attend(tokens, positions, None, training)[:, :count]

    def attended(self, tokens: Tokens, training: bool = False) -> Tokens:
        """What the attention reads."""
        return tokens if self.post_norm else self.norm1(tokens, training=training)

    def attention_weights(
        self, tokens: Tokens, context: BlockContext | None = None
    ) -> Weights:
        """Attention weights [B, A, N, N] in float32, a softmax over the last axis.

        The heads are those of all branches, one branch after the other.
        """
        weights = [
            block.attention.attention_weights(
                block.attended(tokens), positions=_positions(context)
            )
            for block in (self, *self.others)
        ]
        return weights[0] if len(weights) == 1 else ops.concatenate(weights, axis=1)

    def _scaled(
        self, branch: Tokens, layer_scale: LayerScale | None, training: bool
    ) -> Tokens:
        """A residual branch, scaled, or dropped in training."""
        if layer_scale is not None:
            branch = layer_scale(branch)
        return self.stochastic_depth_layer(branch, training=training)


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialEncoderBlock(_AnyBlock):
    """Axial attention: within the rows, then within the columns (appendix D.6).

    Two `EncoderBlock`s with weights of their own, `rows` and `columns`: each patch
    attends to its row, passes an MLP, attends to its column, passes another.

    Args:
        grid: (h, w), rows and columns of patches.
        block: Arguments of both blocks.

    Call arguments:
        tokens: Tensor [B, h * w, D], row by row.
        context: See `BlockContext`; without relative positions.
        training: Whether dropout and stochastic depth are active.

    Returns:
        Tensor [B, h * w, D], or of the tokens that are asked for.
    """

    def __init__(self, grid: tuple[int, int], block: Config, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        rows, columns = grid
        self.grid = rows, columns
        self.block = block
        self.rows = EncoderBlock(**block, dtype=self.dtype_policy, name="rows")
        self.columns = EncoderBlock(**block, dtype=self.dtype_policy, name="columns")

    def build(self, tokens_shape: TokensShape) -> None:
        (rows, columns), (_, tokens, width) = self.grid, tokens_shape
        if tokens != rows * columns:
            raise ValueError(
                "Axial attention needs the patches of the whole `grid` and no other "
                f"token. Received: grid={self.grid}, {tokens} tokens"
            )
        self.rows.build((None, rows, columns, width))
        self.columns.build((None, columns, rows, width))

    def call(
        self,
        tokens: Tokens,
        context: BlockContext | None = None,
        training: bool = False,
    ) -> Tokens:
        context = context or {}
        if "relative_embedding" in context:
            raise ValueError(
                "Axial attention has no relative positions. Received: "
                f"context={context!r}"
            )
        x = ops.reshape(tokens, (-1, *self.grid, tokens.shape[-1]))  # [B, h, w, D]
        x = self.rows(x, training=training)
        x = ops.transpose(x, (0, 2, 1, 3))  # [B, w, h, D]
        x = self.columns(x, training=training)
        x = ops.reshape(ops.transpose(x, (0, 2, 1, 3)), ops.shape(tokens))
        return x[:, : context["asked_for"].shape[1]] if "asked_for" in context else x
