"""The options of the models: a row each, from which everything else is derived.

From a row come a model's signature, docstring, checks and config, the fields and flags
of a recipe, what the arrays of a checkpoint show, and what `rebuild` may change; see
`keras_vit.option_rows`. This module does not import Keras.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard

from keras_vit.option_rows import (
    ADAPTABLE,
    OF_THE_RUN,
    OF_THE_SIZE,
    UNSEEN,
    Check,
    CountedBy,
    Mark,
    ShownBy,
    at_least,
    check,
    options,
    rows,
)
from keras_vit.specs import image_size_pair, patch_side, resnet_blocks_tuple

if TYPE_CHECKING:
    from keras_vit.preprocessing import ImagePreprocessing
else:
    ImagePreprocessing = Any

LAYER_NORM_EPSILON = 1e-6


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number."""
    return isinstance(value, Real) and math.isfinite(value)


def is_size(value: object) -> bool:
    """Whether a value is a pair of positive integers."""
    return (
        isinstance(value, Sequence)
        and len(value) == 2
        and all(isinstance(length, Integral) and int(length) > 0 for length in value)
    )


Count = Annotated[int, at_least(1)]
Rate = Annotated[float, Check("in [0, 1)", lambda v: is_number(v) and 0 <= v < 1)]
Positive = Annotated[
    float, Check("a positive number", lambda v: is_number(v) and v > 0)
]
Number = Annotated[float, Check("a number", is_number)]
Factor = Annotated[
    float, Check("a number of at least 1", lambda v: is_number(v) and v >= 1)
]


# Rows that a recipe has too, where it leaves them to a variant or to weights.
ImageSize = int | tuple[int, int]
Activation = Literal["tanh", "exact", "quick", "silu"]
PatchSize = Annotated[
    Count,
    ADAPTABLE,
    "Side P of the square patches, in pixels; in a hybrid in those of the stem's "
    "feature map.",
]
Width = Annotated[Count, OF_THE_SIZE, "Width D of the tokens."]
Depth = Annotated[
    Count,
    OF_THE_SIZE,
    CountedBy("encoder_block_{n}/norm1/gamma"),
    "Number of encoder blocks.",
]
MLPDim = Annotated[
    Count, OF_THE_SIZE, "Width M of the hidden layer in each block's MLP."
]
Heads = Annotated[
    Count, OF_THE_SIZE, UNSEEN, "Number of attention heads A; divides `width`."
]
HeadBiasInit = Annotated[
    Number,
    ADAPTABLE,
    "Initial bias of the classifier, for example -10 for a sigmoid loss over many "
    "classes. Its kernel starts at zero.",
]


@options
class NormOptions:
    """Options of every norm of the tokens."""

    norm: Annotated[
        Literal["layer", "rms"],
        '`"layer"`, LayerNorm, or `"rms"`, RMSNorm, which neither centers nor has a '
        "beta (arXiv:1910.07467); attention pooling keeps its LayerNorm.",
    ] = "layer"
    norm_epsilon: Annotated[
        Positive,
        UNSEEN,
        "Epsilon of every norm: 1e-6 in the official code and timm, 1e-12 in Hugging "
        "Face's ViT.",
    ] = LAYER_NORM_EPSILON


@options
class AttentionOptions(NormOptions):
    """Options of multi-head self-attention."""

    attention_dropout: Annotated[
        Rate, ADAPTABLE, "Dropout rate on the attention weights; the paper has none."
    ] = 0.0
    query_bias: Annotated[
        bool,
        ShownBy("encoder_block_0/attention/query/bias"),
        "Whether the query projection of the blocks has a bias.",
    ] = True
    key_bias: Annotated[
        bool,
        ShownBy("encoder_block_0/attention/key/bias"),
        "Whether the key projection has one; a softmax over the keys takes no notice "
        "of it.",
    ] = True
    value_bias: Annotated[
        bool,
        ShownBy("encoder_block_0/attention/value/bias"),
        "Whether the value projection has one.",
    ] = True
    output_bias: Annotated[
        bool,
        ShownBy("encoder_block_0/attention/out/bias"),
        "Whether the output projection of the blocks' attention has a bias.",
    ] = True
    qk_norm: Annotated[
        bool,
        ShownBy("encoder_block_0/attention/query_norm/gamma"),
        "Whether a norm over each head's K elements follows the query and key "
        "projections (arXiv:2302.05442).",
    ] = False
    rotary_pairing: Annotated[
        Literal["halves", "neighbors"],
        UNSEEN,
        'Which of a head\'s K elements `rotary` rotates together: `"halves"`, j and '
        'j + K/2, as in DINOv3; `"neighbors"`, 2 j and 2 j + 1, as in EVA-02.',
    ] = "halves"
    attention_norm: Annotated[
        bool,
        ShownBy("encoder_block_0/attention/norm/gamma"),
        "Whether a norm over the merged heads precedes the output projection of the "
        "blocks' attention, as in EVA-02's CLIP (arXiv:2303.11331).",
    ] = False


