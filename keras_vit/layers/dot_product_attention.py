"""Scaled dot-product attention: its implementations, and which one runs where.

| backend | device | scores of a head | implementation |
|---|---|---|---|
| TensorFlow | CPU | more than 256 x 256 | `in_blocks`: memory grows with N alone |
| TensorFlow | GPU, TPU | more than 2,048 x 2,048 | `in_blocks` |
| JAX | GPU | any | `cudnn`, its flash attention, in half precision |
| JAX | TPU | more than 1,024 x 1,024 | `splash`, JAX's flash attention |
| any | any | otherwise | `whole` |

The first row is measured (`python -m benchmarks.attention`, docs/log.md), the others
are not: on an accelerator the weights of one image must be many before its blocks fill
it, and splash attention pads N to a multiple of its blocks. The device is the one that
the graph is made for, `devices.platform`.

`keras.config.disable_flash_attention()` asks for `whole` everywhere. Attention dropout,
relative positions and pictures of attention need the weights themselves,
`attention_weights`, whatever N is.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, TypeVar

import keras
from keras import ops

from keras_vit import devices
from keras_vit.typing import Heads, Tensor, Weights

Attention: TypeAlias = Callable[[Heads, Heads, Heads], Heads]  # query, key, value
Gradients: TypeAlias = tuple[Tensor, Tensor, Tensor]  # of query, key and value
Outputs = TypeVar("Outputs")

# Scores Q * N of a head above which they are never held all at once.
BLOCKS_ABOVE = {"cpu": 256 * 256, "gpu": 2048 * 2048, "tpu": 2048 * 2048}
SPLASH_ABOVE = 1024 * 1024
# Scores of one block: with those of the softmax and the gradients they stay within a
# core's cache on a CPU; an accelerator needs larger products to be busy.
BLOCK = {"cpu": 2**20, "gpu": 2**26, "tpu": 2**26}
PARALLEL_BLOCKS = 2
# Rows of splash attention's blocks: large ones read keys and values less often, but pad
# more tokens. 512 is MaxText's default (`sa_block_q`), the kernel's own is 128.
SPLASH_BLOCKS = (512, 384, 256, 128)


def dot_product_attention(
    query: Heads, key: Heads, value: Heads, training: bool = False
) -> Heads:
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
) -> Attention:
    """The implementation for so many queries and keys, by the table above."""
    backend, platform = keras.backend.backend(), devices.platform()
    enabled = keras.config.is_flash_attention_enabled()
    if enabled and (backend != "jax" or platform == "cpu"):
        raise ValueError(
            "Flash attention needs Keras on JAX with a GPU or TPU; without "
            "`keras.config.enable_flash_attention()` the fastest implementation is "
            f"chosen. Received: backend={backend!r}, device={platform!r}"
        )
    if enabled is False or queries is None or keys is None:
        return whole
    if backend == "jax" and platform == "gpu":
        return functools.partial(cudnn, training=training)
    if backend == "jax" and platform == "tpu":
        return splash if enabled or queries * keys > SPLASH_ABOVE else whole
    if backend == "tensorflow" and queries * keys > BLOCKS_ABOVE[platform]:
        return in_blocks
    return whole


def attention_weights(
    query: Heads, key: Heads, bias: Callable[[Tensor], Weights] | None = None
) -> Weights:
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


def apply_weights(weights: Weights, value: Heads) -> Heads:
    """Weights [B, A, Q, N] and values [B, N, A, K] -> [B, Q, A, K]."""
    return _heads_first(ops.matmul(weights, _heads_first(value)))


def whole(query: Heads, key: Heads, value: Heads) -> Heads:
    """Attention with all weights [B, A, Q, N] in memory at once."""
    heads = _attend(*map(_heads_first, (_scaled(query), key, value)))
    return _heads_first(heads)


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend with scaled queries [..., Q, K] to keys and values [..., N, K]."""
    scores = ops.matmul(query, ops.swapaxes(key, -1, -2))
    return ops.matmul(_softmax(scores), value)


