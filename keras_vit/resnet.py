"""The paper's ResNets: Big Transfer, the baseline, and the stem of the hybrids.

Both ResNets of the paper normalize the kernels (Weight Standardization,
arXiv:1903.10520) and groups of channels (arXiv:1803.08494), by two conventions:

    "vit"   the stem of the hybrids: ResNet V1, normalization after each convolution;
            google-research/vision_transformer, models_resnet.py and models_vit.py
    "bit"   the baseline, Big Transfer (arXiv:1912.11370): ResNet V2, normalization
            before each convolution; google-research/big_transfer
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import keras
from keras import ops

from keras_vit.applications import PublishedModel, application
from keras_vit.base import classifier
from keras_vit.checks import check_choice
from keras_vit.configured_layer import ConfiguredLayer
from keras_vit.option_rows import built_from, documented, rows
from keras_vit.options import ResNetOptions
from keras_vit.specs import parse_resnet
from keras_vit.typing import Config, FeatureMap, Images, InputShape, Shape, Tensor

POOLINGS = rows(ResNetOptions)["pooling"].choices
Convention: TypeAlias = Literal["vit", "bit"]
CONVENTIONS: tuple[Convention, ...] = ("vit", "bit")
GROUPS = 32
GROUP_NORM_EPSILON = {"vit": 1e-6, "bit": 1e-5}


def group_norm(
    name: str,
    convention: Convention,
    dtype: keras.DTypePolicy | None = None,
    gamma: str = "ones",
) -> keras.layers.GroupNormalization:
    """GroupNormalization of 32 groups with the convention's epsilon."""
    return keras.layers.GroupNormalization(
        GROUPS,
        epsilon=GROUP_NORM_EPSILON[convention],
        gamma_initializer=gamma,
        name=name,
        dtype=dtype,
    )


