"""Which arguments of `VisionTransformer` there are, and which fit together."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from keras_vit.base import check_choice, check_counts, check_labels, check_rates
from keras_vit.specs import patch_side

COUNTS = (
    "patch_size",
    "width",
    "depth",
    "mlp_dim",
    "heads",
    "channels",
    "resnet_width",
)
RATES = ("dropout", "attention_dropout", "stochastic_depth", "patch_dropout")
CHOICES = {
    "head": ("token", "gap", "map", "none"),
    "attention": ("full", "axial"),
    "position_embedding": (
        "learned_1d",
        "learned_2d",
        "relative",
        "sincos2d",
        "sincos2d_mae",
        "none",
    ),
    "position_placement": ("stem", "every_layer", "shared"),
}


def check(arguments: dict[str, Any]) -> None:
    """Raises ValueError where an argument is wrong or does not fit the others."""
    check_counts(arguments, COUNTS)
    optional = {"classes": None, "representation_size": None, "register_tokens": 0}
    check_counts(arguments, [k for k, none in optional.items() if arguments[k] != none])
    check_rates(arguments, RATES)
    for name, choices in CHOICES.items():
        check_choice(name, arguments[name], choices)
    check_labels(**arguments)
    for wrong, message, names in _conflicts(SimpleNamespace(**arguments)):
        if wrong:
            received = ", ".join(f"{name}={arguments[name]!r}" for name in names)
            raise ValueError(f"{message}. Received: {received}")


def _conflicts(vit) -> Iterator[tuple[bool, str, tuple[str, ...]]]:
    """Whether a rule is broken, the rule, and the arguments it is about."""
    side = patch_side(vit.patch_size, vit.resnet_blocks)
    names: tuple[str, ...] = ("image_size", "patch_size")
    rule = "`image_size` must be a multiple of `patch_size`"
    if vit.resnet_blocks is not None:
        names = (*names, "resnet_blocks")
        rule += f" times the stem's step: of {side}"
    yield any(length % side for length in vit.image_size), rule, names
    yield (
        vit.head == "token" and not vit.class_token,
        "`head='token'` needs the class token",
        ("head", "class_token"),
    )
    yield (
        vit.fc_norm and vit.head == "none",
        "`fc_norm` stands after the pooling, and `head='none'` has none",
        ("fc_norm", "head"),
    )
    relative, axial = vit.position_embedding == "relative", vit.attention == "axial"
    stem = vit.position_placement == "stem"
    positions = ("position_embedding", "position_placement")
    yield (
        relative and stem,
        "Relative positions are in the blocks: `position_placement` must be "
        "'every_layer' or 'shared'",
        positions,
    )
    yield (
        vit.position_embedding == "none" and not stem,
        "Without a position embedding there is none to place: `position_placement` "
        "must be None",
        positions,
    )
    yield (
        axial and (vit.class_token or vit.register_tokens > 0),
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
        vit.patch_dropout > 0 and (axial or not stem),
        "`patch_dropout` leaves no grid, which axial attention and positions in the "
        "blocks need",
        ("patch_dropout", "attention", *positions),
    )
