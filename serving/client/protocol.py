"""What every transport must be able to ask, apart from how it is carried."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ServingError
from .responses import TensorInfo

# What reading a JSON of any other form can end in.
_MISREAD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class Target:
    """Which model, and which of its versions: a number, a label, or the newest."""

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
    """Headers that both transports can carry, their names in lower case.

    Args:
        argument: its name, for the message, which tells no value: it may be a secret.
        headers: by name.

    Raises:
        ValueError: a name or a value has other characters.
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
class Question:
    """A request in the form of its transport, and how its reply is interpreted."""

    request: Any
    interpret: Callable[[Any], Any]

    def read(self, reply: Any) -> Any:
        """The result in a reply; `ServingError` for what no such server answers."""
        try:
            return self.interpret(reply)
        except _MISREAD as error:
            raise ServingError(
                f"the answer is not in TensorFlow Serving's form: {error!r}"
            ) from error

    def then(self, convert: Callable[[Any], Any]) -> "Question":
        """The same question with a further step of interpretation."""
        return Question(self.request, lambda reply: convert(self.interpret(reply)))


class Protocol(ABC):
    """How one transport asks each question; no network here."""

    @abstractmethod
    def status(self) -> Question:
        """Asks for the versions: a list of `VersionStatus`."""

    @abstractmethod
    def metadata(self) -> Question:
        """Asks for the signatures: `Metadata`."""

    @abstractmethod
    def predict(
        self,
        signature_name: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, TensorInfo],
    ) -> Question:
        """Asks for outputs: arrays by name.

        Args:
            signature_name: which signature of the model.
            inputs: arrays, or lists of bytes, by name.
            outputs: what the answer will hold.
        """
