"""Answers about a model: versions and states, signatures.

Protocol messages have the form of REST's JSON after `google.protobuf.json_format`, so
that one function reads the answers of both transports.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# TensorFlow's names of these types cannot be derived from the protocol's.
_FLOATS = {"DT_HALF": "float16", "DT_FLOAT": "float32", "DT_DOUBLE": "float64"}

# TensorFlow's own entry for restoring the variables, which cannot be called.
_INIT_OP = "__saved_model_init_op"


@dataclass(frozen=True)
class VersionStatus:
    """The state of one version of a model.

    Attributes:
        version: Its number.
        state: START, LOADING, AVAILABLE, UNLOADING or END.
        error_code: OK, or the canonical code of the error.
        error_message: "" with OK.
    """

    version: int
    state: str
    error_code: str
    error_message: str


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a signature.

    Attributes:
        dtype: TensorFlow's name of the type, such as "float32" or "string".
        shape: Its dimensions, None for any size; None for any rank.
    """

    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Signature:
    """One way to call a model: its inputs and outputs by name."""

    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]


@dataclass(frozen=True)
class Metadata:
    """The version that answers, and its signatures.

    Attributes:
        model: Name of the model.
        version: Number of the version.
        signatures: By name.
    """

    model: str
    version: int
    signatures: Mapping[str, Signature]


def read_status(answer: Mapping[str, Any]) -> list[VersionStatus]:
    """Read the versions in a GetModelStatusResponse, newest first."""
    versions = [
        VersionStatus(
            version=int(entry["version"]),
            state=entry["state"],
            error_code=entry["status"]["error_code"],
            error_message=entry["status"]["error_message"],
        )
        for entry in answer["model_version_status"]
    ]
    return sorted(versions, key=lambda status: status.version, reverse=True)


def read_metadata(answer: Mapping[str, Any]) -> Metadata:
    """Read the signatures in a GetModelMetadataResponse."""
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    return Metadata(
        model=answer["model_spec"]["name"],
        version=int(answer["model_spec"]["version"]),
        signatures={
            name: _signature(entry)
            for name, entry in signatures.items()
            if name != _INIT_OP
        },
    )


def _signature(entry: Mapping[str, Any]) -> Signature:
    return Signature(
        inputs={name: _tensor(info) for name, info in entry["inputs"].items()},
        outputs={name: _tensor(info) for name, info in entry["outputs"].items()},
    )


def _tensor(info: Mapping[str, Any]) -> TensorInfo:
    name = dtype_name(info["dtype"])
    shape = info.get("tensor_shape")
    if shape is None or shape["unknown_rank"]:
        return TensorInfo(name, None)
    sizes = (int(dimension["size"]) for dimension in shape["dim"])
    return TensorInfo(name, tuple(None if size < 0 else size for size in sizes))


def dtype_name(protocol_name: str) -> str:
    """TensorFlow's name of a type, such as "float32" for DT_FLOAT."""
    plain = protocol_name.removeprefix("DT_").lower()
    return _FLOATS.get(protocol_name, plain)
