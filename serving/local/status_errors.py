"""Errors of the local server, each with its canonical status code.

    StatusError             UNKNOWN, or TensorFlow's code
    ├── InvalidArgument     the request is invalid
    ├── NotFound            no such model or version
    ├── FailedPrecondition  right request, wrong moment or wrong signature
    ├── Unimplemented       unimplemented in TensorFlow Serving too
    ├── StartError          the server cannot start; the command ends with 1
    └── UsageError          a flag is invalid; the command ends with 2

REST answers with `StatusError.http_status`, gRPC with the status of that name.
"""

from keras_vit.common import command_line

# In the order of the canonical codes, which are also TensorFlow's error codes.
_CODES = """
    OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS
    PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE
    UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED
"""
CODES = tuple(_CODES.split())

# TensorFlow Serving's table; what is not here is 500.
HTTP_STATUS = {
    "OK": 200,
    "CANCELLED": 499,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "UNAUTHENTICATED": 401,
}


class StatusError(Exception):
    """An error that is reported to the client.

    Args:
        code: name of the canonical status code; default: the class's own.
    """

    code = "UNKNOWN"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    @property
    def http_status(self) -> int:
        """The HTTP status that TensorFlow Serving gives to the code."""
        return HTTP_STATUS.get(self.code, 500)

    def with_code(self) -> str:
        """`CODE: message`, the form in which one error quotes another."""
        return f"{self.code}: {self}"


class InvalidArgument(StatusError):
    """The request is invalid in itself."""

    code = "INVALID_ARGUMENT"


class NotFound(StatusError):
    """The model or the version does not exist, or is not available."""

    code = "NOT_FOUND"


class FailedPrecondition(StatusError):
    """The request does not fit what is loaded."""

    code = "FAILED_PRECONDITION"


class Unimplemented(StatusError):
    """TensorFlow Serving has no such operation."""

    code = "UNIMPLEMENTED"


class StartError(StatusError):
    """The server cannot start."""


class UsageError(StatusError, command_line.UsageError):
    """A flag is not honored here, or has an invalid value."""

    code = "INVALID_ARGUMENT"
