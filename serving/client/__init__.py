"""Clients of TensorFlow Serving over REST and gRPC.

    from keras_vit_client import RestClient

    with RestClient("http://127.0.0.1:8501", "digits") as client:
        [prediction] = client.classify(["seven.png"])
        print(prediction.label, prediction.score)

`AsyncRestClient` and `AsyncGrpcClient` have the same methods, which are awaited. No
client imports TensorFlow; NumPy only what returns arrays. The gRPC clients are imported
on first use.
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
from .image_signatures import Attention, Prediction
from .responses import Metadata, Signature, TensorInfo, VersionStatus
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

_LAZY = {
    "AsyncGrpcClient": ".grpc_client",
    "AsyncRestClient": ".async_rest_client",
    "GrpcClient": ".grpc_client",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name], __name__), name)
