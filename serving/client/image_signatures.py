"""The image signatures that `keras-vit export` writes, and their results.

Their names and types are fixed, so that no request for metadata is needed.
"""

import functools
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from .errors import ServingError
from .protocol import Call, Result
from .responses import TensorInfo

if TYPE_CHECKING:
    import numpy as np

    from .grpc_protocol import GrpcProtocol
    from .rest_protocol import RestProtocol


@dataclass(frozen=True)
class Prediction:
    """The K best classes of one image, best first.

    Attributes:
        labels: K class names.
        scores: K probabilities, rounded to float32.
        class_ids: K class indices.
    """

    labels: tuple[str, ...]
    scores: tuple[float, ...]
    class_ids: tuple[int, ...]

    @property
    def label(self) -> str:
        """Name of the best class."""
        return self.labels[0]

    @property
    def score(self) -> float:
        """Probability of the best class."""
        return self.scores[0]

    @property
    def class_id(self) -> int:
        """Index of the best class."""
        return self.class_ids[0]

    def best(self, top_k: int | None) -> "Prediction":
        """Keep the `top_k` best classes; None keeps all."""
        return Prediction(
            self.labels[:top_k], self.scores[:top_k], self.class_ids[:top_k]
        )


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention map of one image.

    Attributes:
        rollout: float32 [h, w], the share of each patch by attention rollout; sums to
            1.
        seen: The image as the model saw it, resized and cropped; PNG.
    """

    rollout: "np.ndarray"
    seen: bytes


@dataclass(frozen=True)
class Exported(Generic[Result]):
    """A signature with encoded images as input, `image_bytes` [N].

    Attributes:
        signature_name: Its name.
        outputs: Their types.
        read: Converts the outputs to a result.
        empty: The result for no images.
        as_lists: Whether the outputs are read as nested lists, without NumPy.
    """

    signature_name: str
    outputs: Mapping[str, TensorInfo]
    read: Callable[[Mapping[str, Any]], Result]
    empty: Callable[[], Result]
    as_lists: bool = False

    def call(
        self, protocol: "RestProtocol | GrpcProtocol", images: list[bytes]
    ) -> Call[Result]:
        """The request for encoded images, whose reply is checked and read."""
        call = protocol.predict(
            self.signature_name,
            {"image_bytes": images},
            self.outputs,
            as_lists=self.as_lists,
        )
        return Call(
            call.request, lambda reply: self._result(call.read(reply), len(images))
        )

    def _result(self, outputs: Mapping[str, Any], images: int) -> Result:
        if not set(self.outputs) <= set(outputs):
            raise ServingError(
                f"`{self.signature_name}` must return {', '.join(self.outputs)}. "
                f"Received: {', '.join(sorted(outputs)) or 'none'}"
            )
        for name, info in self.outputs.items():
            sizes = _shape(outputs[name])
            if len(sizes) != len(info.shape or ()) or sizes[0] != images:
                raise ServingError(
                    f"`{name}` must have {len(info.shape or ())} dimensions, the first "
                    f"of {images} images. Received: shape {list(sizes)}"
                )
        return self.read(outputs)


def _predictions(outputs: Mapping[str, Any], top_k: int | None) -> list[Prediction]:
    shapes = {_shape(outputs[name]) for name in _CLASSES}
    if len(shapes) > 1:
        raise ServingError(
            f"{', '.join(_CLASSES)} must have one shape. "
            f"Received: {', '.join(map(str, sorted(shapes)))}"
        )
    rows = zip(*(outputs[name] for name in _CLASSES), strict=True)
    return [
        Prediction(
            labels=tuple(label.decode("utf-8", "replace") for label in labels),
            # As float32 and int64 hold the numbers, which JSON writes as text.
            scores=tuple(array("f", scores)),
            class_ids=tuple(array("q", class_ids)),
        ).best(top_k)
        for labels, scores, class_ids in rows
    ]


def _no_embeddings() -> "np.ndarray":
    from .tensors import np

    return np.empty((0, 0), "float32")


def classification(top_k: int | None) -> Exported[list[Prediction]]:
    """`serving_default`, with the best classes of each image alone; None keeps all."""
    if top_k is not None and top_k < 1:
        raise ValueError(f"`top_k` must be at least 1. Received: top_k={top_k}")

    read = functools.partial(_predictions, top_k=top_k)
    return Exported("serving_default", _CLASSES, read, empty=list, as_lists=True)


_CLASSES = {
    "classes": TensorInfo("string", (None, None)),
    "scores": TensorInfo("float32", (None, None)),
    "class_ids": TensorInfo("int64", (None, None)),
}
EMBED: "Exported[np.ndarray]" = Exported(
    "embed",
    {"embedding": TensorInfo("float32", (None, None))},
    lambda outputs: outputs["embedding"],
    empty=_no_embeddings,
)
ATTENTION: Exported[list[Attention]] = Exported(
    "attention",
    {
        "rollout": TensorInfo("float32", (None, None, None)),
        "seen_bytes": TensorInfo("string", (None,)),
    },
    lambda outputs: list(map(Attention, outputs["rollout"], outputs["seen_bytes"])),
    empty=list,
)


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of an array or of nested lists; ValueError for ragged ones."""
    if not isinstance(value, list):
        return getattr(value, "shape", ())
    inner = {_shape(item) for item in value}
    if len(inner) > 1:
        raise ValueError(f"ragged lists: {sorted(inner)}")
    return (len(value), *(inner.pop() if inner else ()))
