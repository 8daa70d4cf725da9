"""TensorFlow Serving's messages, of which `protos/` has what the clients use.

They are built from the compiled files (`make protos`), in a pool of their own: they
need no TensorFlow, work with any release of protobuf, and do not collide with the
official ones in the same process.
"""

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

POOL = descriptor_pool.DescriptorPool()


def _load() -> None:
    content = resources.files(__package__).joinpath("messages.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
        POOL.Add(file)


def _message(name: str) -> Any:
    descriptor = POOL.FindMessageTypeByName(f"tensorflow.{name}")
    return message_factory.GetMessageClass(descriptor)


_load()
TensorProto = _message("TensorProto")
ModelSpec = _message("serving.ModelSpec")
PredictRequest = _message("serving.PredictRequest")
PredictResponse = _message("serving.PredictResponse")
GetModelMetadataRequest = _message("serving.GetModelMetadataRequest")
GetModelMetadataResponse = _message("serving.GetModelMetadataResponse")
GetModelStatusRequest = _message("serving.GetModelStatusRequest")
GetModelStatusResponse = _message("serving.GetModelStatusResponse")
ModelServerConfig = _message("serving.ModelServerConfig")
ReloadConfigRequest = _message("serving.ReloadConfigRequest")
ReloadConfigResponse = _message("serving.ReloadConfigResponse")

# The method of `tensorflow.serving` for each request, and the type of its answer.
METHODS = {
    GetModelStatusRequest: ("ModelService/GetModelStatus", GetModelStatusResponse),
    GetModelMetadataRequest: (
        "PredictionService/GetModelMetadata",
        GetModelMetadataResponse,
    ),
    PredictRequest: ("PredictionService/Predict", PredictResponse),
    ReloadConfigRequest: (
        "ModelService/HandleReloadConfigRequest",
        ReloadConfigResponse,
    ),
}
