"""TensorFlow Serving's gRPC protocol, by the official stubs.

The stubs import TensorFlow, so its own conversions between arrays and tensors are used.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import json_format, text_format
from google.protobuf.message import Message
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    model_pb2,
    predict_pb2,
)
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from .errors import from_code
from .protocol import Call, Protocol, Target
from .responses import Metadata, TensorInfo, VersionStatus, read_metadata, read_status


class GrpcRequest(NamedTuple):
    """Name of a method, and its message."""

    method: str
    message: Message


class GrpcProtocol(Protocol):
    """Calls as protocol messages.

    Args:
        target: Model and version.
    """

    def __init__(self, target: Target):
        self._target = target

    def status(self) -> Call:
        """GetModelStatus."""
        message = get_model_status_pb2.GetModelStatusRequest(model_spec=self._spec())

        def read(reply: Message) -> list[VersionStatus]:
            return read_status(_as_json(reply))

        return Call(GrpcRequest("GetModelStatus", message), read)

    def metadata(self) -> Call:
        """GetModelMetadata."""
        message = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=self._spec(), metadata_field=["signature_def"]
        )

        def read(reply: Message) -> Metadata:
            return read_metadata(_as_json(reply))

        return Call(GrpcRequest("GetModelMetadata", message), read)

    def predict(
        self,
        signature_name: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, TensorInfo],
    ) -> Call:
        """Predict; the answer names its types itself, so `outputs` is unused."""
        message = predict_pb2.PredictRequest(
            model_spec=self._spec(signature_name),
            inputs={
                name: tf.make_tensor_proto(value) for name, value in inputs.items()
            },
        )

        def read(reply: Any) -> dict[str, np.ndarray]:
            return {name: _array(tensor) for name, tensor in reply.outputs.items()}

        return Call(GrpcRequest("Predict", message), read)

    def reload_config(self, config: ModelServerConfig | str) -> Call:
        """HandleReloadConfigRequest, which returns nothing."""
        if isinstance(config, str):
            config = _parsed(config)
        message = model_management_pb2.ReloadConfigRequest(config=config)

        def read(reply: Any) -> None:
            status = _as_json(reply.status)
            if status["error_code"] != "OK":
                raise from_code(status["error_code"], status["error_message"])

        return Call(GrpcRequest("HandleReloadConfigRequest", message), read)

    def _spec(self, signature_name: str = "") -> model_pb2.ModelSpec:
        spec = model_pb2.ModelSpec(
            name=self._target.model, signature_name=signature_name
        )
        if self._target.version is not None:
            spec.version.value = self._target.version
        elif self._target.label is not None:
            spec.version_label = self._target.label
        return spec


def _as_json(message: Message) -> dict[str, Any]:
    """The message in REST's form."""
    return json_format.MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )


def _array(tensor: Any) -> np.ndarray:
    if tensor.dtype == tf.string.as_datatype_enum and tensor.tensor_content:
        # Of a server with --enable_serialization_as_tensor_content.
        return tf.io.parse_tensor(tensor.SerializeToString(), tf.string).numpy()
    return tf.make_ndarray(tensor)


def _parsed(config: str) -> ModelServerConfig:
    try:
        return text_format.Parse(config, ModelServerConfig())
    except text_format.ParseError as error:
        raise ValueError(f"`config` must be a ModelServerConfig: {error}") from error
