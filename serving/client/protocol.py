"""The calls that every transport supports, apart from the network."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ServingError
from .responses import TensorInfo

# What reading JSON of an unexpected form can raise.
_MISREAD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


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

    Args:
        argument: Its name, for the error message, which shows no value: it may be a
            secret.
        headers: By name.

    Raises:
        ValueError: A name or a value has other characters.
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
class Call:
    """A request in the form of its transport, and how its reply is interpreted."""

    request: Any
    interpret: Callable[[Any], Any]

    def read(self, reply: Any) -> Any:
        """The result in a reply; `ServingError` if it is not in the protocol's form."""
        try:
            return self.interpret(reply)
        except _MISREAD as error:
            raise ServingError(
                f"the answer is not in TensorFlow Serving's form: {error!r}"
            ) from error

    def then(self, convert: Callable[[Any], Any]) -> "Call":
        """The same call, whose result is converted further."""
        return Call(self.request, lambda reply: convert(self.interpret(reply)))


class Protocol(ABC):
    """Builds the calls of one transport."""

    @abstractmethod
    def status(self) -> Call:
        """The versions and their states: a list of `VersionStatus`."""

    @abstractmethod
    def metadata(self) -> Call:
        """The version and its signatures: `Metadata`."""

    @abstractmethod
    def predict(
        self,
        signature_name: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, TensorInfo],
    ) -> Call:
        """The outputs of a signature: arrays by name.

        Args:
            signature_name: Of the model.
            inputs: Arrays, or lists of bytes, by name.
            outputs: Types of the outputs.
        """

    @abstractmethod
    def predict_lists(
        self,
        signature_name: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, TensorInfo],
    ) -> Call:
        """`predict`, with nested lists of strings, float32 and int64 for arrays."""
