"""Clients of TensorFlow Serving over REST and gRPC: the public names.

    from serving.client import RestClient

    with RestClient("http://127.0.0.1:8501", "digits") as client:
        [prediction] = client.classify(["seven.png"])
        print(prediction.label, prediction.score)

`AsyncRestClient` and `AsyncGrpcClient` have the same methods, which are awaited. The
clients over gRPC are imported on first use: the official protocol stubs import
TensorFlow, which takes seconds, and users of REST need not have it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    MessageTooLarge,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    ServingError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from .responses import (
    Attention,
    Metadata,
    Prediction,
    Signature,
    TensorInfo,
    VersionStatus,
)
from .rest_client import RestClient

if TYPE_CHECKING:
    from .async_rest_client import AsyncRestClient
    from .grpc_client import AsyncGrpcClient, GrpcClient

__all__ = [
    "AsyncGrpcClient",
    "AsyncRestClient",
    "Attention",
    "DeadlineExceeded",
    "FailedPrecondition",
    "GrpcClient",
    "InvalidArgument",
    "MessageTooLarge",
    "Metadata",
    "NotFound",
    "PermissionDenied",
    "Prediction",
    "ResourceExhausted",
    "RestClient",
    "ServingError",
    "Signature",
    "TensorInfo",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "VersionStatus",
]

_LATER = {
    "AsyncGrpcClient": ".grpc_client",
    "AsyncRestClient": ".async_rest_client",
    "GrpcClient": ".grpc_client",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
