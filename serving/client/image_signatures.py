"""The image signatures that `keras-vit export` writes, and their results.

Their names and types are fixed, so that no request for metadata is needed.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .errors import ServingError
from .responses import Attention, Prediction, TensorInfo

if TYPE_CHECKING:
    import numpy as np

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Exported(Generic[Result]):
    """A signature with encoded images as input, `image_bytes` [N].

    Attributes:
        signature_name: Its name.
        outputs: Their types.
        read: Converts the outputs to a result, given the number of images.
        empty: The result for no images.
        as_lists: Whether the outputs are read as nested lists, without NumPy.
    """

    signature_name: str
    outputs: Mapping[str, TensorInfo]
    read: Callable[[Mapping[str, Any], int], Result]
    empty: Callable[[], Result]
    as_lists: bool = False


def _predictions(outputs: Mapping[str, Any], images: int) -> list[Prediction]:
    _check(outputs, CLASSIFY, images)
    shapes = {_shape(outputs[name]) for name in CLASSIFY.outputs}
    if len(shapes) > 1:
        raise ServingError(
            f"{', '.join(CLASSIFY.outputs)} must have one shape. "
            f"Received: {', '.join(map(str, sorted(shapes)))}"
        )
    rows = zip(outputs["classes"], outputs["scores"], outputs["class_ids"], strict=True)
    return [
        Prediction(
            labels=tuple(label.decode("utf-8", "replace") for label in labels),
            scores=tuple(scores),
            class_ids=tuple(class_ids),
        )
        for labels, scores, class_ids in rows
    ]


def _embeddings(outputs: Mapping[str, Any], images: int) -> "np.ndarray":
    _check(outputs, EMBED, images)
    return outputs["embedding"]


def _no_embeddings() -> "np.ndarray":
    from .tensors import np

    return np.empty((0, 0), "float32")


def _attention(outputs: Mapping[str, Any], images: int) -> list[Attention]:
    _check(outputs, ATTENTION, images)
    pairs = zip(outputs["rollout"], outputs["seen_bytes"], strict=True)
    return [Attention(rollout, seen) for rollout, seen in pairs]


def classification(top_k: int | None) -> Exported[list[Prediction]]:
    """`serving_default`, with the best classes of each image alone; None keeps all."""
    if top_k is not None and top_k < 1:
        raise ValueError(f"`top_k` must be at least 1. Received: top_k={top_k}")

    def read(outputs: Mapping[str, Any], images: int) -> list[Prediction]:
        return [prediction.best(top_k) for prediction in _predictions(outputs, images)]

    return dataclasses.replace(CLASSIFY, read=read)


CLASSIFY: Exported[list[Prediction]] = Exported(
    "serving_default",
    {
        "classes": TensorInfo("string", (None, None)),
        "scores": TensorInfo("float32", (None, None)),
        "class_ids": TensorInfo("int64", (None, None)),
    },
    _predictions,
    empty=list,
    as_lists=True,
)
EMBED = Exported(
    "embed",
    {"embedding": TensorInfo("float32", (None, None))},
    _embeddings,
    empty=_no_embeddings,
)
ATTENTION: Exported[list[Attention]] = Exported(
    "attention",
    {
        "rollout": TensorInfo("float32", (None, None, None)),
        "seen_bytes": TensorInfo("string", (None,)),
    },
    _attention,
    empty=list,
)


def _check(outputs: Mapping[str, Any], exported: Exported, images: int) -> None:
    """Check that an answer has all outputs, for the right number of images."""
    if not set(exported.outputs) <= set(outputs):
        raise ServingError(
            f"`{exported.signature_name}` must return {', '.join(exported.outputs)}. "
            f"Received: {', '.join(sorted(outputs)) or 'none'}"
        )
    for name, info in exported.outputs.items():
        sizes = _shape(outputs[name])
        if len(sizes) != len(info.shape or ()) or sizes[0] != images:
            raise ServingError(
                f"`{name}` must have {len(info.shape or ())} dimensions, the first of "
                f"{images} images. Received: shape {list(sizes)}"
            )


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of an array or of nested lists; ValueError for ragged ones."""
    if not isinstance(value, list):
        return getattr(value, "shape", ())
    inner = {_shape(item) for item in value}
    if len(inner) > 1:
        raise ValueError(f"ragged lists: {sorted(inner)}")
    return (len(value), *(inner.pop() if inner else ()))