@options
class MLPOptions(NormOptions):
    """Options of a block's MLP."""

    dropout: Annotated[
        Rate,
        OF_THE_RUN,
        "Dropout rate after every dense layer except the query, key and value "
        "projections, and after adding the position embedding (appendix B.1).",
    ] = 0.0
    gelu: Annotated[
        Activation,
        UNSEEN,
        '`"tanh"`, the approximation of the official code; `"exact"`, what timm and '
        'Hugging Face compute; `"quick"`, x sigmoid(1.702 x), of OpenAI\'s CLIP; or '
        '`"silu"`, x sigmoid(x), which is no GELU.',
    ] = "tanh"
    swiglu: Annotated[
        bool,
        OF_THE_SIZE,
        "Whether the MLP of each block is a SwiGLU of hidden width M instead "
        "(arXiv:2002.05202, equation 6), as in DINOv2's g/14; the MLP of attention "
        "pooling keeps its GELU.",
    ] = False
    mlp_norm: Annotated[
        bool,
        ShownBy("encoder_block_0/mlp/norm/gamma"),
        "Whether a norm over the hidden layer, in a SwiGLU after its gate, precedes "
        "the second dense layer of the blocks' MLPs, as in EVA-02.",
    ] = False
    mlp_bias: Annotated[
        bool,
        ShownBy("encoder_block_0/mlp/Dense_1/bias"),
        "Whether the dense layers of the blocks' MLPs have biases.",
    ] = True


@options
class BlockOptions(AttentionOptions, MLPOptions):
    """Options of an encoder block."""

    stochastic_depth: Annotated[
        Rate,
        OF_THE_RUN,
        "Drop rate of the last block's residual branches; it rises linearly from 0 at "
        "the first block.",
    ] = 0.0
    post_norm: Annotated[
        bool,
        UNSEEN,
        "Whether the norms of a block are the last step of its residual branches, not "
        "the first (arXiv:2111.09883), as in EVA-02's CLIP of size E.",
    ] = False
    parallel: Annotated[
        bool,
        ShownBy("encoder_block_0/norm2/gamma", False),
        "Whether attention and MLP of a block read the same normalized tokens and are "
        "one residual branch, as in ViT-22B (arXiv:2302.05442).",
    ] = False
    branches: Annotated[
        Count,
        CountedBy("encoder_block_0/branch_{n}/norm1/gamma"),
        "Number of attentions side by side in a block, which read the same tokens, and "
        "of MLPs side by side after them (arXiv:2203.09795).",
    ] = 1
    layer_scale: Annotated[
        Number | None,
        "Initial value of the learned vector that scales each residual branch "
        "(arXiv:2103.17239), or `None` for no such vector.",
    ] = None


