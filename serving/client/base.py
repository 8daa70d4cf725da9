"""What both clients do: the methods, deadlines and retries, once for every transport.

The operations are generators. They yield what has to be sent or waited for and are
sent the reply; only `Client._run` and what it calls touch the network and the clock.
A client on asyncio replaces these few lines and shares everything else.

Only `Unavailable` is retried: nothing was reached, or the server sheds load. A call of
a model changes nothing on the server, so asking twice is safe. Every other answer
would be the same the second time.
"""

import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from .answers import (
    Metadata,
    Prediction,
    Signature,
    TensorInfo,
    VersionStatus,
    read_predictions,
)
from .errors import DeadlineExceeded, NotFound, ServingError, Unavailable
from .images import Image, images_bytes
from .protocol import Protocol, Question

if TYPE_CHECKING:
    import numpy as np

# Mean pauses before the second and the third attempt, in seconds.
RETRY_PAUSES = (0.1, 0.3)
# Mean pause between two looks at a server that is starting, in seconds.
READY_PAUSE = 0.25

# What `python -m serving export` writes; no request is needed to know it.
_OUTPUTS = {
    "classes": TensorInfo("string", (None, None)),
    "class_ids": TensorInfo("int64", (None, None)),
    "scores": TensorInfo("float32", (None, None)),
}
_UNKNOWN = Signature(inputs={}, outputs={})

Result = TypeVar("Result")


@dataclass(frozen=True)
class Send:
    """A step of an operation: carry a request, within a time in seconds."""

    request: Any
    timeout: float


@dataclass(frozen=True)
class Pause:
    """A step of an operation: wait, in seconds."""

    seconds: float


Steps = Generator[Send | Pause, Any, Result]


class Client(ABC):
    """A client of one model of one server; safe to share between threads.

    Args:
        protocol: how to ask.
        timeout: seconds for each call, its retries included.
    """

    def __init__(self, protocol: Protocol, timeout: float):
        if not 0 < timeout < math.inf:
            raise ValueError(
                "`timeout` must be a positive number of seconds. "
                f"Received: timeout={timeout}"
            )
        self.timeout = timeout
        self._protocol = protocol
        self._signatures: Mapping[str, Signature] = {}

    def classify(
        self, images: Iterable[Image], top_k: int | None = None
    ) -> list[Prediction]:
        """The best classes of each image, by the signature `serving_default`.

        All images travel in one request, so one bad image fails it.

        Args:
            images: paths, bytes, PIL images or uint8 arrays [H, W, C].
            top_k: keep so many of the K classes that the model answers; None keeps all.

        Returns:
            One prediction for each image, in order.

        Raises:
            ServingError: one of its branches, see `serving.client.errors`.
            OSError, TypeError, ValueError: an image or `top_k` that cannot be used.
        """
        if top_k is not None and top_k < 1:
            raise ValueError(f"`top_k` must be at least 1. Received: top_k={top_k}")
        return self._run(self._classify(images_bytes(images), top_k))

    def predict(
        self, inputs: Mapping[str, Any], signature_name: str = "serving_default"
    ) -> dict[str, "np.ndarray"]:
        """The outputs of any signature.

        The signatures are read from the server on the first call and kept.

        Args:
            inputs: by name; lists, numbers, text, bytes or arrays. They are converted
                to the types of the signature.
            signature_name: which signature of the model.

        Returns:
            Arrays by name, in the types of the signature; strings as bytes in arrays
            of objects.

        Raises:
            ServingError: one of its branches; `InvalidArgument` also for an input that
                does not fit its type.
        """
        return self._run(self._predict(inputs, signature_name))

    def status(self) -> list[VersionStatus]:
        """The versions that the server knows and their states, newest first.

        Raises:
            ServingError: one of its branches.
        """
        return self._run(self._ask(self._protocol.status(), self._deadline()))

    def metadata(self) -> Metadata:
        """The version that answers, and its signatures.

        Raises:
            ServingError: one of its branches.
        """
        return self._run(self._ask(self._protocol.metadata(), self._deadline()))

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Returns as soon as the model can be asked.

        Args:
            timeout: how long to wait at most, in seconds.

        Raises:
            DeadlineExceeded: it was not ready in time; the text ends with the reason.
            ServingError: waiting does not help, as with an unknown label.
        """
        self._run(self._wait_ready(timeout))

    @abstractmethod
    def close(self) -> None:
        """Closes the connections, those of an injected transport too."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _classify(self, images: list[bytes], top_k: int | None) -> Steps:
        if not images:
            return []
        question = self._protocol.predict(
            "serving_default", {"image_bytes": images}, _OUTPUTS
        )
        predictions = question.then(
            lambda outputs: read_predictions(outputs, len(images), top_k)
        )
        return (yield from self._ask(predictions, self._deadline()))

    def _predict(self, inputs: Mapping[str, Any], signature_name: str) -> Steps:
        from .tensors import input_array  # NumPy, see `RestProtocol`

        deadline = self._deadline()
        signature = yield from self._signature(signature_name, deadline)
        arrays = {
            name: input_array(name, value, signature.inputs.get(name))
            for name, value in inputs.items()
        }
        question = self._protocol.predict(signature_name, arrays, signature.outputs)
        return (yield from self._ask(question, deadline))

    def _signature(self, name: str, deadline: float) -> Steps:
        """An unknown name is no error here: the server refuses it in its own words."""
        if name not in self._signatures:
            metadata = yield from self._ask(self._protocol.metadata(), deadline)
            self._signatures = metadata.signatures
        return self._signatures.get(name, _UNKNOWN)

    def _wait_ready(self, timeout: float) -> Steps:
        # Metadata, not status: the status of a model that is still loading is a 200.
        question = self._protocol.metadata()
        deadline = time.monotonic() + timeout
        while True:
            try:
                wait = min(self.timeout, _left(deadline))
                return question.read((yield Send(question.request, wait)))
            except (Unavailable, NotFound, DeadlineExceeded) as error:
                pause = _jittered(READY_PAUSE)
                if pause >= _left(deadline):
                    raise DeadlineExceeded(
                        f"not ready within {timeout:g} s: {error}"
                    ) from error
            yield Pause(pause)

    def _ask(self, question: Question, deadline: float) -> Steps:
        for mean_pause in (*RETRY_PAUSES, math.inf):
            pause = _jittered(mean_pause)
            try:
                reply = yield Send(question.request, _left(deadline))
                return question.read(reply)
            except Unavailable:
                if pause >= _left(deadline):
                    raise
            yield Pause(pause)

    def _deadline(self) -> float:
        return time.monotonic() + self.timeout

    def _run(self, steps: Steps[Result]) -> Result:
        try:
            step = next(steps)
            while True:
                try:
                    reply = self._perform(step)
                except ServingError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as stop:
            return stop.value

    def _perform(self, step: Send | Pause) -> Any:
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        return self._carry(step.request, step.timeout)

    @abstractmethod
    def _carry(self, request: Any, timeout: float) -> Any:
        """The reply to a request; `ServingError` when none came."""


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


def _jittered(mean: float) -> float:
    """Spread by half, so that clients that failed together do not return together."""
    return mean * random.uniform(0.5, 1.5)
