"""Cost of a model in closed form: parameters, FLOPs, memory."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from keras_vit.options import ViTOptions
from keras_vit.specs import (
    ViTSpec,
    image_size_pair,
    parse_resnet,
    parse_variant,
    patch_side,
)

if TYPE_CHECKING:
    from keras_vit.vit import VisionTransformer


@dataclasses.dataclass(frozen=True)
class Costs:
    """Cost of one model on one image.

    Args:
        tokens: Number N of tokens in the encoder, class token and registers included;
            0 in a ResNet.
        parameters: Number of weights.
        macs: Multiply-accumulate operations of one forward pass, attention's two
            products included, and those with the zeros around a map. Normalization,
            activation functions, softmax and pooling are not counted. As in published
            figures, every block computes all tokens; where only the class token is
            read, `VisionTransformer` leaves the others out of the last block.
        inference_bytes: Largest sum of activations that must be held at one time.
        training_bytes: Activations that a backward pass reads, in the compute dtype,
            where nothing of it is computed again.
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


def variant_costs(
    variant: str,
    image_size: int | tuple[int, int] = 224,
    channels: int = 3,
    classes: int | None = 1000,
    bytes_per_value: int = 4,
) -> Costs:
    """Compute the cost of a model by its name: `"B/16"`, `"R50+B/16"` or `"R50x1"`.

    Raises:
        ValueError: An unknown model, or an `image_size` that does not fit it.
    """
    if variant.startswith("R") and "/" not in variant:
        blocks, width = parse_resnet(variant)
        return resnet_costs(
            blocks, width, image_size, channels, classes, bytes_per_value
        )
    spec, patch_size = parse_variant(variant)
    return model_costs(
        spec,
        patch_size,
        image_size,
        channels,
        classes,
        bytes_per_value=bytes_per_value,
    )


def model_costs(
    spec: ViTSpec,
    patch_size: int,
    image_size: int | tuple[int, int] = 224,
    channels: int = 3,
    classes: int | None = 1000,
    class_token: bool = True,
    attention: Literal["full", "axial"] = "full",
    bytes_per_value: int = 4,
) -> Costs:
    """Compute the cost of a ViT with class-token or average pooling.

    Args:
        spec: Width, depth, MLP width and heads, a hybrid's stem, GELU or SwiGLU.
        patch_size: Side P of a patch, in pixels of the image or of the stem's map.
        image_size: (H, W) or one integer, multiples of what a patch sees.
        classes: Number of classes, or `None` for no classifier.
        attention: `"full"`, or `"axial"`: two encoder blocks for each one, of which the
            first attends within the rows and the second within the columns.
        bytes_per_value: Of the compute dtype: 4 for float32, 2 for bfloat16.

    Raises:
        ValueError: `image_size` is not a multiple of what a patch sees.
    """
    size = dataclasses.asdict(spec)
    options = ViTOptions(
        **size,
        patch_size=patch_size,
        image_size=image_size,
        channels=channels,
        classes=classes,
        class_token=class_token,
        pooling="token" if class_token else "avg",
        attention=attention,
    )
    return vit_costs(options, bytes_per_value)


def vit_costs(
    options: "ViTOptions | VisionTransformer", bytes_per_value: int = 4
) -> Costs:
    """Compute the cost of a `VisionTransformer`.

    Args:
        options: The model, or its `ViTOptions`.
    """
    height, width = image_size_pair(options.image_size)
    image = x = _Map(height, width, options.channels)
    sums, width = _Sums(), options.width
    if options.resnet_blocks is not None:
        stem = options.resnet_blocks, options.resnet_width_factor
        x = sums.add_resnet(image, *stem, preactivation=False)
    grid = x.step(options.patch_size, width)
    prefix = options.class_token + options.register_tokens
    tokens = grid.positions + prefix
    sums.add_convolution(x, grid, options.patch_size)
    sums.parameters += width * (options.embedding_bias + prefix)
    sums.parameters += _positions(options, grid, prefix)
    sums.add_norms(options, width * (options.patch_norm + options.embedding_norm))
    axial = options.attention == "axial"
    for length in (grid.width, grid.height) if axial else (tokens,):
        sums.add_encoder(options, tokens, length)
    if options.rotary == "mixed":
        sums.parameters += options.depth * width
    sums.add_final_norm(options, tokens)
    if options.relative_bias is not None:
        own = options.relative_bias == "every_layer"
        tables = options.depth * options.branches if own else 1
        rows = (2 * grid.height - 1) * (2 * grid.width - 1) + 3
        sums.parameters += tables * rows * options.heads
    if options.pooling in ("map", "query"):
        sums.add_pooling(options, grid.positions + options.class_token)
    read = 1 + options.distilled  # features, the second with a classifier of its own
    width = sums.add_head(width, options.projection, biased=False, count=read)
    width = sums.add_head(width, options.representation_size, count=read)
    for _ in range(read):
        sums.add_head(width, options.classes)
    return sums.costs(image, tokens, bytes_per_value)