@keras.saving.register_keras_serializable(package="keras_vit")
class StdConv2D(ConfiguredLayer):
    """Convolution with standardized kernels, without bias (arXiv:1903.10520).

    The weight is the raw kernel, as in the published files. It is standardized for
    each output channel at every call, in float32 whatever the policy computes in.

    Args:
        filters: Number F of output channels.
        kernel_size: Side of the kernel, odd.
        strides: Stride in both directions.
        convention: `"vit"` divides by (deviation + 1e-5) and pads as TensorFlow's
            SAME; `"bit"` divides by sqrt(variance + 1e-10) and puts half a kernel of
            zeros on each side.

    Call arguments:
        images: Tensor [B, H, W, C].

    Returns:
        Tensor [B, ceil(H / strides), ceil(W / strides), F].
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        strides: int = 1,
        convention: Convention = "vit",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("convention", convention, CONVENTIONS)
        self.filters = filters
        self.kernel_size = kernel_size
        self.strides = strides
        self.convention = convention

    def build(self, input_shape: InputShape) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            initializer="lecun_normal",
            autocast=False,
        )

    def standardized_kernel(self) -> Tensor:
        """The kernel with mean 0 and variance 1 in each output channel, in float32."""
        kernel = ops.cast(self.kernel, "float32")
        mean, variance = ops.moments(kernel, axes=(0, 1, 2), keepdims=True)
        if self.convention == "bit":
            return (kernel - mean) / ops.sqrt(variance + 1e-10)
        # The square root has no gradient at 0, where a channel's weights are equal.
        deviation = ops.sqrt(ops.maximum(variance, 1e-30))
        return (kernel - mean) / (deviation + 1e-5)

    def call(self, images: FeatureMap) -> FeatureMap:
        padding = "same"
        # With a stride of 1 the two ways to pad are the same.
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

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return _strided(input_shape, self.strides, self.filters)


def _strided(shape: Shape, strides: int, channels: int) -> Shape:
    """Shape [B, H, W, C] after a padded, strided convolution."""
    sides = [None if side is None else -(-side // strides) for side in shape[1:3]]
    return (shape[0], *sides, channels)


class _Bottleneck(ConfiguredLayer):
    """Bottleneck of 1x1, 3x3 and 1x1 convolutions beside a shortcut.

    The 3x3 convolution has the stride. The shortcut is projected where its shape is
    not that of the output.
    """

    convention: Convention

    def __init__(self, filters: int, strides: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.filters = filters
        self.strides = strides
        self.conv_proj = None

    def build(self, input_shape: InputShape) -> None:
        channels, filters = input_shape[-1], self.filters
        self._add_conv("conv1", channels, filters)
        self._add_conv("conv2", filters, filters, 3, self.strides)
        self._add_conv("conv3", filters, 4 * filters)
        if channels != 4 * filters or self.strides != 1:
            self._add_conv("conv_proj", channels, 4 * filters, 1, self.strides)

    def _add_conv(
        self,
        name: str,
        channels: int,
        filters: int,
        kernel_size: int = 1,
        strides: int = 1,
    ) -> None:
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

    def _add_norm(self, name: str, channels: int, gamma: str = "ones") -> None:
        layer = group_norm(name, self.convention, self.dtype_policy, gamma)
        layer.build((None, None, None, channels))
        setattr(self, name, layer)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return _strided(input_shape, self.strides, 4 * self.filters)


@keras.saving.register_keras_serializable(package="keras_vit")
class ResidualUnit(_Bottleneck):
    """Residual unit of the hybrids' stem (ResNet V1): normalization after convolution.

    The last normalization starts with gamma zero: the unit begins as its shortcut.

    Args:
        filters: Channels F inside; the output has 4 F. A multiple of 32.
        strides: Stride of the 3x3 convolution.

    Call arguments:
        images: Tensor [B, H, W, C].

    Returns:
        Tensor [B, ceil(H / strides), ceil(W / strides), 4 F].
    """

    convention = "vit"

    def build(self, input_shape: InputShape) -> None:
        super().build(input_shape)
        self._add_norm("norm1", self.filters)
        self._add_norm("norm2", self.filters)
        self._add_norm("norm3", 4 * self.filters, gamma="zeros")
        if self.conv_proj is not None:
            self._add_norm("norm_proj", 4 * self.filters)

    def call(self, images: FeatureMap) -> FeatureMap:
        shortcut = images
        if self.conv_proj is not None:
            shortcut = self.norm_proj(self.conv_proj(images))
        x = ops.relu(self.norm1(self.conv1(images)))
        x = ops.relu(self.norm2(self.conv2(x)))
        return ops.relu(shortcut + self.norm3(self.conv3(x)))


@keras.saving.register_keras_serializable(package="keras_vit")
class PreActivationUnit(_Bottleneck):
    """Residual unit of BiT (ResNet V2): normalization before convolution.

    Args:
        filters: Channels F inside; the output has 4 F. A multiple of 32.
        strides: Stride of the 3x3 convolution.

    Call arguments:
        images: Tensor [B, H, W, C], C a multiple of 32.

    Returns:
        Tensor [B, ceil(H / strides), ceil(W / strides), 4 F].
    """

    convention = "bit"

    def build(self, input_shape: InputShape) -> None:
        super().build(input_shape)
        self._add_norm("norm1", input_shape[-1])
        self._add_norm("norm2", self.filters)
        self._add_norm("norm3", self.filters)

    def call(self, images: FeatureMap) -> FeatureMap:
        x = ops.relu(self.norm1(images))
        shortcut = images if self.conv_proj is None else self.conv_proj(x)
        x = ops.relu(self.norm2(self.conv1(x)))
        x = ops.relu(self.norm3(self.conv2(x)))
        return shortcut + self.conv3(x)


def _max_pool(padding: str, policy: keras.DTypePolicy) -> keras.layers.MaxPooling2D:
    return keras.layers.MaxPooling2D(
        3, 2, padding, data_format="channels_last", dtype=policy, name="stem_pool"
    )


def _relu(name: str, policy: keras.DTypePolicy) -> keras.layers.ReLU:
    return keras.layers.ReLU(dtype=policy, name=name)


def _connect_units(
    x: FeatureMap,
    unit_class: type[_Bottleneck],
    blocks: Sequence[int],
    width_factor: int,
    policy: keras.DTypePolicy,
) -> FeatureMap:
    """Stage s has 256 * width_factor * 2^(s-1) channels; all but one halve the map."""
    for stage, units in enumerate(blocks, 1):
        for unit in range(1, units + 1):
            x = unit_class(
                64 * width_factor * 2 ** (stage - 1),
                strides=2 if stage > 1 and unit == 1 else 1,
                dtype=policy,
                name=f"stage{stage}_unit{unit}",
            )(x)
    return x


def connect_stem(
    x: Images, blocks: Sequence[int], width_factor: int, policy: keras.DTypePolicy
) -> FeatureMap:
    """Connect the hybrids' stem, a ResNet V1 without classifier (section 3.1).

    Args:
        x: Images [B, H, W, C].
        blocks: Units in each stage; `()` for the root alone.
        width_factor: Of the channels; 1 in all published hybrids.
        policy: A dtype policy.

    Returns:
        Feature map [B, H / s, W / s, 256 * width_factor * 2^(stages - 1)], its sides
        rounded up, s = `keras_vit.specs.stem_scale(blocks)`; 64 * width_factor channels
        after the root alone.
    """
    x = StdConv2D(64 * width_factor, 7, 2, "vit", dtype=policy, name="stem_conv")(x)
    x = group_norm("stem_norm", "vit", policy)(x)
    x = _relu("stem_relu", policy)(x)
    x = _max_pool("same", policy)(x)
    return _connect_units(x, ResidualUnit, blocks, width_factor, policy)


@keras.saving.register_keras_serializable(package="keras_vit")
@documented
class ResNet(PublishedModel):
    """Big Transfer's ResNet V2, the paper's baseline, a functional `keras.Model`.

    GroupNorm and weight standardization instead of BatchNorm (arXiv:1912.11370).
    `from_variant("R50x1")` builds a published size, `from_preset` one with weights.

    The input is a batch [B, H, W, C] of pixels in [-1, 1] (see `preprocess_input`), or
    of pixels from 0 to 255 where `preprocessing` is given. The output is float32 logits
    [B, classes] (or their activation); without classes the pooled features
    [B, 2048 * width_factor]; with `pooling=None` the feature map
    [B, ceil(H / 32), ceil(W / 32), 2048 * width_factor].

    Args:
    {options}

    Raises:
        ValueError: An argument that does not fit.
    """

    architecture = "resnet"
    options_class = ResNetOptions

    @built_from(ResNetOptions)
    def __init__(self, options: ResNetOptions) -> None:
        self.keep_options(options)
        images = self.images_input()
        super().__init__(images, self._connect(images), name=options.name)

    def _connect(self, images: Images) -> Tensor:
        """Images [B, H, W, C] -> the model's output."""
        policy, width_factor = self._policy, self.width_factor
        x = self._prepared(images)
        x = StdConv2D(64 * width_factor, 7, 2, "bit", dtype=policy, name="stem_conv")(x)
        # Zeros, which in a map without ReLU may be the largest: the pool's own padding
        # is never the largest, and the published weights were trained with this one.
        x = keras.layers.ZeroPadding2D(
            1, data_format="channels_last", dtype=policy, name="stem_pad"
        )(x)
        x = _max_pool("valid", policy)(x)
        x = _connect_units(x, PreActivationUnit, self.blocks, width_factor, policy)
        x = group_norm("final_norm", "bit", policy)(x)
        x = _relu("final_relu", policy)(x)
        if self.pooling == "avg":
            x = keras.layers.GlobalAveragePooling2D(
                data_format="channels_last", dtype="float32", name="pooling"
            )(x)
        return classifier(x, self)

    @classmethod
    def variant_arguments(cls, variant: str) -> Config:
        """Arguments of a size such as `"R50x1"`: units per stage and width factor."""
        blocks, width_factor = parse_resnet(variant)
        return {"blocks": blocks, "width_factor": width_factor}


def _application(variant: str) -> Callable[..., ResNet]:
    return application(ResNet, variant, name="BiT" + variant, poolings=POOLINGS)


BiTR50x1 = _application("R50x1")
BiTR50x3 = _application("R50x3")
BiTR101x1 = _application("R101x1")
BiTR101x3 = _application("R101x3")
BiTR152x2 = _application("R152x2")
BiTR152x4 = _application("R152x4")
