"""Scaled dot-product attention: its implementations, and which one runs where.

| backend | device | scores of a head | implementation |
|---|---|---|---|
| TensorFlow | CPU | more than 256 x 256 | `in_blocks`: memory grows with N alone |
| TensorFlow | GPU, TPU | more than 2,048 x 2,048 | `in_blocks` |
| JAX | GPU | any | Keras's, which takes cuDNN's flash attention where it can |
| JAX | GPU, training | odd Q or N | `cudnn`: with a class token N is odd |
| JAX | TPU | more than 1,024 x 1,024 | `splash`, JAX's flash attention |
| any | any | otherwise | `whole` |

The first row is measured (`python -m benchmarks.attention`, docs/log.md), the others
are not: on an accelerator the weights of one image must be many before its blocks fill
it, and splash attention pads N to a multiple of 128.

`keras.config.disable_flash_attention()` asks for `whole` everywhere. Attention dropout,
relative positions and pictures of attention need the weights themselves,
`attention_weights`, whatever N is.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import keras
from keras import ops

from keras_vit.devices import jax_platform, on_tensorflow_cpu

# Scores Q * N of a head above which they are never held all at once.
BLOCKS_ABOVE = {"cpu": 256 * 256, "accelerator": 2048 * 2048}
SPLASH_ABOVE = 1024 * 1024
# Scores of one block: with those of the softmax and the gradients they stay within a
# core's cache on a CPU; an accelerator needs larger products to be busy.
BLOCK = {"cpu": 2**20, "accelerator": 2**26}
PARALLEL_BLOCKS = 2


def dot_product_attention(
    query: Any, key: Any, value: Any, training: bool = False
) -> Any:
    """softmax(query key^T / sqrt(K)) value for each head (equations 6 and 7).

    Args:
        query: Tensor [B, Q, A, K].
        key: Tensor [B, N, A, K].
        value: Tensor [B, N, A, K].
        training: Whether gradients will be asked for.

    Returns:
        Tensor [B, Q, A, K]. The softmax is computed in float32 in any precision.

    Raises:
        ValueError: `keras.config.enable_flash_attention()` was called, and Keras does
            not run on JAX with a GPU or TPU.
    """
    attend = implementation(query.shape[1], key.shape[1], training)
    return attend(query, key, value)


def implementation(
    queries: int | None, keys: int | None, training: bool = False
) -> Callable:
    """The implementation for so many queries and keys, by the table above.

    Raises:
        ValueError: See `dot_product_attention`.
    """
    platform, enabled = jax_platform(), keras.config.is_flash_attention_enabled()
    if enabled and platform not in ("gpu", "tpu"):
        raise ValueError(
            "Flash attention needs Keras on JAX with a GPU or TPU; without "
            "`keras.config.enable_flash_attention()` the fastest implementation is "
            f"chosen. Received: backend={keras.backend.backend()!r}, device="
            f"{platform or 'of TensorFlow'}"
        )
    if enabled is False or queries is None or keys is None:
        return whole
    if platform == "gpu" and training and (queries % 2 or keys % 2):
        return cudnn
    if platform == "gpu":
        return functools.partial(ops.dot_product_attention, flash_attention=enabled)
    if platform == "tpu" and (enabled or queries * keys > SPLASH_ABOVE):
        return splash
    if platform is None and queries * keys > BLOCKS_ABOVE[_tensorflow_device()]:
        return in_blocks
    return whole


def _tensorflow_device() -> str:
    return "cpu" if on_tensorflow_cpu() else "accelerator"


def attention_weights(query: Any, key: Any, bias: Any = None) -> Any:
    """Attention weights [B, A, Q, N] in float32, a softmax over the last axis.

    Args:
        query: Tensor [B, Q, A, K].
        key: Tensor [B, N, A, K].
        bias: A function of the scaled queries [B, A, Q, K] that returns what is added
            to the scores [B, A, Q, N]; `None` for nothing.
    """
    query, key = _heads_first(_scaled(query)), _heads_first(key)
    scores = ops.matmul(query, ops.swapaxes(key, -1, -2))
    if bias is not None:
        scores = scores + bias(query)
    return ops.softmax(ops.cast(scores, "float32"), axis=-1)


def apply_weights(weights: Any, value: Any) -> Any:
    """Weights [B, A, Q, N] and values [B, N, A, K] -> [B, Q, A, K]."""
    return _heads_first(ops.matmul(weights, _heads_first(value)))


def whole(query: Any, key: Any, value: Any) -> Any:
    """Attention with all weights [B, A, Q, N] in memory at once."""
    heads = _attend(*map(_heads_first, (_scaled(query), key, value)))
    return _heads_first(heads)


def _attend(query, key, value):
    """Of scaled queries [..., Q, K], keys and values [..., N, K]."""
    scores = ops.matmul(query, ops.swapaxes(key, -1, -2))
    return ops.matmul(_softmax(scores), value)


def _softmax(scores):
    dtype = keras.backend.standardize_dtype(scores.dtype)
    if dtype == "bfloat16" and on_tensorflow_cpu():
        # Its kernel computes in float32 and rounds once: the same numbers, without two
        # more tensors.
        return ops.softmax(scores, axis=-1)
    return ops.cast(ops.softmax(ops.cast(scores, "float32"), axis=-1), dtype)


def _scaled(query):
    # Before the product with the keys: in half precision that could overflow.
    return query * (query.shape[-1] ** -0.5)


def _heads_first(x):
    """[B, N, A, K] <-> [B, A, N, K]."""
    return ops.transpose(x, (0, 2, 1, 3))


def in_blocks(query: Any, key: Any, value: Any) -> Any:
    """Attention, and its gradient, one block of queries after the other (TensorFlow).

    A block is as many heads as fit, or a part of the queries of one head. The gradient
    computes the weights of each block again, so that nothing quadratic in N is kept.
    On CPUs that is faster than `whole`, which leaves the caches.
    """
    import tensorflow as tf

    (_, queries, heads, head_width), keys = query.shape, key.shape[1]
    limit = BLOCK[_tensorflow_device()]
    group = max(
        size
        for size in range(1, heads + 1)
        if heads % size == 0 and (size == 1 or size * queries * keys <= limit)
    )
    rows = math.ceil(queries / math.ceil(group * queries * keys / limit))
    blocks = [slice(start, start + rows) for start in range(0, queries, rows)]

    def grouped(x):  # [B, N, A, K] -> [B * A / group, group, N, K]
        return tf.reshape(_heads_first(x), (-1, group, x.shape[1], head_width))

    def attend(inputs):
        query, key, value = inputs
        outputs: list = []
        for block in blocks:
            with tf.control_dependencies(outputs[-1:]):  # one after the other
                outputs.append(_attend(query[:, block], key, value))
        return tf.concat(outputs, axis=1)

    def differentiate(inputs):
        query, key, value, upstream = inputs
        of_queries: list = []
        of_keys, of_values = tf.zeros_like(key), tf.zeros_like(value)
        for block in blocks:
            with (
                tf.control_dependencies([*of_queries[-1:], of_keys, of_values]),
                tf.GradientTape() as tape,
            ):
                sources = (query[:, block], key, value)
                tape.watch(sources)
                outputs = _attend(*sources)
            gradients = tape.gradient(outputs, sources, upstream[:, block])
            of_queries.append(gradients[0])
            of_keys, of_values = of_keys + gradients[1], of_values + gradients[2]
        return tf.concat(of_queries, axis=1), of_keys, of_values

    def each_group(function, inputs, outputs):
        return tf.map_fn(
            function,
            inputs,
            fn_output_signature=outputs,
            parallel_iterations=PARALLEL_BLOCKS,
        )

    @tf.custom_gradient
    def attention(*inputs):
        def gradient(upstream):
            return each_group(differentiate, (*inputs, upstream), (upstream.dtype,) * 3)

        return each_group(attend, inputs, inputs[0].dtype), gradient

    outputs = attention(*map(grouped, (_scaled(query), key, value)))
    return _heads_first(tf.reshape(outputs, (-1, heads, queries, head_width)))


def cudnn(
    query: Any,
    key: Any,
    value: Any,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Any:
    """Attention by cuDNN's flash attention, with even numbers of tokens (JAX on GPUs).

    JAX 0.10 takes the absent bias for one, with which cuDNN has no gradient for odd
    numbers; Keras then falls back to all weights. So a masked token is appended.

    Args:
        query: Tensor [B, Q, A, K].
        key: Tensor [B, N, A, K].
        value: Tensor [B, N, A, K].
        implementation: JAX's name; `"xla"` computes the same on other devices.
    """
    import jax

    if implementation == "cudnn" and not _takes_cudnn(query):
        return whole(query, key, value)
    (batch, queries), keys = query.shape[:2], key.shape[1]

    def even(x):
        return ops.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0)))

    outputs = jax.nn.dot_product_attention(
        even(query),
        even(key),
        even(value),
        query_seq_lengths=ops.full((batch,), queries, "int32"),
        key_value_seq_lengths=ops.full((batch,), keys, "int32"),
        implementation=implementation,
    )
    return outputs[:, :queries]


def _takes_cudnn(query):
    """Whether cuDNN's flash attention exists for such queries on this GPU."""
    import jax

    device = jax.devices()[0]
    half = keras.backend.standardize_dtype(query.dtype) in ("bfloat16", "float16")
    return (
        half
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= 128
        and "NVIDIA" in device.device_kind
        and float(device.compute_capability) >= 8.0
    )