@options
class RotaryOptions:
    """Options of rotary position embeddings."""

    rotary: Annotated[
        Literal["centered", "grid", "mixed"] | None,
        UNSEEN,
        "By which angles of a patch the attention rotates queries and keys: "
        '`"centered"`, 2 pi c / T^(4j/K), c from -1 to 1 (DINOv3, arXiv:2508.10104); '
        '`"grid"`, n / T^(4j/K), n the number of row or column (EVA-02, '
        'arXiv:2303.11331); `"mixed"`, learned ones of row and column together for '
        "each block and head (arXiv:2403.13298). `None` for no rotation.",
    ] = None
    rotary_axes: Annotated[
        Literal["yx", "xy"],
        UNSEEN,
        'Whether the first half of the frequencies is of the rows, `"yx"`, or of the '
        "columns.",
    ] = "yx"
    rotary_temperature: Annotated[
        Positive,
        UNSEEN,
        "T: 100 in DINOv3, 10,000 in EVA-02; 10 for the initial values of mixed ones.",
    ] = 100.0
    rotary_offset: Annotated[
        Number, UNSEEN, "Added to the numbers of rows and columns."
    ] = 0.0
    rotary_reference_grid: Annotated[
        tuple[int, int] | None,
        Check("a pair of positive integers", is_size),
        UNSEEN,
        "(h, w) to which the numbers of rows and columns are scaled, the grid of the "
        "pre-training in EVA-02; `None` for no scaling.",
    ] = None
    rotary_shift: Annotated[
        Positive | None,
        ADAPTABLE,
        "Largest shift of the coordinates of rows and of columns in training, drawn "
        "for each batch (DINOv3).",
    ] = None
    rotary_jitter: Annotated[
        Factor | None,
        ADAPTABLE,
        "Largest factor of the coordinates of rows and of columns in training; drawn "
        "between its inverse and it, log-uniformly.",
    ] = None
    rotary_rescale: Annotated[
        Factor | None, ADAPTABLE, "Largest factor of both together, drawn alike."
    ] = None


@options
class EncoderOptions(RotaryOptions, BlockOptions):
    """Options of a Vision Transformer that a variant does not state."""

    embedding_bias: Annotated[
        bool,
        ShownBy("embedding/bias"),
        "Whether the convolution that embeds the patches has a bias; CLIP's has none.",
    ] = True
    patch_norm: Annotated[
        bool,
        ShownBy("patch_norm/gamma"),
        "Whether the embedded patches are normalized before other tokens and "
        "positions, as in AIMv2 (arXiv:2411.14402).",
    ] = False
    class_token: Annotated[
        bool, ShownBy("class_token/token"), "Whether there is a class token."
    ] = True
    register_tokens: Annotated[
        int,
        at_least(0),
        "Number of learned tokens between class token and patches (arXiv:2309.16588); "
        "no pooling reads them.",
    ] = 0
    representation_size: Annotated[
        Count | None,
        OF_THE_RUN,
        "Width of the dense tanh layer before the classifier that pre-training used "
        "(section 3.2), or `None` for no such layer.",
    ] = None
    position_embedding: Annotated[
        Literal[
            "learned_1d", "learned_2d", "relative", "sincos2d", "sincos2d_mae", "none"
        ],
        UNSEEN,
        'Table 8: `"learned_1d"` (one vector for each token), `"learned_2d"` (halves '
        'for row and column), `"relative"` (1-D, in the attention), `"none"`; or fixed '
        'sines and cosines, `"sincos2d"` as in big_vision, `"sincos2d_mae"` as in MAE.',
    ] = "learned_1d"
    position_placement: Annotated[
        Literal["stem", "every_layer", "shared"] | None,
        UNSEEN,
        'Where they are added: `"stem"`, `"every_layer"` (each with its own), '
        '`"shared"` (at every layer the same). `None`: at the stem, and relative ones '
        "at every layer.",
    ] = None
    prefix_positions: Annotated[
        bool,
        "Whether class token and registers have learned positions too; big_vision and "
        "timm's `no_embed_class` leave them without.",
    ] = True
    position_stddev: Annotated[
        Positive,
        ADAPTABLE,
        "Standard deviation of the initial position embedding: 0.02 in the official "
        "code, D^-0.5 in big_vision.",
    ] = 0.02
    relative_bias: Annotated[
        Literal["every_layer", "shared"] | None,
        "Whether learned numbers of each head for every difference of rows and columns "
        'are added to the scores, as in BEiT (arXiv:2106.08254): `"every_layer"`, each '
        'with its own, or `"shared"`. `None` for none.',
    ] = None
    patch_dropout: Annotated[
        Rate,
        ADAPTABLE,
        "Fraction of the patches dropped from each image in training "
        "(arXiv:2212.00794).",
    ] = 0.0
    embedding_norm: Annotated[
        bool,
        ShownBy("embedding_norm/gamma"),
        "Whether all tokens are normalized before the first block, after the "
        "positions, as in CLIP (arXiv:2103.00020).",
    ] = False
    final_norm: Annotated[
        bool, "Whether there is a norm after the blocks; RADIO has none."
    ] = True
    fc_norm: Annotated[
        bool,
        ShownBy("fc_norm/gamma"),
        "Whether the final norm follows the pooling, not precedes it.",
    ] = False
    projection: Annotated[
        Count | None,
        OF_THE_RUN,
        "Width of the linear layer without bias that follows the pooling and its norm, "
        "CLIP's into the space that it shares with texts; `None` for no such layer.",
    ] = None
    distilled: Annotated[
        bool,
        ADAPTABLE,
        ShownBy("head_dist/kernel"),
        "Whether a second classifier reads the first register, DeiT's distillation "
        "token (arXiv:2012.12877); the scores are the mean of both.",
    ] = False
    pool_heads: Annotated[
        Count | None,
        UNSEEN,
        "Heads of attention pooling; `None` for as many as the blocks have.",
    ] = None
    pool_mlp_dim: Annotated[
        Count | None,
        "Width of the hidden layer of attention pooling's MLP; `None` for `mlp_dim`.",
    ] = None
    attention: Annotated[
        Literal["full", "axial"],
        '`"full"`, or `"axial"`: within rows, then within columns, with an MLP after '
        "each (appendix D.6); for patches without other tokens.",
    ] = "full"
    resnet_blocks: Annotated[
        Sequence[int] | None,
        OF_THE_SIZE,
        "Units in each stage of a hybrid's ResNet stem, such as (3, 4, 9); `()` for "
        "its root alone, `None` for no stem (section 3.1).",
    ] = None
    resnet_width_factor: Annotated[Count, OF_THE_SIZE, "Width factor of the stem."] = 1


