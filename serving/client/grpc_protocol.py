"""TensorFlow Serving's gRPC protocol; imports no TensorFlow."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.message import Message

from . import messages, tensor_messages
from .errors import error_of
from .protocol import Call, Target
from .responses import (
    Metadata,
    TensorInfo,
    VersionStatus,
    read_metadata,
    read_status,
)


class GrpcProtocol:
    """Calls of a model as protocol messages, by the methods of `RestProtocol`."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def status(self) -> Call[list[VersionStatus]]:
        """GetModelStatus."""
        message = messages.GetModelStatusRequest(model_spec=self._spec())
        return Call(message, lambda reply: read_status(_as_json(reply)))

    def metadata(self) -> Call[Metadata]:
        """GetModelMetadata."""
        message = messages.GetModelMetadataRequest(
            model_spec=self._spec(), metadata_field=["signature_def"]
        )
        return Call(message, lambda reply: read_metadata(_as_json(reply)))

    def predict(
        self,
        signature_name: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, TensorInfo],
        as_lists: bool = False,
    ) -> Call[dict[str, Any]]:
        """Predict; the answer names its types itself."""
        message = messages.PredictRequest(
            model_spec=self._spec(signature_name),
            inputs={
                name: tensor_messages.from_values(value)
                for name, value in inputs.items()
            },
        )

        def read(reply: Any) -> dict[str, Any]:
            convert = tensor_messages.to_lists if as_lists else tensor_messages.to_array
            return {
                name: convert(tensor)
                for name, tensor in reply.outputs.items()
                if name in outputs or not as_lists
            }

        return Call(message, read)

    def reload_config(self, config: Message | str) -> Call[None]:
        """HandleReloadConfigRequest, which returns nothing."""
        message = messages.ReloadConfigRequest(config=_model_server_config(config))

        def read(reply: Any) -> None:
            status = _as_json(reply.status)
            if status["error_code"] != "OK":
                raise error_of(status["error_code"], status["error_message"])

        return Call(message, read)

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
    """The message in REST's form, with signatures in place of their `Any`."""
    fields: dict[str, Any] = json_format.MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        descriptor_pool=messages.POOL,
    )
    return fields


def _model_server_config(config: Message | str) -> Any:
    if not isinstance(config, str):  # the official message has the same fields
        return messages.ModelServerConfig.FromString(config.SerializeToString())
    try:
        return text_format.Parse(config, messages.ModelServerConfig())
    except text_format.ParseError as error:
        raise ValueError(f"`config` must be a ModelServerConfig: {error}") from error
