"""Weight-standardised convolutions, and the residual units made of them.

Both ResNets of the paper normalise the kernels (Weight Standardization,
arXiv:1903.10520) and groups of channels (arXiv:1803.08494), by two conventions:

    "vit"   the stem of the hybrids: ResNet V1, normalisation after each convolution;
            google-research/vision_transformer, models_resnet.py and models_vit.py
    "bit"   the baseline, Big Transfer (arXiv:1912.11370): ResNet V2, normalisation
            before each convolution; google-research/big_transfer
"""

import keras
from keras import ops

from keras_vit.base import check_choice

__all__ = ["PreActivationUnit", "ResidualUnit", "StdConv2D"]

CONVENTIONS = ("vit", "bit")
GROUPS = 32
GROUP_NORM_EPSILON = {"vit": 1e-6, "bit": 1e-5}


def group_norm(name, convention, dtype=None, gamma="ones"):
    """GroupNormalization of 32 groups with the convention's epsilon."""
    return keras.layers.GroupNormalization(
        GROUPS,
        epsilon=GROUP_NORM_EPSILON[convention],
        gamma_initializer=gamma,
        name=name,
        dtype=dtype,
    )


@keras.saving.register_keras_serializable(package="keras_vit")
class StdConv2D(keras.layers.Layer):
    """Convolution by standardised kernels, without bias (arXiv:1903.10520).

    The weight is the raw kernel, as in the published files. It is standardised for
    each output channel at every call, in float32 whatever the policy computes in.

    Args:
        filters: Number F of output channels.
        kernel_size: Side of the kernel, odd.
        strides: Step of the convolution in both directions.
        convention: `"vit"` divides by (deviation + 1e-5) and pads as TensorFlow's
            SAME; `"bit"` divides by sqrt(variance + 1e-10) and puts half a kernel of
            zeros on each side.

    Call arguments:
        images: Tensor [B, H, W, C].

    Returns:
        Tensor [B, ceil(H / strides), ceil(W / strides), F].
    """

    def __init__(self, filters, kernel_size, strides=1, convention="vit", **kwargs):
        super().__init__(**kwargs)
        check_choice("convention", convention, CONVENTIONS)
        self.filters = filters
        self.kernel_size = kernel_size
        self.strides = strides
        self.convention = convention

    def build(self, input_shape):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            initializer="lecun_normal",
            autocast=False,
        )

    def standardized_kernel(self):
        """The kernel with mean 0 and variance 1 in each output channel, in float32."""
        kernel = ops.cast(self.kernel, "float32")
        mean, variance = ops.moments(kernel, axes=(0, 1, 2), keepdims=True)
        if self.convention == "bit":
            return (kernel - mean) / ops.sqrt(variance + 1e-10)
        # The square root has no gradient at 0, where a channel's weights are equal.
        deviation = ops.sqrt(ops.maximum(variance, 1e-30))
        return (kernel - mean) / (deviation + 1e-5)

    def call(self, images):
        padding = "same"
        # With a step of 1 the two ways to pad are one.
        if self.convention == "bit" and self.strides > 1:
            border = self.kernel_size // 2
            images = ops.pad(
                images, [(0, 0), (border, border), (border, border), (0, 0)]
            )
            padding = "valid"
        return ops.conv(
            images,
            ops.cast(self.standardized_kernel(), self.compute_dtype),
            strides=self.strides,
            padding=padding,
            data_format="channels_last",
        )

    def compute_output_shape(self, input_shape):
        return _strided(input_shape, self.strides, self.filters)

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "convention": self.convention,
        }


def _strided(shape, strides, channels):
    """The shape [B, H, W, C] after a padded step."""
    sides = [None if side is None else -(-side // strides) for side in shape[1:3]]
    return (shape[0], *sides, channels)


class _Bottleneck(keras.layers.Layer):
    """What the two units share: 1x1, 3x3 and 1x1 convolutions beside a shortcut.

    The 3x3 convolution makes the step. The shortcut is projected where its shape is
    not that of the output.
    """

    convention: str

    def __init__(self, filters, strides=1, **kwargs):
        super().__init__(**kwargs)
        self.filters = filters
        self.strides = strides
        self.conv_proj = None

    def build(self, input_shape):
        channels, filters = input_shape[-1], self.filters
        self._add_conv("conv1", channels, filters)
        self._add_conv("conv2", filters, filters, 3, self.strides)
        self._add_conv("conv3", filters, 4 * filters)
        if channels != 4 * filters or self.strides != 1:
            self._add_conv("conv_proj", channels, 4 * filters, 1, self.strides)

    def _add_conv(self, name, channels, filters, kernel_size=1, strides=1):
        layer = StdConv2D(
            filters,
            kernel_size,
            strides,
            self.convention,
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build((None, None, None, channels))
        setattr(self, name, layer)

    def _add_norm(self, name, channels, gamma="ones"):
        layer = group_norm(name, self.convention, self.dtype_policy, gamma)
        layer.build((None, None, None, channels))
        setattr(self, name, layer)

    def compute_output_shape(self, input_shape):
        return _strided(input_shape, self.strides, 4 * self.filters)

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "strides": self.strides,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class ResidualUnit(_Bottleneck):
    """The unit of ResNet V1 in the hybrids' stem: normalisation after convolution.

    The last normalisation starts with gamma zero: the unit begins as its shortcut.

    Args:
        filters: Channels F inside; the output has 4 F. A multiple of 32.
        strides: Step of the 3x3 convolution.

    Call arguments:
        images: Tensor [B, H, W, C].

    Returns:
        Tensor [B, ceil(H / strides), ceil(W / strides), 4 F].
    """

    convention = "vit"

    def build(self, input_shape):
        super().build(input_shape)
        self._add_norm("norm1", self.filters)
        self._add_norm("norm2", self.filters)
        self._add_norm("norm3", 4 * self.filters, gamma="zeros")
        if self.conv_proj is not None:
            self._add_norm("norm_proj", 4 * self.filters)

    def call(self, images):
        shortcut = images
        if self.conv_proj is not None:
            shortcut = self.norm_proj(self.conv_proj(images))
        x = ops.relu(self.norm1(self.conv1(images)))
        x = ops.relu(self.norm2(self.conv2(x)))
        return ops.relu(shortcut + self.norm3(self.conv3(x)))


@keras.saving.register_keras_serializable(package="keras_vit")
class PreActivationUnit(_Bottleneck):
    """The unit of ResNet V2 in BiT: normalisation before convolution.

    Args:
        filters: Channels F inside; the output has 4 F. A multiple of 32.
        strides: Step of the 3x3 convolution.

    Call arguments:
        images: Tensor [B, H, W, C], C a multiple of 32.

    Returns:
        Tensor [B, ceil(H / strides), ceil(W / strides), 4 F].
    """

    convention = "bit"

    def build(self, input_shape):
        super().build(input_shape)
        self._add_norm("norm1", input_shape[-1])
        self._add_norm("norm2", self.filters)
        self._add_norm("norm3", self.filters)

    def call(self, images):
        x = ops.relu(self.norm1(images))
        shortcut = images if self.conv_proj is None else self.conv_proj(x)
        x = ops.relu(self.norm2(self.conv1(x)))
        x = ops.relu(self.norm3(self.conv2(x)))
        return shortcut + self.conv3(x)