@options
class ClassifierOptions:
    """What every model has, whatever its backbone."""

    classes: Annotated[
        Count | None,
        ADAPTABLE,
        "Number of classes, or `None` for features instead of scores.",
    ] = 1000
    head_bias_init: HeadBiasInit = 0.0
    classifier_activation: Annotated[
        str | None, ADAPTABLE, "Activation of the scores, or `None` for logits."
    ] = None
    preprocessing: Annotated[
        ImagePreprocessing | None,
        ADAPTABLE,
        "An `ImagePreprocessing` layer to put in front, or `None`.",
    ] = None
    class_names: Annotated[
        Sequence[str] | None,
        ADAPTABLE,
        "Names of the classes, which are saved with the model.",
    ] = None
    dtype: Annotated[
        Any,
        ADAPTABLE,
        'A dtype policy, such as `"mixed_bfloat16"`; the global policy when absent. '
        "Normalization, softmax and the classifier compute in float32 in any.",
    ] = None
    name: Annotated[str | None, ADAPTABLE, "Name of the model."] = None

    def __post_init__(self) -> None:
        """Bring the values into one form, and check them.

        Raises:
            ValueError: A value that is not what its row says, or that contradicts
                another.
        """
        if self.class_names is not None:
            self._set(class_names=list(self.class_names))
        for name in rows(type(self)):
            value = getattr(self, name)
            # NumPy's integers cannot be written as JSON.
            if isinstance(value, Integral) and not isinstance(value, bool):
                self._set(**{name: int(value)})
        check(self)
        names = self.class_names
        if names is not None and len(names) != self.classes:
            raise ValueError(
                "`class_names` must have one name for each class. "
                f"Received: {len(names)} names, classes={self.classes}"
            )

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def check_preprocessing(self, image_size: tuple[int, int], channels: int) -> None:
        """Raise ValueError where `preprocessing` is not for such images."""
        if self.preprocessing is None:
            return
        for name in ("mean", "std"):
            value = getattr(self.preprocessing, name)
            if isinstance(value, tuple) and len(value) != channels:
                raise ValueError(
                    f"`preprocessing` must have one {name}, or one for each channel. "
                    f"Received: preprocessing.{name}={value}, channels={channels}"
                )
        if self.preprocessing.image_size != image_size:
            raise ValueError(
                "`preprocessing` must produce images of `image_size`. Received: "
                f"preprocessing.image_size={self.preprocessing.image_size}, "
                f"image_size={image_size}"
            )


