"""Errors of the clients: one tree for both transports, in the server's words.

    ServingError                any other error of the server    500, INTERNAL, ...
    ├── InvalidArgument         the request is wrong             400
    ├── FailedPrecondition      the model lacks the signature    400
    ├── NotFound                no such model or version         404
    ├── Unauthenticated         a gateway wants to know who asks 401
    ├── PermissionDenied        a gateway does not allow it      403
    ├── ResourceExhausted       over a quota, or out of threads  429 *
    │   └── MessageTooLarge     larger than a limit              413
    ├── Unimplemented           the server cannot do this        501
    ├── Unavailable             not reached, or overloaded       502, 503 *
    └── DeadlineExceeded        no answer in time                504

The clients ask again after those with a star until their deadline, see
`serving.client.base_client`.

TensorFlow Serving answers 400 for an unknown signature over REST and
FAILED_PRECONDITION over gRPC; both raise `FailedPrecondition` here. Failures inside a
model's graph with that code are told apart over gRPC only.
"""

from typing import ClassVar


class ServingError(Exception):
    """The server answered with an error, or did not answer; the text says which.

    Attributes:
        worth_retrying: whether the same request may succeed a moment later.
    """

    worth_retrying: ClassVar[bool] = False


class InvalidArgument(ServingError):
    """The request is wrong: no image, a wrong shape or type, an unknown label."""


class FailedPrecondition(ServingError):
    """The request does not fit the loaded model: it has no such signature."""


class NotFound(ServingError):
    """The model or the version does not exist, or is not available."""


class Unauthenticated(ServingError):
    """A gateway before the server got no credentials, or wrong ones."""


class PermissionDenied(ServingError):
    """A gateway before the server does not allow this."""


class ResourceExhausted(ServingError):
    """A quota is used up, or the server's threads or memory."""

    worth_retrying = True


class MessageTooLarge(ResourceExhausted):
    """The request or the answer is larger than a limit of either side."""

    worth_retrying = False


class Unimplemented(ServingError):
    """The server cannot do this, over this transport or at all."""


class Unavailable(ServingError):
    """The server was not reached, hung up, or has no room for the request."""

    worth_retrying = True


class DeadlineExceeded(ServingError):
    """There was no answer in time."""


# The canonical names of gRPC; what is not here is a plain ServingError.
OF_CODE: dict[str, type[ServingError]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "OUT_OF_RANGE": InvalidArgument,
    "FAILED_PRECONDITION": FailedPrecondition,
    "NOT_FOUND": NotFound,
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
    "RESOURCE_EXHAUSTED": ResourceExhausted,
    "UNIMPLEMENTED": Unimplemented,
    "UNAVAILABLE": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
}

OF_HTTP_STATUS: dict[int, type[ServingError]] = {
    400: InvalidArgument,
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    413: MessageTooLarge,
    429: ResourceExhausted,
    501: Unimplemented,
    502: Unavailable,
    503: Unavailable,
    504: DeadlineExceeded,
}


def from_code(code: str, message: str) -> ServingError:
    """The error of a gRPC status.

    Args:
        code: name of the canonical code, such as "NOT_FOUND".
        message: the details of the status; they tell gRPC's own limits on messages
            from the server's quotas.
    """
    if code == "RESOURCE_EXHAUSTED" and "message larger than max" in message:
        return MessageTooLarge(message)
    return OF_CODE.get(code, ServingError)(message)


def from_http_status(status: int, message: str) -> ServingError:
    """The error of an HTTP status.

    Args:
        status: 400 or above.
        message: the text of the answer; it tells an unknown signature from other 400s.
    """
    if status == 400 and message.startswith("Serving signature name: "):
        return FailedPrecondition(message)
    return OF_HTTP_STATUS.get(status, ServingError)(message)


def too_late(where: str, timeout: float) -> DeadlineExceeded:
    """The error of a client that gave up waiting.

    Args:
        where: URL or address of the server.
        timeout: what it waited, in seconds.
    """
    return DeadlineExceeded(f"no answer from {where} within {timeout:.3g} s")
