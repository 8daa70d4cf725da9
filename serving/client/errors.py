"""Exceptions of the clients: one tree for both transports, with the server's messages.

    ServingError                any other error of the server    500, INTERNAL, ...
    ├── InvalidArgument         the request is wrong             400
    ├── FailedPrecondition      the model lacks the signature    400
    ├── NotFound                no such model or version         404
    ├── Unauthenticated         a gateway requires credentials   401
    ├── PermissionDenied        a gateway denies access          403
    ├── ResourceExhausted       quota, threads or memory used up 429 *
    │   └── MessageTooLarge     larger than a limit              413
    ├── Unimplemented           the server cannot do this        501
    ├── Unavailable             not reached, or overloaded       502, 503 *
    └── DeadlineExceeded        no answer in time                504

The clients retry after those with a star until their deadline, see
`serving.client.async_client`.

TensorFlow Serving answers 400 for an unknown signature over REST and
FAILED_PRECONDITION over gRPC; both raise `FailedPrecondition` here. Failures inside a
model's graph with that code are recognized over gRPC only.
"""

import re
from typing import ClassVar


class ServingError(Exception):
    """The server returned an error, or did not answer.

    Attributes:
        worth_retrying: Whether the same request may succeed a moment later.
    """

    worth_retrying: ClassVar[bool] = False


class InvalidArgument(ServingError):
    """The request is wrong: not an image, a wrong shape or type, an unknown label."""


class FailedPrecondition(ServingError):
    """The loaded model has no such signature."""


class NotFound(ServingError):
    """The model or the version does not exist, or is not available."""


class Unauthenticated(ServingError):
    """A gateway in front of the server got no credentials, or wrong ones."""


class PermissionDenied(ServingError):
    """A gateway in front of the server denies access."""


class ResourceExhausted(ServingError):
    """A quota is used up, or the server's threads or memory."""

    worth_retrying = True


class MessageTooLarge(ResourceExhausted):
    """The request or the answer exceeds a limit of either side."""

    worth_retrying = False


class Unimplemented(ServingError):
    """The server cannot do this, over this transport or at all."""


class Unavailable(ServingError):
    """The server was not reached, disconnected, or is overloaded."""

    worth_retrying = True


class DeadlineExceeded(ServingError):
    """There was no answer in time."""


# Canonical gRPC codes and HTTP statuses; any other is a plain ServingError.
_KINDS: dict[type[ServingError], tuple[str | int, ...]] = {
    InvalidArgument: ("INVALID_ARGUMENT", "OUT_OF_RANGE", 400),
    FailedPrecondition: ("FAILED_PRECONDITION",),
    NotFound: ("NOT_FOUND", 404),
    Unauthenticated: ("UNAUTHENTICATED", 401),
    PermissionDenied: ("PERMISSION_DENIED", 403),
    ResourceExhausted: ("RESOURCE_EXHAUSTED", 429),
    MessageTooLarge: (413,),
    Unimplemented: ("UNIMPLEMENTED", 501),
    Unavailable: ("UNAVAILABLE", 502, 503),
    DeadlineExceeded: ("DEADLINE_EXCEEDED", 504),
}
_KIND_OF = {code: kind for kind, codes in _KINDS.items() for code in codes}


def error_of(code: str | int, message: str) -> ServingError:
    """Create the error of a canonical gRPC code or of an HTTP status from 400."""
    # One code each for gRPC's limits and for quotas, for signatures and for the rest.
    if code == "RESOURCE_EXHAUSTED" and "message larger than max" in message:
        return MessageTooLarge(message)
    if code == 400 and message.startswith("Serving signature name: "):
        return FailedPrecondition(message)
    return _KIND_OF.get(code, ServingError)(_readable(message))


def too_late(where: str, timeout: float) -> DeadlineExceeded:
    """Create the error of a timeout in the client, in seconds, for a server's URL."""
    return DeadlineExceeded(f"no answer from {where} within {timeout:.3g} s")


def _readable(message: str) -> str:
    """A server's message without the nodes of the graph and a failed assertion's form.

    "assertion failed: [No image.] [At index] [0]\\n\\t [[{{node Assert}}]]" becomes "No
    image. At index 0".
    """
    message = re.sub(r"\s*\[\[\{\{.*?\}\}\]\]", "", message, flags=re.DOTALL)
    message = re.sub(r"\{\{\w*node [^}]*\}\}\s*", "", message)
    if match := re.fullmatch(r"assertion failed: \[(.*)\]", message, re.DOTALL):
        return match[1].replace("] [", " ")
    return message