@options
class ModelOptions(ClassifierOptions):
    """What the models of this library have."""

    image_size: Annotated[ImageSize, ADAPTABLE, "(H, W) or one integer for both."] = 224
    channels: Annotated[Count, ADAPTABLE, "Channels C of the images."] = 3
    include_preprocessing: Annotated[
        bool,
        ADAPTABLE,
        "Whether `preprocessing` is a part of the model. If not, the model reads what "
        "that layer returns, and keeps it for training, export and checkpoints.",
    ] = True
    pooling: Annotated[str | None, ADAPTABLE, "How features become one vector."]

    def __post_init__(self) -> None:
        image_size = image_size_pair(self.image_size)
        self._set(image_size=image_size)
        if self.pooling is None:
            self._set(classes=None)
        super().__post_init__()
        self.check_preprocessing(image_size, self.channels)


@options
class ResNetOptions(ModelOptions):
    """Options of Big Transfer's ResNet."""

    blocks: Annotated[
        Sequence[int],
        OF_THE_SIZE,
        "Units in each stage; the stages after the first halve the map.",
    ] = (3, 4, 6, 3)
    width_factor: Annotated[
        Count, OF_THE_SIZE, "The first stage has 256 * `width_factor` channels."
    ] = 1
    pooling: Annotated[
        Literal["avg"] | None,
        ADAPTABLE,
        '`"avg"` (mean over the feature map) or `None` (the map itself; `classes` is '
        "ignored).",
    ] = "avg"

    def __post_init__(self) -> None:
        self._set(blocks=resnet_blocks_tuple("blocks", self.blocks))
        super().__post_init__()


