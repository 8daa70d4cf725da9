"""Clients of TensorFlow Serving over REST and gRPC: the public names.

    from serving.client import RestClient

    with RestClient("http://127.0.0.1:8501", "digits") as client:
        [prediction] = client.classify(["seven.png"])
        print(prediction.label, prediction.score)

`GrpcClient` is imported on first use: the official protocol stubs import TensorFlow,
which takes seconds, and users of `RestClient` need not have it.
"""

from typing import TYPE_CHECKING, Any

from .answers import Metadata, Prediction, Signature, TensorInfo, VersionStatus
from .errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServingError,
    Unavailable,
    Unimplemented,
)
from .rest import RestClient

if TYPE_CHECKING:
    from .grpc import GrpcClient

__all__ = [
    "DeadlineExceeded",
    "FailedPrecondition",
    "GrpcClient",
    "InvalidArgument",
    "Metadata",
    "NotFound",
    "Prediction",
    "ResourceExhausted",
    "RestClient",
    "ServingError",
    "Signature",
    "TensorInfo",
    "Unavailable",
    "Unimplemented",
    "VersionStatus",
]


def __getattr__(name: str) -> Any:
    if name == "GrpcClient":
        from .grpc import GrpcClient

        return GrpcClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
