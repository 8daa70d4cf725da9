"""The methods of the asyncio clients.

A request is retried until its deadline, but only after an error whose class is
`worth_retrying`: the server was not reached, or is overloaded. Every other answer would
be the same the second time.
"""

import asyncio
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from .base_client import BaseClient
from .errors import InvalidArgument, MessageTooLarge, ServingError
from .image_encoding import Image, encode_images, in_batches, unusable
from .image_signatures import (
    ATTENTION,
    EMBED,
    Attention,
    Exported,
    Prediction,
    classification,
)
from .protocol import MISREAD, Call, Result
from .responses import Metadata, VersionStatus
from .retries import ReadinessPolling, Retries
from .tasks import in_order, in_thread

if TYPE_CHECKING:
    import numpy as np


class AsyncClient(BaseClient, ABC):
    """The methods of an asyncio client.

    Every method raises `ServingError`, see `serving.client.errors`; those that take
    images also raise OSError, TypeError or ValueError for one that cannot be used.
    """

    async def classify(
        self, images: Iterable[Image], top_k: int | None = None
    ) -> list[Prediction]:
        """Classify images by the signature `serving_default`.

        All images are sent in one request, so one bad image fails it.

        Args:
            images: Paths, bytes, PIL images or uint8 arrays [H, W, C], or one array
                [N, H, W, C].
            top_k: Classes to keep of the K that the model returns; None keeps all.

        Returns:
            One prediction for each image, in order.
        """
        return await self._ask_exported(images, classification(top_k))

    async def embed(self, images: Iterable[Image]) -> "np.ndarray":
        """Compute the classifier's input for each image, by the signature `embed`.

        Args:
            images: As for `classify`.

        Returns:
            float32 [N, D]; [0, 0] for no images.
        """
        return await self._ask_exported(images, EMBED)

    async def attention(self, images: Iterable[Image]) -> list[Attention]:
        """Compute the attention rollout of each image, by the signature `attention`.

        Models without full attention have none: `FailedPrecondition`.

        Args:
            images: As for `classify`.

        Returns:
            One map for each image, in order.
        """
        return await self._ask_exported(images, ATTENTION)

    def classify_many(
        self,
        images: Iterable[Image],
        top_k: int | None = None,
        *,
        batch_size: int = 1,
        concurrency: int = 8,
    ) -> AsyncIterator[tuple[int, Prediction | ServingError]]:
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
        """
        return self._stream(images, classification(top_k), batch_size, concurrency)

    def embed_many(
        self, images: Iterable[Image], *, batch_size: int = 1, concurrency: int = 8
    ) -> AsyncIterator[tuple[int, "np.ndarray | ServingError"]]:
        """Embed any number of images: (index, float32 [D]), as `classify_many`."""
        return self._stream(images, EMBED, batch_size, concurrency)

    def attention_many(
        self, images: Iterable[Image], *, batch_size: int = 1, concurrency: int = 8
    ) -> AsyncIterator[tuple[int, Attention | ServingError]]:
        """Attention of any number of images: (index, map), as `classify_many`."""
        return self._stream(images, ATTENTION, batch_size, concurrency)

    async def predict(
        self, inputs: Mapping[str, Any], signature_name: str = "serving_default"
    ) -> dict[str, "np.ndarray"]:
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
            InvalidArgument: Also for an input that does not fit its type.
        """
        retries = Retries(self.timeout)
        try:
            if signature_name not in self._signatures:
                metadata = await self._ask(self.protocol.metadata(), retries)
                self._signatures = metadata.signatures
            call = self._predict_call(signature_name, inputs)
            return await self._ask(call, retries)
        except ServingError:
            self._signatures = {}
            raise

    async def status(self) -> list[VersionStatus]:
        """List the versions that the server knows and their states, newest first."""
        return await self._ask(self.protocol.status())

    async def metadata(self) -> Metadata:
        """Read the version that answers, and its signatures."""
        return await self._ask(self.protocol.metadata())

    async def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the model answers.

        Args:
            timeout: In seconds.

        Raises:
            DeadlineExceeded: It was not ready in time; the message ends with the
                reason.
            ServingError: Waiting does not help, as with an unknown label.
        """
        # Metadata, not status: the status of a model that is still loading is a 200.
        await self._ask(self.protocol.metadata(), ReadinessPolling(timeout))

    async def ask_once(self, call: Call[Result]) -> Result:
        """Send a prepared call without retries, as a load generator does.

        Args:
            call: Built by `protocol`.
        """
        return await self._send(call, time.monotonic() + self.timeout)

    async def close(self) -> None:
        """Close the connections, those of an injected transport too."""
        self._closed = True
        await self._disconnect()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def _stream(
        self,
        images: Iterable[Image],
        exported: Exported[Any],
        batch_size: int,
        concurrency: int,
    ) -> AsyncIterator[tuple[int, Any]]:
        batches = in_batches(images, batch_size, concurrency)
        ask = functools.partial(self._ask_each, exported=exported)
        return in_order(ask, batches, concurrency)

    async def _ask_each(
        self, images: list[Image], exported: Exported[Any]
    ) -> list[Any]:
        """The result or the error of each image of a request."""
        try:
            contents = await in_thread(encode_images, images)
        except (OSError, TypeError, ValueError) as error:
            if len(images) == 1:
                return [unusable(error)]
        else:
            try:
                return list(await self._ask_encoded(contents, exported))
            except ServingError as error:
                one_may_be_bad = isinstance(error, InvalidArgument | MessageTooLarge)
                if len(images) == 1 or not one_may_be_bad:
                    return [error] * len(images)
        results = []
        for image in images:
            results += await self._ask_each([image], exported)
        return results

    async def _ask_exported(
        self, images: Iterable[Image], exported: Exported[Result]
    ) -> Result:
        contents = await in_thread(encode_images, images)
        return await self._ask_encoded(contents, exported)

    async def _ask_encoded(
        self, contents: list[bytes], exported: Exported[Result]
    ) -> Result:
        if not contents:
            return exported.empty()
        call = exported.call(self.protocol, contents)
        return await self._ask(call)

    async def _ask(self, call: Call[Result], retries: Retries | None = None) -> Result:
        retries = retries or Retries(self.timeout)
        while True:
            try:
                deadline = min(retries.deadline, time.monotonic() + self.timeout)
                return await self._send(call, deadline)
            except ServingError as error:
                pause = retries.pause_after(error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def _send(self, call: Call[Result], deadline: float) -> Result:
        timeout = max(deadline - time.monotonic(), 0.001)  # 0 may mean none
        try:
            reply = await self._transmit(call.request, timeout)
        except Exception as error:
            if self._closed:
                raise ServingError("the client is closed") from error
            raise
        try:
            return call.read(reply)
        except MISREAD as error:
            raise ServingError(
                f"the answer is not in TensorFlow Serving's form: {error!r}"
            ) from error

    @abstractmethod
    async def _transmit(self, request: Any, timeout: float) -> Any:
        """Send a request and wait for its reply; `ServingError` without one."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Close the connections."""
