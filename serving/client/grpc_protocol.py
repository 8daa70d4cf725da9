"""TensorFlow Serving's gRPC protocol; imports no TensorFlow."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from google.protobuf import json_format, text_format
from google.protobuf.message import Message

from . import messages, tensor_messages
from .errors import error_of
from .protocol import Call, Target
from .responses import TensorInfo, read_metadata, read_status


class GrpcRequest(NamedTuple):
    """A method of `tensorflow.serving`, its message, and the type of its answer."""

    method: str
    message: Message
    answer: Any


class GrpcProtocol:
    """Calls of a model as protocol messages, by the methods of `RestProtocol`."""

    def __init__(self, target: Target):
        self._target = target

    def status(self) -> Call:
        """GetModelStatus."""
        message = messages.GetModelStatusRequest(model_spec=self._spec())
        return Call(
            GrpcRequest(
                "ModelService/GetModelStatus", message, messages.GetModelStatusResponse
            ),
            lambda reply: read_status(_as_json(reply)),
        )

    def metadata(self) -> Call:
        """GetModelMetadata."""
        message = messages.GetModelMetadataRequest(
            model_spec=self._spec(), metadata_field=["signature_def"]
        )

        def read(reply: Any) -> Any:
            packed = reply.metadata["signature_def"].value
            signatures = messages.SignatureDefMap.FromString(packed)
            answer = {
                "model_spec": _as_json(reply.model_spec),
                "metadata": {"signature_def": _as_json(signatures)},
            }
            return read_metadata(answer)

        return Call(
            GrpcRequest(
                "PredictionService/GetModelMetadata",
                message,
                messages.GetModelMetadataResponse,
            ),
            read,
        )

    def predict(
        self,
        signature_name: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, TensorInfo],
        as_lists: bool = False,
    ) -> Call:
        """Predict; the answer names its types itself."""
        message = messages.PredictRequest(
            model_spec=self._spec(signature_name),
            inputs={name: _tensor(value) for name, value in inputs.items()},
        )

        def read(reply: Any) -> dict[str, Any]:
            if not as_lists:
                return {
                    name: tensor_messages.to_array(tensor)
                    for name, tensor in reply.outputs.items()
                }
            return {
                name: tensor_messages.to_lists(tensor)
                for name, tensor in reply.outputs.items()
                if name in outputs
            }

        return Call(
            GrpcRequest("PredictionService/Predict", message, messages.PredictResponse),
            read,
        )

    def reload_config(self, config: Message | str) -> Call:
        """HandleReloadConfigRequest, which returns nothing."""
        message = messages.ReloadConfigRequest(config=_model_server_config(config))

        def read(reply: Any) -> None:
            status = _as_json(reply.status)
            if status["error_code"] != "OK":
                raise error_of(status["error_code"], status["error_message"])

        return Call(
            GrpcRequest(
                "ModelService/HandleReloadConfigRequest",
                message,
                messages.ReloadConfigResponse,
            ),
            read,
        )

    def _spec(self, signature_name: str = "") -> Any:
        spec = messages.ModelSpec(
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


def _tensor(value: Any) -> Any:
    if isinstance(value, list):
        return tensor_messages.from_strings(value)
    return tensor_messages.from_array(value)


def _model_server_config(config: Message | str) -> Any:
    if not isinstance(config, str):  # the official message has the same fields
        return messages.ModelServerConfig.FromString(config.SerializeToString())
    try:
        return text_format.Parse(config, messages.ModelServerConfig())
    except text_format.ParseError as error:
        raise ValueError(f"`config` must be a ModelServerConfig: {error}") from error