def _positions(
    options: "ViTOptions | VisionTransformer", grid: "_Map", prefix: int
) -> int:
    """Parameters of the position embeddings."""
    tables = options.depth if options.position_placement == "every_layer" else 1
    d, own = options.width, prefix * options.prefix_positions
    match options.position_embedding:
        case "learned_1d":
            return tables * d * (own + grid.positions)
        case "learned_2d":
            return tables * (d * own + d // 2 * (grid.height + grid.width))
        case "relative":
            own = options.position_placement == "every_layer"
            tables *= options.branches if own else 1
            return tables * d // options.heads * (2 * (prefix + grid.positions) - 1)
    return 0


def resnet_costs(
    blocks: Sequence[int],
    width: int = 1,
    image_size: int | tuple[int, int] = 224,
    channels: int = 3,
    classes: int | None = 1000,
    bytes_per_value: int = 4,
) -> Costs:
    """Compute the cost of a BiT ResNet; other arguments are those of `model_costs`.

    Args:
        blocks: Units in each stage.
        width: Width factor.
    """
    image = _Map(*image_size_pair(image_size), channels)
    sums = _Sums()
    x = sums.add_resnet(image, blocks, width, preactivation=True)
    sums.add_head(x.channels, classes)
    return sums.costs(image, 0, bytes_per_value)


def least_parameters(arguments: Mapping[str, Any]) -> int:
    """A lower bound of a model's parameters that shows what would not fit into memory.

    Every position of the patches counts as if it were learned.

    Args:
        arguments: Of a `VisionTransformer` or a `ResNet`, whose `image_size` may be
            missing; or of an `ImageClassifier`, with the backbone's serialized config.
    """
    if "backbone" in arguments:  # which is looked at on its own
        width = arguments["backbone"]["config"].get("width", 1)
        return int(width * arguments["classes"])
    blocks, channels = arguments.get("blocks"), arguments["channels"]
    if blocks is not None:
        factor, classes = arguments["width_factor"], arguments["classes"]
        return resnet_costs(blocks, factor, 32, channels, classes).parameters
    width, patch_size = arguments["width"], arguments["patch_size"]
    stem = arguments.get("resnet_blocks")
    branches = arguments["depth"] * arguments.get("branches", 1)
    parameters = branches * width * (4 * width + 2 * arguments["mlp_dim"])
    if stem is not None:
        factor = arguments.get("resnet_width_factor", 1)
        parameters += resnet_costs(stem, factor, 32, channels, None).parameters
        channels = 1  # of the stem's map: more
    rows = patch_size**2 * channels + arguments.get("register_tokens", 0)
    rows += (arguments["classes"] or 0) + (arguments["representation_size"] or 0)
    if "image_size" in arguments:
        side = patch_side(patch_size, stem)
        height, columns = image_size_pair(arguments["image_size"])
        rows += (height // side) * (columns // side)
    return int(parameters + width * rows)


@dataclasses.dataclass(frozen=True)
class _Map:
    """The shape of a feature map."""

    height: int
    width: int
    channels: int

    @property
    def positions(self) -> int:
        return self.height * self.width

    @property
    def size(self) -> int:
        return self.positions * self.channels

    def step(self, strides: int, channels: int) -> "_Map":
        """The shape after a padded step."""
        return _Map(-(-self.height // strides), -(-self.width // strides), channels)


class _Sums:
    """Running sums over the parts of a network; activations in values."""

    def __init__(self) -> None:
        self.parameters = 0
        self.macs = 0
        self.peak = 0  # without the image
        self.kept = 0

    def costs(self, image: _Map, tokens: int, bytes_per_value: int) -> Costs:
        return Costs(
            tokens=tokens,
            parameters=self.parameters,
            macs=self.macs,
            inference_bytes=(image.size + self.peak) * bytes_per_value,
            training_bytes=(image.size + self.kept) * bytes_per_value,
        )

    def add_convolution(self, x: _Map, y: _Map, kernel_size: int = 1) -> None:
        weights = kernel_size * kernel_size * x.channels * y.channels
        self.parameters += weights
        self.macs += weights * y.positions

    def add_head(
        self, width: int, units: int | None, biased: bool = True, count: int = 1
    ) -> int:
        """A dense layer of so many pooled features, if any; their width after it."""
        if units is None:
            return width
        self.parameters += (width + biased) * units
        self.macs += count * width * units
        return units

    def add_norms(self, spec: "ViTOptions | VisionTransformer", width: int) -> None:
        """Parameters of norms with so many elements together."""
        self.parameters += width if spec.norm == "rms" else 2 * width

    def add_encoder(
        self, spec: "ViTOptions | VisionTransformer", n: int, attended: int
    ) -> None:
        """The blocks on N tokens, each of which attends to `attended` tokens."""
        d, m, blocks = spec.width, spec.mlp_dim, spec.depth * spec.branches
        first = m * (1 + spec.swiglu)  # the outputs of the MLP's first layer
        steps = 2 - spec.parallel  # residual branches
        biased = (spec.query_bias, spec.key_bias, spec.value_bias, spec.output_bias)
        biases = d * sum(biased) + (d + first) * spec.mlp_bias
        scales = 0 if spec.layer_scale is None else steps * d
        self.parameters += blocks * (4 * d * d + d * (m + first) + biases + scales)
        head_width = d // spec.heads
        normalized = d * (steps + spec.attention_norm) + m * spec.mlp_norm
        normalized += 2 * head_width * spec.qk_norm
        self.add_norms(spec, blocks * normalized)
        attention = 4 * n * d * d + 2 * n * attended * d
        if spec.position_embedding == "relative":  # scores of all offsets, and a zero
            attention += 2 * n * n * d
        self.macs += blocks * (attention + n * d * (first + m))
        tokens, scores = n * d, spec.heads * n * attended
        # A GELU's input and output; a SwiGLU's gate before and after SiLU, its values
        # and their product.
        hidden = n * m * (4 if spec.swiglu else 2)
        # At the peak: residual stream and norm with either the attention's query, key,
        # value and two copies of the scores, or the MLP's hidden layer.
        peak = 2 * tokens + max(3 * tokens + 2 * scores, hidden)
        self.peak = max(self.peak, peak)
        # Kept for the backward pass: the inputs of both norms, of the query, key and
        # value projections, of the attention's two products (three tensors, and the
        # weights), of the output projection, of the MLP, and of its GELU and second
        # layer. Where both are parallel, they have one input and one norm.
        inputs = 8 - 2 * spec.parallel
        self.kept += blocks * (inputs * tokens + scores + hidden)

    def add_final_norm(self, spec: "ViTOptions | VisionTransformer", n: int) -> None:
        """The norm after the blocks; its input and the head's are kept."""
        self.add_norms(spec, spec.width * spec.final_norm)
        self.kept += 2 * n * spec.width

    def add_pooling(self, spec: "ViTOptions | VisionTransformer", n: int) -> None:
        """Attention pooling of N tokens: one query, perhaps a LayerNorm and an MLP."""
        d = spec.width
        self.macs += (2 * n + 1) * d * d + 2 * n * d
        if spec.pooling == "query":
            self.parameters += d + 3 * d * d
            self.parameters += d * (1 + spec.key_bias + spec.value_bias)
            return
        m = spec.pool_mlp_dim or spec.mlp_dim
        self.parameters += d + 4 * d * (d + 1) + 2 * d + d * (m + 1) + m * (d + 1)
        self.macs += d * d + 2 * d * m

    def add_resnet(
        self, image: _Map, blocks: Sequence[int], width: int, preactivation: bool
    ) -> _Map:
        """BiT, or (without `preactivation`) the stem of a hybrid; its last map."""
        root = image.step(2, 64 * width)
        x = root.step(2, root.channels)
        self.add_convolution(image, root, 7)
        self.peak = 2 * root.size
        self.kept = root.size + x.size
        if not preactivation:
            self.parameters += 2 * root.channels
            self.kept += root.size
        for stage, units in enumerate(blocks):
            for unit in range(units):
                strides = 2 if stage > 0 and unit == 0 else 1
                x = self._add_unit(x, root.channels * 2**stage, strides, preactivation)
        if preactivation:
            self.parameters += 2 * x.channels
            self.kept += x.size
        return x

    def _add_unit(
        self, x: _Map, filters: int, strides: int, preactivation: bool
    ) -> _Map:
        """Three convolutions a, b, y beside a shortcut from x."""
        a, b = x.step(1, filters), x.step(strides, filters)
        y = b.step(1, 4 * filters)
        self.add_convolution(x, a)
        self.add_convolution(a, b, 3)
        self.add_convolution(b, y)
        projected = x.channels != y.channels or strides != 1
        if projected:
            self.add_convolution(x, y)
        # Kept are the inputs of every norm and of every convolution, which is what the
        # backward passes of ReLU need, too; the norms' outputs are not.
        kept = 2 * (a.size + b.size) + y.size
        if preactivation:
            self.parameters += 2 * (x.channels + a.channels + b.channels)
            self.kept += kept + x.size
            most = max(x.size + a.size, a.size + b.size, b.size + y.size)
        else:
            norms = a.channels + b.channels + (1 + projected) * y.channels
            self.parameters += 2 * norms
            self.kept += kept + (1 + projected) * y.size
            most = max(projected * (x.size + y.size), a.size + b.size, 2 * y.size)
        self.peak = max(self.peak, (y if projected else x).size + max(most, 2 * a.size))
        return y