def splash(query: Any, key: Any, value: Any, interpret: bool = False) -> Any:
    """Attention by JAX's flash attention for TPUs.

    Keras's own call of it is causal where no mask is given (Keras 3.15).

    Args:
        query: Tensor [B, Q, A, K].
        key: Tensor [B, N, A, K].
        value: Tensor [B, N, A, K].
        interpret: Whether to run without a TPU, slowly.
    """
    import jax
    from jax.experimental.pallas.ops.tpu import splash_attention

    queries, keys, heads = query.shape[1], key.shape[1], query.shape[2]

    def padded(x, length):  # the kernel's blocks have 128 rows
        return ops.pad(_heads_first(x), ((0, 0), (0, 0), (0, -length % 128), (0, 0)))

    def segments(length):  # what is padded attends to itself alone
        return (ops.arange(length + -length % 128) >= length).astype("int32")

    mask = splash_attention.FullMask((queries + -queries % 128, keys + -keys % 128))
    kernel = splash_attention.make_splash_mha_single_device(
        splash_attention.MultiHeadMask([mask] * heads), interpret=interpret
    )
    attend = functools.partial(
        kernel,
        segment_ids=splash_attention.SegmentIds(segments(queries), segments(keys)),
    )
    inputs = (padded(_scaled(query), queries), padded(key, keys), padded(value, keys))
    outputs = jax.vmap(attend)(*inputs)[:, :, :queries]
    return _heads_first(ops.cast(outputs, query.dtype))
