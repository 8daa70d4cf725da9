"""The MLP of encoder blocks and of attention pooling."""

from typing import Any

import keras
from keras import ops

from keras_vit import options
from keras_vit.fusion import fused, fused_dense
from keras_vit.layers import gelu
from keras_vit.layers.normalization import NORMS, DenseLayers, dense
from keras_vit.layers.options_layer import OptionsLayer
from keras_vit.typing import Activation, InputShape, SequenceShape, Tensor, Tokens


def silu_gate(hidden: Tensor) -> Tensor:
    """[..., 2 M], gate and values side by side -> silu(gate) * values [..., M]."""
    gate, values = ops.split(hidden, 2, axis=-1)
    return gelu.silu(gate) * values


@keras.saving.register_keras_serializable(package="keras_vit")
class MLP(OptionsLayer):
    """Two dense layers with a GELU between them (section 3.1), or a SwiGLU.

    A norm of the hidden layer may precede the second (arXiv:2303.11331, section 2.1).

    The first layer of a SwiGLU (arXiv:2002.05202, equation 6) returns a gate [.., M]
    and values [.., M] side by side; the second reads silu(gate) * values.

    Args:
        hidden_dim: Width M of the hidden layer.
        **kwargs: Those of `keras_vit.options.MLPOptions`, and of every layer.

    Call arguments:
        tokens: Tensor [B, N, D].
        project: Function that computes dense layers of tokens: `LayerNorm.dense` of
            those that it normalizes before.
        training: Whether dropout is active.

    Returns:
        Tensor [B, N, D].
    """

    options_class = options.MLPOptions

    def __init__(self, hidden_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.dropout_layer = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy)

    def build(self, input_shape: InputShape) -> None:
        width = input_shape[-1]
        # The official code's names. TensorFlow sorts a graph's inputs by name before it
        # looks for MatMul + BiasAdd + GELU, and finds it only where the dense layer's
        # name comes before "Gelu": with "dense" the step is a third slower in bfloat16.
        self.dense1 = self._dense("Dense_0", self.hidden_dim * (1 + self.swiglu))
        self.dense2 = self._dense("Dense_1", width)
        self.dense1.build((None, width))
        self.dense2.build((None, self.hidden_dim))
        if self.mlp_norm:
            self.hidden_norm = NORMS[self.norm](
                self.norm_epsilon, name="norm", dtype=self.dtype_policy
            )
            self.hidden_norm.build((None, self.hidden_dim))

    def _dense(self, name: str, units: int) -> keras.layers.Dense:
        return keras.layers.Dense(
            units,
            use_bias=self.mlp_bias,
            kernel_initializer="glorot_uniform",
            bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
            dtype=self.dtype_policy,
            name=name,
        )

    def call(
        self, tokens: Tokens, project: DenseLayers = dense, training: bool = False
    ) -> Tokens:
        [hidden] = project([self.dense1], tokens, training)  # [B * N, M]
        dtype = self.compute_dtype
        activation: Activation = silu_gate
        if not self.swiglu:
            activation = gelu.implementation(self.gelu, training, dtype)
        if self.mlp_norm or (training and self.dropout):
            hidden = fused(activation, hidden, training=training, dtype=dtype)
            hidden = self.dropout_layer(hidden, training=training)
            project = self.hidden_norm.dense if self.mlp_norm else dense
            [outputs] = project([self.dense2], hidden, training)
        else:
            [outputs] = fused_dense(
                [self.dense2], activation, hidden, training=training, dtype=dtype
            )
        outputs = self.dropout_layer(outputs, training=training)
        return ops.reshape(outputs, ops.shape(tokens))

    def compute_output_shape(self, input_shape: SequenceShape) -> SequenceShape:
        return input_shape