def _softmax(scores: Weights) -> Weights:
    dtype = keras.backend.standardize_dtype(scores.dtype)
    if dtype == "bfloat16" and devices.on_tensorflow_cpu():
        # Its kernel computes in float32 and rounds once: the same numbers, without two
        # more tensors.
        return ops.softmax(scores, axis=-1)
    return ops.cast(ops.softmax(ops.cast(scores, "float32"), axis=-1), dtype)


def _scaled(query: Heads) -> Heads:
    # Before the product with the keys: in half precision that could overflow.
    return query * (query.shape[-1] ** -0.5)


def _heads_first(x: Tensor) -> Tensor:
    """[B, N, A, K] <-> [B, A, N, K]."""
    return ops.transpose(x, (0, 2, 1, 3))


def in_blocks(query: Heads, key: Heads, value: Heads) -> Heads:
    """Attention, and its gradient, one block of queries after the other (TensorFlow).

    A block is as many heads as fit, or a part of the queries of one head. The gradient
    computes the weights of each block again, so that nothing quadratic in N is kept.
    On CPUs that is faster than `whole`, which leaves the caches.
    """
    import tensorflow as tf

    (_, queries, heads, head_width), keys = query.shape, key.shape[1]
    limit = BLOCK[devices.platform()]
    group = max(
        size
        for size in range(1, heads + 1)
        if heads % size == 0 and (size == 1 or size * queries * keys <= limit)
    )
    rows = math.ceil(queries / math.ceil(group * queries * keys / limit))
    blocks = [slice(start, start + rows) for start in range(0, queries, rows)]

    def grouped(x: Heads) -> Tensor:  # [B, N, A, K] -> [B * A / group, group, N, K]
        return tf.reshape(_heads_first(x), (-1, group, x.shape[1], head_width))

    def attend(inputs: Sequence[Tensor]) -> Tensor:
        query, key, value = inputs
        outputs: list[Tensor] = []
        for block in blocks:
            with tf.control_dependencies(outputs[-1:]):  # one after the other
                outputs.append(_attend(query[:, block], key, value))
        return tf.concat(outputs, axis=1)

    def differentiate(inputs: Sequence[Tensor]) -> Gradients:
        query, key, value, upstream = inputs
        of_queries: list[Tensor] = []
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

    def each_group(
        function: Callable[[Sequence[Tensor]], Outputs],
        inputs: Sequence[Tensor],
        dtypes: tf.DType | tuple[tf.DType, ...],
    ) -> Outputs:
        outputs: Outputs = tf.map_fn(
            function,
            inputs,
            fn_output_signature=dtypes,
            parallel_iterations=PARALLEL_BLOCKS,
        )
        return outputs

    @tf.custom_gradient
    def attention(*inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], Gradients]]:
        def gradient(upstream: Tensor) -> Gradients:
            return each_group(differentiate, (*inputs, upstream), (upstream.dtype,) * 3)

        return each_group(attend, inputs, inputs[0].dtype), gradient

    outputs = attention(*map(grouped, (_scaled(query), key, value)))
    return _heads_first(tf.reshape(outputs, (-1, heads, queries, head_width)))


