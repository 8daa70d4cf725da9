"""big_vision's Vision Transformer in Flax and optax, as a peer of benchmarks.gpu.

Written from google-research/big_vision's description: pre-norm blocks whose products
run in one dtype, LayerNorms with float32 weights, a class token, Adam with decoupled
weight decay on kernels after clipping to a global norm.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from keras_vit.specs import ViTSpec

State = tuple[Any, Any]  # weights, and the optimizer's slots


def attention_of(implementation: Any, pad: bool) -> Callable[..., Any]:
    """Flax's `attention_fn`, computed by `jax.nn.dot_product_attention`.

    Args:
        implementation: `"xla"` or `"cudnn"`.
        pad: Whether a masked token follows an odd number: with cuDNN JAX 0.10 has no
            gradient for those.
    """

    def attend(
        query: jax.Array, key: jax.Array, value: jax.Array, **options: Any
    ) -> jax.Array:
        batch, tokens = query.shape[:2]
        lengths: dict[str, Any] = {}
        if pad and tokens % 2:
            sides = ((0, 0), (0, 1), (0, 0), (0, 0))
            query, key, value = (jnp.pad(x, sides) for x in (query, key, value))
            full = jnp.full(batch, tokens, "int32")
            lengths = {"query_seq_lengths": full, "key_value_seq_lengths": full}
        outputs: jax.Array = jax.nn.dot_product_attention(
            query, key, value, implementation=implementation, **lengths
        )
        return outputs[:, :tokens]

    return attend


class Block(nn.Module):
    """Encoder block."""

    spec: ViTSpec
    dtype: Any
    attention: Callable[..., Any]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, N, D]."""
        dense = functools.partial(
            nn.Dense,
            dtype=self.dtype,
            kernel_init=nn.initializers.xavier_uniform(),
            bias_init=nn.initializers.normal(1e-6),
        )
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(
            self.spec.heads,
            dtype=self.dtype,
            kernel_init=nn.initializers.xavier_uniform(),
            attention_fn=self.attention,
        )(y, y)
        y = nn.LayerNorm()(x)
        y = nn.gelu(dense(self.spec.mlp_dim)(y))
        outputs: jax.Array = x + dense(self.spec.width)(y)
        return outputs


class VisionTransformer(nn.Module):
    """Images [B, H, W, 3] to float32 logits [B, classes]."""

    spec: ViTSpec
    patch_size: int
    classes: int
    dtype: Any
    attention: Callable[..., Any]

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits of images."""
        width, patch = self.spec.width, (self.patch_size, self.patch_size)
        x = nn.Conv(width, patch, patch, padding="VALID", dtype=self.dtype)(images)
        x = x.reshape(x.shape[0], -1, width)
        init = nn.initializers.normal(width**-0.5)
        positions = self.param("positions", init, (1, x.shape[1], width))
        x = x + positions.astype(x.dtype)
        token = self.param("token", nn.initializers.zeros, (1, 1, width))
        token = jnp.tile(token.astype(x.dtype), (x.shape[0], 1, 1))
        x = jnp.concatenate([token, x], axis=1)
        for _ in range(self.spec.depth):
            x = Block(self.spec, self.dtype, self.attention)(x)
        x = nn.LayerNorm()(x)[:, 0]
        head = nn.Dense(self.classes, kernel_init=nn.initializers.zeros)
        logits: jax.Array = head(x)
        return logits


def training_step(
    model: nn.Module, optimizer: optax.GradientTransformation
) -> Callable[..., Any]:
    """A compiled function of (weights, slots), images and labels: the new state."""

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: State, images: jax.Array, labels: jax.Array) -> State:
        weights, slots = state

        def objective(weights: Any) -> jax.Array:
            logits: Any = model.apply(weights, images)
            loss: jax.Array = optax.softmax_cross_entropy(
                logits.astype("float32"), labels
            )
            return loss.mean()

        updates, slots = optimizer.update(jax.grad(objective)(weights), slots, weights)
        return optax.apply_updates(weights, updates), slots

    return step


def adamw(learning_rate: float, weight_decay: float) -> optax.GradientTransformation:
    """AdamW on gradients that are clipped to a global norm of 1; kernels decay."""

    def kernels(weights: Any) -> Any:
        return jax.tree.map_with_path(
            lambda path, _: path[-1] == jax.tree_util.DictKey("kernel"), weights
        )

    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(learning_rate, weight_decay=weight_decay, mask=kernels),
    )
