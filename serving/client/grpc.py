"""The client over gRPC, on grpcio and the official protocol stubs.

The stubs import TensorFlow, so its own conversions between arrays and tensors are used.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

try:
    import grpc
    import tensorflow as tf
    from google.protobuf import json_format
    from google.protobuf.message import Message
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        get_model_status_pb2,
        model_pb2,
        model_service_pb2_grpc,
        predict_pb2,
        prediction_service_pb2_grpc,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'GrpcClient needs {error.name}: pip install "keras-vit[serve]"',
        name=error.name,
    ) from error
import numpy as np

from .answers import Metadata, TensorInfo, VersionStatus, read_metadata, read_status
from .base import Client
from .errors import from_code, too_late
from .protocol import Protocol, Question, Target

# gRPC's own limit of 4 MiB is less than an answer with embeddings of many images; its
# own back-off of up to two minutes is longer than a server needs to start.
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class GrpcRequest(NamedTuple):
    """Name of the method, and its message."""

    method: str
    message: Message


class GrpcClient(Client):
    """Asks TensorFlow Serving, or the local server, over gRPC.

    Args:
        address: of the server, such as "127.0.0.1:8500".
        model: name of the model.
        version: number of a version; default: the newest one available.
        label: label of a version, in place of its number.
        timeout: seconds for each call, its retries included.
        channel: of grpcio, in place of an own one to `address`.

    Raises:
        ValueError: an argument that cannot be used.
    """

    def __init__(
        self,
        address: str,
        model: str,
        *,
        version: int | None = None,
        label: str | None = None,
        timeout: float = 10.0,
        channel: grpc.Channel | None = None,
    ):
        super().__init__(GrpcProtocol(Target(model, version, label)), timeout)
        self.address = _checked_address(address)
        self._channel = channel or grpc.insecure_channel(address, _CHANNEL_OPTIONS)
        predictions = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        models = model_service_pb2_grpc.ModelServiceStub(self._channel)
        self._methods = {
            "Predict": predictions.Predict,
            "GetModelMetadata": predictions.GetModelMetadata,
            "GetModelStatus": models.GetModelStatus,
        }

    def close(self) -> None:
        """Closes the connections, those of an injected channel too."""
        self._channel.close()

    def _carry(self, request: GrpcRequest, timeout: float) -> Message:
        try:
            return self._methods[request.method](request.message, timeout=timeout)
        except grpc.RpcError as error:
            # gRPC's own words for a deadline that passed on this side.
            if error.details() == "Deadline Exceeded":
                raise too_late(self.address, timeout) from error
            raise from_code(error.code().name, error.details()) from error


class GrpcProtocol(Protocol):
    """The questions as messages of TensorFlow Serving.

    Args:
        target: model and version.
    """

    def __init__(self, target: Target):
        self._target = target

    def status(self) -> Question:
        """GetModelStatus."""
        message = get_model_status_pb2.GetModelStatusRequest(model_spec=self._spec())

        def read(reply: Message) -> list[VersionStatus]:
            return read_status(_as_json(reply))

        return Question(GrpcRequest("GetModelStatus", message), read)

    def metadata(self) -> Question:
        """GetModelMetadata."""
        message = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=self._spec(), metadata_field=["signature_def"]
        )

        def read(reply: Message) -> Metadata:
            return read_metadata(_as_json(reply))

        return Question(GrpcRequest("GetModelMetadata", message), read)

    def predict(
        self,
        signature_name: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, TensorInfo],
    ) -> Question:
        """Predict; the answer names the types itself, so `outputs` is not needed."""
        message = predict_pb2.PredictRequest(
            model_spec=self._spec(signature_name),
            inputs={
                name: tf.make_tensor_proto(value) for name, value in inputs.items()
            },
        )

        def read(reply: Any) -> dict[str, np.ndarray]:
            return {
                name: tf.make_ndarray(tensor) for name, tensor in reply.outputs.items()
            }

        return Question(GrpcRequest("Predict", message), read)

    def _spec(self, signature_name: str = "") -> model_pb2.ModelSpec:
        spec = model_pb2.ModelSpec(
            name=self._target.model, signature_name=signature_name
        )
        if self._target.version is not None:
            spec.version.value = self._target.version
        elif self._target.label is not None:
            spec.version_label = self._target.label
        return spec


def _checked_address(address: str) -> str:
    if not address or "//" in address:
        raise ValueError(
            f"`address` must look like 127.0.0.1:8500. Received: {address!r}"
        )
    return address


def _as_json(message: Message) -> dict[str, Any]:
    """The message in REST's form."""
    return json_format.MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
