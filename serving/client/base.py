"""The methods of every client, written once as operations: see `serving.client.steps`.

A request is sent again until its deadline, but only after an error whose class says
that this is `worth_retrying`: nothing was reached, or the server has no room at the
moment. Every other answer would be the same the second time.
"""

import functools
import math
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .concurrent_images import in_order
from .errors import DeadlineExceeded, NotFound, ServingError, Unavailable
from .image_signatures import ATTENTION, CLASSIFY, EMBED, Exported
from .images import Image, images_bytes
from .protocol import Protocol, Question
from .responses import Attention, Metadata, Prediction, Signature, VersionStatus
from .retries import jittered, pauses, seconds_left
from .steps import Flow, Pause, Send, Steps, Work, operation, stream

if TYPE_CHECKING:
    import numpy as np

# Mean pause between two looks at a server that is starting, in seconds.
READY_PAUSE = 0.25

Result = TypeVar("Result")

_UNKNOWN = Signature(inputs={}, outputs={})


class Operations:
    """The methods of a client of one model of one server.

    On a client for asyncio, the methods return coroutines and the streams asynchronous
    iterators.

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
        self._closed = False

    @operation
    def classify(
        self, images: Iterable[Image], top_k: int | None = None
    ) -> Steps[list[Prediction]]:
        """The best classes of each image, by the signature `serving_default`.

        All images travel in one request, so one bad image fails it.

        Args:
            images: paths, bytes, PIL images or uint8 arrays [H, W, C], or one array
                [N, H, W, C].
            top_k: keep so many of the K classes that the model answers; None keeps all.

        Returns:
            One prediction for each image, in order.

        Raises:
            ServingError: one of its branches, see `serving.client.errors`.
            OSError, TypeError, ValueError: an image or `top_k` that cannot be used.
        """
        _check_top_k(top_k)
        contents = yield from _read_all(images)
        return (yield from self._classify(contents, top_k))

    @operation
    def embed(self, images: Iterable[Image]) -> Steps["np.ndarray"]:
        """What the classifier reads of each image, by the signature `embed`.

        Args:
            images: as for `classify`.

        Returns:
            float32 [N, D]; [0, 0] for no images.

        Raises:
            ServingError, OSError, TypeError, ValueError: as `classify`.
        """
        contents = yield from _read_all(images)
        return (yield from self._about(contents, EMBED))

    @operation
    def attention(self, images: Iterable[Image]) -> Steps[list[Attention]]:
        """Where the model looked in each image, by the signature `attention`.

        Args:
            images: as for `classify`.

        Returns:
            One map for each image, in order.

        Raises:
            ServingError, OSError, TypeError, ValueError: as `classify`. Models without
                full attention have no such signature: `FailedPrecondition`.
        """
        contents = yield from _read_all(images)
        return (yield from self._about(contents, ATTENTION))

    @stream
    def classify_many(
        self,
        images: Iterable[Image],
        top_k: int | None = None,
        *,
        batch_size: int = 1,
        concurrency: int = 8,
    ) -> Flow[Prediction]:
        """Classifies any number of images, several requests at a time.

        A bad image fails alone; where it made others fail, they are asked again, each
        in a request of its own.

        Args:
            images: an iterable of images as for `classify`, read only as far as needed.
            top_k: as for `classify`.
            batch_size: images in one request.
            concurrency: requests at once; so many times `batch_size` images are held.

        Yields:
            (index, prediction), or (index, `ServingError`), in the order of the images.

        Raises:
            TypeError, ValueError: an argument that cannot be used.
        """
        _check_top_k(top_k)
        ask = functools.partial(self._classify, top_k=top_k)
        return in_order(ask, images, batch_size, concurrency)

    @stream
    def embed_many(
        self, images: Iterable[Image], *, batch_size: int = 1, concurrency: int = 8
    ) -> Flow["np.ndarray"]:
        """Embeds any number of images: (index, float32 [D]), as `classify_many`."""
        ask = functools.partial(self._about, exported=EMBED)
        return in_order(ask, images, batch_size, concurrency)

    @stream
    def attention_many(
        self, images: Iterable[Image], *, batch_size: int = 1, concurrency: int = 8
    ) -> Flow[Attention]:
        """Attention of any number of images: (index, map), as `classify_many`."""
        ask = functools.partial(self._about, exported=ATTENTION)
        return in_order(ask, images, batch_size, concurrency)

    @operation
    def predict(
        self, inputs: Mapping[str, Any], signature_name: str = "serving_default"
    ) -> Steps[dict[str, "np.ndarray"]]:
        """The outputs of any signature.

        The signatures are read from the server on the first call and kept until a call
        fails: the server may have got another version of the model.

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
        from .tensors import input_array  # NumPy: as long to import as httpx2

        deadline = self._deadline()
        try:
            signature = yield from self._signature(signature_name, deadline)
            arrays = {
                name: input_array(name, value, signature.inputs.get(name))
                for name, value in inputs.items()
            }
            question = self._protocol.predict(signature_name, arrays, signature.outputs)
            return (yield from self._ask(question, deadline))
        except ServingError:
            self._signatures = {}
            raise

    @operation
    def status(self) -> Steps[list[VersionStatus]]:
        """The versions that the server knows and their states, newest first.

        Raises:
            ServingError: one of its branches.
        """
        return (yield from self._ask(self._protocol.status(), self._deadline()))

    @operation
    def metadata(self) -> Steps[Metadata]:
        """The version that answers, and its signatures.

        Raises:
            ServingError: one of its branches.
        """
        return (yield from self._ask(self._protocol.metadata(), self._deadline()))

    @operation
    def wait_ready(self, timeout: float = 60.0) -> Steps[None]:
        """Returns as soon as the model can be asked.

        Args:
            timeout: how long to wait at most, in seconds.

        Raises:
            DeadlineExceeded: it was not ready in time; the text ends with the reason.
            ServingError: waiting does not help, as with an unknown label.
        """
        # Metadata, not status: the status of a model that is still loading is a 200.
        question = self._protocol.metadata()
        deadline = time.monotonic() + timeout
        while True:
            try:
                wait = min(self.timeout, seconds_left(deadline))
                yield from self._send(question, wait)
                return
            except (Unavailable, NotFound, DeadlineExceeded) as error:
                pause = jittered(READY_PAUSE)
                if pause >= seconds_left(deadline):
                    raise DeadlineExceeded(
                        f"not ready within {timeout:g} s: {error}"
                    ) from error
            yield Pause(pause)

    def _classify(
        self, images: list[bytes], top_k: int | None
    ) -> Steps[list[Prediction]]:
        predictions = yield from self._about(images, CLASSIFY)
        return [prediction.best(top_k) for prediction in predictions]

    def _about(self, images: list[bytes], exported: Exported[Result]) -> Steps[Result]:
        if not images:
            from .tensors import empty_arrays

            return exported.read(empty_arrays(exported.outputs), 0)
        question = self._protocol.predict(
            exported.signature_name, {"image_bytes": images}, exported.outputs
        ).then(lambda outputs: exported.read(outputs, len(images)))
        return (yield from self._ask(question, self._deadline()))

    def _signature(self, name: str, deadline: float) -> Steps[Signature]:
        """An unknown name is no error here: the server refuses it in its own words."""
        if name not in self._signatures:
            metadata = yield from self._ask(self._protocol.metadata(), deadline)
            self._signatures = metadata.signatures
        return self._signatures.get(name, _UNKNOWN)

    def _ask(self, question: Question, deadline: float) -> Steps[Any]:
        further = pauses(deadline)
        refused: ServingError | None = None
        while True:
            try:
                return (yield from self._send(question, seconds_left(deadline)))
            except DeadlineExceeded as error:
                if refused is None:
                    raise
                raise DeadlineExceeded(f"{error}; before that: {refused}") from refused
            except ServingError as error:
                if not error.worth_retrying:
                    raise
                pause = next(further, None)
                if pause is None:
                    raise
                refused = error
            yield Pause(pause)

    def _send(self, question: Question, timeout: float) -> Steps[Any]:
        try:
            reply = yield Send(question.request, timeout)
        except Exception as error:
            if self._closed:
                raise ServingError("the client is closed") from error
            raise
        return question.read(reply)

    def _deadline(self) -> float:
        return time.monotonic() + self.timeout


def _read_all(images: Iterable[Image]) -> Steps[list[bytes]]:
    return (yield Work(lambda: images_bytes(images)))


def _check_top_k(top_k: int | None) -> None:
    if top_k is not None and top_k < 1:
        raise ValueError(f"`top_k` must be at least 1. Received: top_k={top_k}")