@options
class ViTOptions(EncoderOptions, ModelOptions):
    """Options of a Vision Transformer."""

    patch_size: PatchSize
    width: Width
    depth: Depth
    mlp_dim: MLPDim
    heads: Heads
    pooling: Annotated[
        Literal["token", "avg", "map", "query"] | None,
        ADAPTABLE,
        'How tokens become one vector: `"token"` (the class token), `"avg"` (mean over '
        'the patches), `"map"` (attention pooling), `"query"` (its attention alone, by '
        "a query without a projection, as in AIMv2), or `None` (not at all; `classes` "
        "is ignored).",
    ] = "token"
    image_size: Annotated[
        ImageSize,
        ADAPTABLE,
        "(H, W) or one integer for both; multiples of `patch_size`, for a hybrid times "
        "the stride of its stem.",
    ] = 224

    def __post_init__(self) -> None:
        if self.position_placement is None:
            relative = self.position_embedding == "relative"
            self._set(position_placement="every_layer" if relative else "stem")
        if self.resnet_blocks is not None:
            blocks = resnet_blocks_tuple("resnet_blocks", self.resnet_blocks)
            self._set(resnet_blocks=blocks)
        super().__post_init__()
        if self.rotary_reference_grid is not None:
            rows, columns = self.rotary_reference_grid
            self._set(rotary_reference_grid=(rows, columns))
        for wrong, rule, names in self._conflicts():
            if wrong:
                received = ", ".join(
                    f"{name}={getattr(self, name)!r}" for name in names
                )
                raise ValueError(f"{rule}. Received: {received}")

    def _conflicts(self) -> Iterator[tuple[bool, str, tuple[str, ...]]]:
        """(whether the rule is broken, the rule, the arguments that it is about)."""
        blocks = None if self.resnet_blocks is None else tuple(self.resnet_blocks)
        side = patch_side(self.patch_size, blocks)
        sizes: tuple[str, ...] = ("image_size", "patch_size")
        rule = "`image_size` must be a multiple of `patch_size`"
        if self.resnet_blocks is not None:
            sizes = (*sizes, "resnet_blocks")
            rule += f" times the stem's stride: of {side}"
        yield (
            any(length % side for length in image_size_pair(self.image_size)),
            rule,
            sizes,
        )
        yield (
            self.parallel and self.post_norm,
            "A `parallel` block has one norm before its attention and its MLP, and "
            "`post_norm` moves those of two branches",
            ("parallel", "post_norm"),
        )
        yield (
            self.pooling == "token" and not self.class_token,
            "`pooling='token'` needs the class token",
            ("pooling", "class_token"),
        )
        yield (
            self.fc_norm and self.pooling is None,
            "`fc_norm` follows the pooling, and `pooling=None` has none",
            ("fc_norm", "pooling"),
        )
        yield (
            self.projection is not None and self.pooling is None,
            "`projection` follows the pooling, and `pooling=None` has none",
            ("projection", "pooling"),
        )
        yield (
            self.fc_norm and not self.final_norm,
            "`fc_norm` is the final norm's place, and `final_norm=False` has none",
            ("fc_norm", "final_norm"),
        )
        relative, axial = (
            self.position_embedding == "relative",
            self.attention == "axial",
        )
        stem = self.position_placement == "stem"
        positions = ("position_embedding", "position_placement")
        yield (
            relative and stem,
            "Relative positions are in the blocks: `position_placement` must be "
            "'every_layer' or 'shared'",
            positions,
        )
        yield (
            self.position_embedding == "none" and not stem,
            "Without a position embedding there is none to place: `position_placement` "
            "must be None",
            positions,
        )
        yield (
            axial and (self.class_token or self.register_tokens > 0),
            "Axial attention has rows and columns of patches only: it needs "
            "class_token=False and register_tokens=0",
            ("attention", "class_token", "register_tokens"),
        )
        yield (
            axial and relative,
            "Axial attention has no relative positions",
            ("attention", "position_embedding"),
        )
        yield (
            self.patch_dropout > 0 and (axial or not stem),
            "`patch_dropout` leaves no grid, which axial attention and positions in "
            "the blocks need",
            ("patch_dropout", "attention", *positions),
        )
        yield (
            self.relative_bias is not None
            and (axial or relative or not self.class_token or self.register_tokens > 0),
            "`relative_bias` is of a class token and patches: it needs "
            "class_token=True, register_tokens=0, attention='full' and no other "
            "relative positions",
            (
                *("relative_bias", "class_token", "register_tokens", "attention"),
                "position_embedding",
            ),
        )
        yield (
            self.relative_bias is not None and self.patch_dropout > 0,
            "`patch_dropout` leaves no grid, which `relative_bias` needs",
            ("relative_bias", "patch_dropout"),
        )
        yield (
            self.distilled
            and (
                self.register_tokens == 0
                or self.classes is None
                or self.pooling != "token"
            ),
            "The second classifier reads a register: `distilled` needs "
            "register_tokens > 0, classes and pooling='token'",
            ("distilled", "register_tokens", "classes", "pooling"),
        )
        yield from self._rotary_conflicts()

    def _rotary_conflicts(self) -> Iterator[tuple[bool, str, tuple[str, ...]]]:
        """Those of the rules that are about rotary positions."""
        rotary = self.rotary is not None
        yield (
            rotary and self.attention == "axial",
            "Axial attention has no rotary positions",
            ("rotary", "attention"),
        )
        yield (
            rotary and self.position_embedding == "relative",
            "Relative positions are of queries that are not rotated",
            ("rotary", "position_embedding"),
        )
        yield (
            rotary and self.patch_dropout > 0,
            "`patch_dropout` leaves no grid, which rotary positions need",
            ("rotary", "patch_dropout"),
        )
        yield (
            rotary and self.width % (4 * self.heads) > 0,
            "Rotary positions need heads of a width that is a multiple of 4",
            ("rotary", "width", "heads"),
        )
        of_a_grid = (self.rotary_offset, self.rotary_reference_grid) != (0, None)
        yield (
            of_a_grid and self.rotary != "grid",
            "`rotary_offset` and `rotary_reference_grid` need rotary='grid'",
            ("rotary", "rotary_offset", "rotary_reference_grid"),
        )
        changes = ("rotary_shift", "rotary_jitter", "rotary_rescale")
        yield (
            not rotary and any(getattr(self, name) is not None for name in changes),
            "Without rotary positions there are no coordinates to change",
            ("rotary", *changes),
        )


def marked(mark: Mark) -> tuple[str, ...]:
    """Names of the models' options with a mark."""
    found = (rows(ViTOptions), rows(ResNetOptions))
    return tuple(
        dict.fromkeys(n for r in found for n, row in r.items() if mark in row.marks)
    )


# What a variant states.
REQUIRED = tuple(
    field.name
    for field in dataclasses.fields(ViTOptions)
    if field.default is dataclasses.MISSING
)
SIZES = marked(OF_THE_SIZE)
SETTINGS = marked(UNSEEN)
