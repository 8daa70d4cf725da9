"""What both transports share: which model is called, and a call apart from the network.

`RestProtocol` and `GrpcProtocol` build the calls.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")

# What reading JSON of an unexpected form can raise.
MISREAD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class Target:
    """A model, and one of its versions: by number, by label, or the newest."""

    model: str
    version: int | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("`model` must be the name of a model. Received: ''")
        if self.version is not None and self.label is not None:
            raise ValueError(
                "Only one of `version` and `label` can be given. "
                f"Received: version={self.version}, label={self.label!r}"
            )


def checked_headers(argument: str, headers: Mapping[str, str] | None) -> dict[str, str]:
    """Check that both transports can carry headers, and lower-case their names.

    The ValueError names the argument and shows no value: it may be a secret.
    """
    checked = {name.lower(): value for name, value in (headers or {}).items()}
    for name, value in checked.items():
        known = re.fullmatch(r"[a-z0-9_.-]+", name) and not name.endswith("-bin")
        if not known or not value.isascii() or not value.isprintable():
            raise ValueError(
                f"`{argument}` must have names of letters, digits, `_`, `.` and `-`, "
                f"and values of printable ASCII. Received: one named {name!r}"
            )
    return checked


@dataclass(frozen=True)
class Call(Generic[Result]):
    """A request in the form of its transport, and how its reply is read.

    `read` raises `ServingError`, or one of `MISREAD`.
    """

    request: Any
    read: Callable[[Any], Result]
