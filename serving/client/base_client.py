"""The base class of all clients, whose methods `serving.client.steps` explains.

A request is retried until its deadline, but only after an error whose class is
`worth_retrying`: the server was not reached, or is overloaded. Every other answer would
be the same the second time.
"""

import functools
import math
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .concurrent_images import in_order
from .errors import DeadlineExceeded, NotFound, ServingError, Unavailable
from .image_encoding import Image, encode_images
from .image_signatures import ATTENTION, CLASSIFY, EMBED, Exported
from .protocol import Call, Protocol
from .responses import Attention, Metadata, Prediction, Signature, VersionStatus
from .retries import jittered, pauses, seconds_left
from .steps import Flow, Pause, Send, Steps, Work, operation, stream

if TYPE_CHECKING:
    import numpy as np

# Readiness polling interval, in seconds.
READY_PAUSE = 0.25

Result = TypeVar("Result")

_UNKNOWN = Signature(inputs={}, outputs={})


class BaseClient:
    """The methods of a client for one model on one server.

    On an asyncio client, the methods return coroutines and the streams asynchronous
    iterators.

    Args:
        protocol: Builds the requests and reads the replies.
        timeout: Seconds for each call, its retries included.
    """

    def __init__(self, protocol: Protocol, timeout: float):
        if not 0 < timeout < math.inf:
            raise ValueError(
                "`timeout` must be a positive number of seconds. "
                f"Received: timeout={timeout}"
            )
        self.timeout = timeout
        self.protocol = protocol
        self._signatures: Mapping[str, Signature] = {}
        self._closed = False

    @operation
    def classify(
        self, images: Iterable[Image], top_k: int | None = None
    ) -> Steps[list[Prediction]]:
        """Classify images by the signature `serving_default`.

        All images are sent in one request, so one bad image fails it.

        Args:
            images: Paths, bytes, PIL images or uint8 arrays [H, W, C], or one array
                [N, H, W, C].
            top_k: Classes to keep of the K that the model returns; None keeps all.

        Returns:
            One prediction for each image, in order.

        Raises:
            ServingError: One of its subclasses, see `serving.client.errors`.
            OSError, TypeError, ValueError: An image or `top_k` that cannot be used.
        """
        _check_top_k(top_k)
        contents = yield from _read_all(images)
        return (yield from self._classify(contents, top_k))

    @operation
    def embed(self, images: Iterable[Image]) -> Steps["np.ndarray"]:
        """Compute the classifier's input for each image, by the signature `embed`.

        Args:
            images: As for `classify`.

        Returns:
            float32 [N, D]; [0, 0] for no images.

        Raises:
            ServingError, OSError, TypeError, ValueError: as `classify`.
        """
        contents = yield from _read_all(images)
        return (yield from self._call_exported(contents, EMBED))

    @operation
    def attention(self, images: Iterable[Image]) -> Steps[list[Attention]]:
        """Compute the attention rollout of each image, by the signature `attention`.

        Args:
            images: As for `classify`.

        Returns:
            One map for each image, in order.

        Raises:
            ServingError, OSError, TypeError, ValueError: As `classify`. Models without
                full attention have no such signature: `FailedPrecondition`.
        """
        contents = yield from _read_all(images)
        return (yield from self._call_exported(contents, ATTENTION))

    @stream
    def classify_many(
        self,
        images: Iterable[Image],
        top_k: int | None = None,
        *,
        batch_size: int = 1,
        concurrency: int = 8,
    ) -> Flow[Prediction]:
        """Classify any number of images by concurrent requests.

        A bad image fails alone: the others of its request are sent again, each in a
        request of its own.

        Args:
            images: An iterable of images as for `classify`, read lazily.
            top_k: As for `classify`.
            batch_size: Images in one request.
            concurrency: Concurrent requests; `batch_size` times as many images are held
                in memory.

        Yields:
            (index, prediction), or (index, `ServingError`), in the order of the images.

        Raises:
            TypeError, ValueError: An argument that cannot be used.
        """
        _check_top_k(top_k)
        ask = functools.partial(self._classify, top_k=top_k)
        return in_order(ask, images, batch_size, concurrency)

    @stream
    def embed_many(
        self, images: Iterable[Image], *, batch_size: int = 1, concurrency: int = 8
    ) -> Flow["np.ndarray"]:
        """Embed any number of images: (index, float32 [D]), as `classify_many`."""
        ask = functools.partial(self._call_exported, exported=EMBED)
        return in_order(ask, images, batch_size, concurrency)

    @stream
    def attention_many(
        self, images: Iterable[Image], *, batch_size: int = 1, concurrency: int = 8
    ) -> Flow[Attention]:
        """Attention of any number of images: (index, map), as `classify_many`."""
        ask = functools.partial(self._call_exported, exported=ATTENTION)
        return in_order(ask, images, batch_size, concurrency)

    @operation
    def predict(
        self, inputs: Mapping[str, Any], signature_name: str = "serving_default"
    ) -> Steps[dict[str, "np.ndarray"]]:
        """Compute the outputs of any signature.

        The signatures are read from the server on the first call and cached until a
        call fails: the server may have loaded another version of the model.

        Args:
            inputs: By name; lists, numbers, text, bytes or arrays. They are converted
                to the types of the signature.
            signature_name: Of the model.

        Returns:
            Arrays by name, in the types of the signature; strings as bytes in arrays
            of objects.

        Raises:
            ServingError: One of its subclasses; `InvalidArgument` also for an input
                that does not fit its type.
        """
        from .tensors import input_array  # NumPy: as long to import as httpx2

        deadline = self._deadline()
        try:
            signature = yield from self._signature(signature_name, deadline)
            arrays = {
                name: input_array(name, value, signature.inputs.get(name))
                for name, value in inputs.items()
            }
            call = self.protocol.predict(signature_name, arrays, signature.outputs)
            return (yield from self._ask(call, deadline))
        except ServingError:
            self._signatures = {}
            raise

    @operation
    def status(self) -> Steps[list[VersionStatus]]:
        """List the versions that the server knows and their states, newest first.

        Raises:
            ServingError: One of its subclasses.
        """
        return (yield from self._ask(self.protocol.status(), self._deadline()))

    @operation
    def metadata(self) -> Steps[Metadata]:
        """Read the version that answers, and its signatures.

        Raises:
            ServingError: One of its subclasses.
        """
        return (yield from self._ask(self.protocol.metadata(), self._deadline()))

    @operation
    def wait_ready(self, timeout: float = 60.0) -> Steps[None]:
        """Wait until the model answers.

        Args:
            timeout: In seconds.

        Raises:
            DeadlineExceeded: It was not ready in time; the message ends with the
                reason.
            ServingError: Waiting does not help, as with an unknown label.
        """
        # Metadata, not status: the status of a model that is still loading is a 200.
        call = self.protocol.metadata()
        deadline = time.monotonic() + timeout
        reason: ServingError | None = None
        while True:
            try:
                wait = min(self.timeout, seconds_left(deadline))
                yield from self._send(call, wait)
                return
            except (Unavailable, NotFound, DeadlineExceeded) as error:
                # What the server said explains more than the silence at the end.
                if reason is None or not isinstance(error, DeadlineExceeded):
                    reason = error
                pause = jittered(READY_PAUSE)
                if pause >= seconds_left(deadline):
                    raise DeadlineExceeded(
                        f"not ready within {timeout:g} s: {reason}"
                    ) from reason
            yield Pause(pause)

    @operation
    def ask_once(self, call: Call) -> Steps[Any]:
        """Send a prepared call without retries, as a load generator does.

        Args:
            call: Built by `protocol`.

        Raises:
            ServingError: One of its subclasses.
        """
        return (yield from self._send(call, self.timeout))

    def _classify(
        self, images: list[bytes], top_k: int | None
    ) -> Steps[list[Prediction]]:
        predictions = yield from self._call_exported(images, CLASSIFY)
        return [prediction.best(top_k) for prediction in predictions]

    def _call_exported(
        self, images: list[bytes], exported: Exported[Result]
    ) -> Steps[Result]:
        if not images:
            return exported.empty()
        protocol = self.protocol
        predict = protocol.predict_lists if exported.as_lists else protocol.predict
        call = predict(
            exported.signature_name, {"image_bytes": images}, exported.outputs
        ).then(lambda outputs: exported.read(outputs, len(images)))
        return (yield from self._ask(call, self._deadline()))

    def _signature(self, name: str, deadline: float) -> Steps[Signature]:
        """An unknown name is left to the server, which refuses it in its own words."""
        if name not in self._signatures:
            metadata = yield from self._ask(self.protocol.metadata(), deadline)
            self._signatures = metadata.signatures
        return self._signatures.get(name, _UNKNOWN)

    def _ask(self, call: Call, deadline: float) -> Steps[Any]:
        further = pauses(deadline)
        refused: ServingError | None = None
        while True:
            try:
                return (yield from self._send(call, seconds_left(deadline)))
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

    def _send(self, call: Call, timeout: float) -> Steps[Any]:
        try:
            reply = yield Send(call.request, timeout)
        except Exception as error:
            if self._closed:
                raise ServingError("the client is closed") from error
            raise
        return call.read(reply)

    def _deadline(self) -> float:
        return time.monotonic() + self.timeout


def _read_all(images: Iterable[Image]) -> Steps[list[bytes]]:
    return (yield Work(lambda: encode_images(images)))


def _check_top_k(top_k: int | None) -> None:
    if top_k is not None and top_k < 1:
        raise ValueError(f"`top_k` must be at least 1. Received: top_k={top_k}")