def cudnn(
    query: Heads,
    key: Heads,
    value: Heads,
    training: bool = False,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Heads:
    """Attention by cuDNN's flash attention, where this GPU has it (JAX).

    JAX 0.10 takes the absent bias for one, with which cuDNN has no gradient for odd
    numbers of tokens. So training appends a masked token to them.

    Args:
        implementation: JAX's name; `"xla"` computes the same on other devices.

    Raises:
        ValueError: `keras.config.enable_flash_attention()` was called, and cuDNN has
            none for such tensors on this GPU.
    """
    import jax

    if implementation == "cudnn" and not _takes_cudnn(query):
        if keras.config.is_flash_attention_enabled():
            raise ValueError(
                "cuDNN's flash attention needs half precision, heads of at most 128 "
                "and a multiple of 8, and an NVIDIA GPU since Ampere. Received: dtype="
                f"{query.dtype}, heads of {query.shape[-1]}"
            )
        return whole(query, key, value)
    (batch, queries), keys = query.shape[:2], key.shape[1]
    if not training or queries % 2 == keys % 2 == 0:
        return jax.nn.dot_product_attention(
            query, key, value, implementation=implementation
        )

    def even(x: Heads) -> Heads:
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


def _takes_cudnn(query: Heads) -> bool:
    """Whether cuDNN has flash attention for such queries on the GPU.

    A GPU that is not attached is assumed to be of the newest generations.
    """
    import jax

    half = keras.backend.standardize_dtype(query.dtype) in ("bfloat16", "float16")
    if not half or query.shape[-1] % 8 or query.shape[-1] > 128:
        return False
    if not devices.is_attached():
        return True
    device = jax.devices()[0]
    return "NVIDIA" in device.device_kind and float(device.compute_capability) >= 8.0


def splash(query: Heads, key: Heads, value: Heads, interpret: bool = False) -> Heads:
    """Attention by JAX's flash attention for TPUs, on each device its own images.

    Keras's own call of it is causal where no mask is given (Keras 3.15).

    Args:
        interpret: Whether to run without a TPU, slowly.
    """
    attend = functools.partial(_splash_on_one_device, interpret=interpret)
    return _on_each_device(attend, query)(query, key, value)


def _on_each_device(attend: Attention, query: Heads) -> Attention:
    """`attend` for tensors that the current distribution divides like the queries.

    XLA cannot divide a Pallas kernel by itself. The images are divided along the
    distribution's batch axis, the heads along another axis of its devices.
    """
    import jax

    distribution = keras.distribution.distribution()
    if distribution is None or distribution.device_mesh is None:
        return attend
    mesh, images = distribution.device_mesh.backend_mesh, distribution.batch_dim_name
    heads = [name for name in mesh.axis_names if name != images]
    if query.shape[0] % mesh.shape[images]:  # the batch of a symbolic call
        return attend
    if heads and query.shape[2] % mesh.shape[heads[0]]:
        heads = []
    parts = jax.sharding.PartitionSpec(images, None, *heads[:1])
    return jax.shard_map(
        attend, mesh=mesh, in_specs=(parts,) * 3, out_specs=parts, check_vma=False
    )


def _splash_on_one_device(
    query: Heads, key: Heads, value: Heads, interpret: bool
) -> Heads:
    import jax
    from jax.experimental.pallas.ops.tpu import splash_attention

    queries, keys = query.shape[1], key.shape[1]
    q_block, kv_block = _splash_block(queries), _splash_block(keys)

    def padded(x: Heads, block: int) -> Tensor:
        return ops.pad(
            _heads_first(x), ((0, 0), (0, 0), (0, -x.shape[1] % block), (0, 0))
        )

    def segments(length: int, block: int) -> Tensor:
        # What is padded attends to itself alone.
        return (ops.arange(length + -length % block) >= length).astype("int32")

    mask = splash_attention.FullMask(
        (queries + -queries % q_block, keys + -keys % kv_block)
    )
    kernel = splash_attention.make_splash_mha_single_device(
        splash_attention.MultiHeadMask([mask] * query.shape[2]),
        block_sizes=splash_attention.BlockSizes(
            block_q=q_block,
            block_kv=kv_block,
            block_kv_compute=kv_block,
            block_q_dkv=q_block,
            block_kv_dkv=kv_block,
            block_kv_dkv_compute=kv_block,
            block_q_dq=q_block,
            block_kv_dq=kv_block,
        ),
        interpret=interpret,
    )
    attend = functools.partial(
        kernel,
        segment_ids=splash_attention.SegmentIds(
            segments(queries, q_block), segments(keys, kv_block)
        ),
    )
    inputs = (
        padded(_scaled(query), q_block),
        padded(key, kv_block),
        padded(value, kv_block),
    )
    outputs = jax.vmap(attend)(*inputs)[:, :, :queries]
    return _heads_first(ops.cast(outputs, query.dtype))


def _splash_block(length: int) -> int:
    """The largest block for which at most an eighth is padded, else the smallest."""
    for block in SPLASH_BLOCKS:
        if 8 * (-length % block) <= length:
            return block
    return SPLASH_BLOCKS[-1]
