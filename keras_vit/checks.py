"""Checks of arguments: each raises an error that names what was wanted and received."""

import difflib
import inspect
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_vit.specs import patch_side

COUNTS = ("patch_size", "width", "depth", "mlp_dim", "heads", "channels")
RATES = ("dropout", "attention_dropout", "stochastic_depth", "patch_dropout")
POOLINGS = ("token", "avg", "map", None)
ATTENTIONS = ("full", "axial")
POSITION_EMBEDDINGS = (
    *("learned_1d", "learned_2d", "relative"),
    *("sincos2d", "sincos2d_mae", "none"),
)
POSITION_PLACEMENTS = ("stem", "every_layer", "shared")


def check_count(name: str, value: Any) -> None:
    """Raise ValueError unless the value is an integer of at least 1."""
    if not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(
            f"`{name}` must be an integer of at least 1. Received: {name}={value!r}"
        )


def check_rate(name: str, value: float) -> None:
    """Raise ValueError unless the value is in [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"`{name}` must be in [0, 1). Received: {name}={value}")


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise ValueError for an unknown value."""
    if value not in choices:
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(repr, choices))}. "
            f"Received: {name}={value!r}"
        )


def check_argument_names(cls: type, arguments: Mapping[str, Any]) -> None:
    """Raise TypeError for an argument that a class's constructor does not have."""
    parameters = inspect.signature(cls).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for name, value in arguments.items():
        if name not in parameters:
            similar = difflib.get_close_matches(name, parameters, n=2)
            meant = f" Did you mean {' or '.join(similar)}?" if similar else ""
            raise TypeError(
                f"`{name}` must be an argument of {cls.__name__}.{meant} "
                f"Received: {name}={value!r}"
            )


def check_model_file(path: Any) -> None:
    """Raise ValueError for a name of Keras's old format, which cannot be opened."""
    if str(path).endswith((".h5", ".hdf5")):
        raise ValueError(
            "`filepath` must end in .keras, for the whole model; for its weights alone "
            f"there is save_weights('NAME.weights.h5'). Received: filepath={path!r}"
        )


def check_image_shape(images: Any, wanted: tuple[int | None, ...]) -> None:
    """Raise ValueError unless images have the shape that a model reads.

    Args:
        images: An array, a tensor or a `tf.data.Dataset` of such; whatever else Keras
            takes is not checked.
        wanted: The model's `input_shape`, (None, H, W, C).
    """
    spec = getattr(images, "element_spec", images)
    shape = getattr(spec[0] if isinstance(spec, tuple) and spec else spec, "shape", ())
    try:
        found = tuple(shape)
    except ValueError:  # a TensorShape of unknown rank
        return
    fits = len(found) == len(wanted) and all(
        None in sides or sides[0] == sides[1]
        for sides in zip(found, wanted, strict=True)
    )
    if found and not fits:
        raise ValueError(
            f"`images` must be a batch [B, {', '.join(map(str, wanted[1:]))}]: one "
            "image becomes one as images[None], a data set of images by batch(32); "
            "keras_vit.with_image_size makes the same model for another size. "
            f"Received: images of shape {found}"
        )


def check_images_and_classes(model) -> None:
    """Raise ValueError where preprocessing or class names do not fit the model."""
    if model.classes is not None:
        check_count("classes", model.classes)
    names, preprocessing = model.class_names, model.preprocessing
    if names is not None and len(names) != model.classes:
        raise ValueError(
            "`class_names` must have one name for each class. "
            f"Received: {len(names)} names, classes={model.classes}"
        )
    if preprocessing is None:
        return
    for name in ("mean", "std"):
        value = getattr(preprocessing, name)
        if isinstance(value, tuple) and len(value) != model.channels:
            raise ValueError(
                f"`preprocessing` must have one {name}, or one for each channel. "
                f"Received: preprocessing.{name}={value}, channels={model.channels}"
            )
    if preprocessing.image_size != model.image_size:
        raise ValueError(
            "`preprocessing` must produce images of `image_size`. "
            f"Received: preprocessing.image_size={preprocessing.image_size}, "
            f"image_size={model.image_size}"
        )


def check_vit(vit) -> None:
    """Raise ValueError where an argument of a VisionTransformer is wrong.

    Args:
        vit: Anything with the arguments as attributes.
    """
    for name in COUNTS:
        check_count(name, getattr(vit, name))
    check_count("resnet_width_factor", vit.resnet_width_factor)
    if vit.representation_size is not None:
        check_count("representation_size", vit.representation_size)
    if vit.register_tokens != 0:
        check_count("register_tokens", vit.register_tokens)
    for name in RATES:
        check_rate(name, getattr(vit, name))
    check_choice("pooling", vit.pooling, POOLINGS)
    check_choice("attention", vit.attention, ATTENTIONS)
    check_choice("position_embedding", vit.position_embedding, POSITION_EMBEDDINGS)
    check_choice("position_placement", vit.position_placement, POSITION_PLACEMENTS)
    check_images_and_classes(vit)
    for wrong, message, names in _conflicts(vit):
        if wrong:
            received = ", ".join(f"{name}={getattr(vit, name)!r}" for name in names)
            raise ValueError(f"{message}. Received: {received}")


def _conflicts(vit) -> Iterator[tuple[bool, str, tuple[str, ...]]]:
    """(whether the rule is broken, the rule, the arguments that it is about)."""
    side = patch_side(vit.patch_size, vit.resnet_blocks)
    sizes: tuple[str, ...] = ("image_size", "patch_size")
    rule = "`image_size` must be a multiple of `patch_size`"
    if vit.resnet_blocks is not None:
        sizes = (*sizes, "resnet_blocks")
        rule += f" times the stem's stride: of {side}"
    yield any(length % side for length in vit.image_size), rule, sizes
    yield (
        vit.pooling == "token" and not vit.class_token,
        "`pooling='token'` needs the class token",
        ("pooling", "class_token"),
    )
    yield (
        vit.fc_norm and vit.pooling is None,
        "`fc_norm` follows the pooling, and `pooling=None` has none",
        ("fc_norm", "pooling"),
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
