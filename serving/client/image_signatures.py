"""The image signatures that `keras-vit export` writes, and their results.

Their names and types are fixed, so that no request for metadata is needed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .errors import ServingError
from .responses import Attention, Prediction, TensorInfo

if TYPE_CHECKING:
    import numpy as np

Result = TypeVar("Result")


@dataclass(frozen=True)
class Exported(Generic[Result]):
    """A signature with encoded images as input, `image_bytes` [N].

    Attributes:
        signature_name: Its name.
        outputs: Their types.
        read: Converts output arrays to a result, given the number of images.
    """

    signature_name: str
    outputs: Mapping[str, TensorInfo]
    read: Callable[[Mapping[str, Any], int], Result]


def _predictions(outputs: Mapping[str, Any], images: int) -> list[Prediction]:
    _check(outputs, CLASSIFY, images)
    shapes = {outputs[name].shape for name in CLASSIFY.outputs}
    if len(shapes) > 1:
        raise ServingError(
            f"{', '.join(CLASSIFY.outputs)} must have one shape. "
            f"Received: {', '.join(map(str, sorted(shapes)))}"
        )
    rows = zip(outputs["classes"], outputs["scores"], outputs["class_ids"], strict=True)
    return [
        Prediction(
            labels=tuple(label.decode("utf-8", "replace") for label in labels),
            scores=tuple(scores.tolist()),
            class_ids=tuple(class_ids.tolist()),
        )
        for labels, scores, class_ids in rows
    ]


def _embeddings(outputs: Mapping[str, Any], images: int) -> "np.ndarray":
    _check(outputs, EMBED, images)
    return outputs["embedding"]


def _attention(outputs: Mapping[str, Any], images: int) -> list[Attention]:
    _check(outputs, ATTENTION, images)
    pairs = zip(outputs["rollout"], outputs["seen_bytes"], strict=True)
    return [Attention(rollout, seen) for rollout, seen in pairs]


CLASSIFY = Exported(
    "serving_default",
    {
        "classes": TensorInfo("string", (None, None)),
        "scores": TensorInfo("float32", (None, None)),
        "class_ids": TensorInfo("int64", (None, None)),
    },
    _predictions,
)
EMBED = Exported(
    "embed", {"embedding": TensorInfo("float32", (None, None))}, _embeddings
)
ATTENTION = Exported(
    "attention",
    {
        "rollout": TensorInfo("float32", (None, None, None)),
        "seen_bytes": TensorInfo("string", (None,)),
    },
    _attention,
)


def _check(outputs: Mapping[str, Any], exported: Exported, images: int) -> None:
    """Check that an answer has all outputs, for the right number of images."""
    if not set(exported.outputs) <= set(outputs):
        raise ServingError(
            f"`{exported.signature_name}` must return {', '.join(exported.outputs)}. "
            f"Received: {', '.join(sorted(outputs)) or 'none'}"
        )
    for name, info in exported.outputs.items():
        shape = outputs[name].shape
        if len(shape) != len(info.shape or ()) or shape[0] != images:
            raise ServingError(
                f"`{name}` must have {len(info.shape or ())} dimensions, the first of "
                f"{images} images. Received: shape {list(shape)}"
            )
