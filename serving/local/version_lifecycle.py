"""Lifecycle of one version: START, LOADING, AVAILABLE, UNLOADING, END."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from tensorflow_serving.apis.get_model_status_pb2 import ModelVersionStatus

from .session import LoadedModel
from .status_errors import CODES, StatusError

logger = logging.getLogger(__name__)
State = ModelVersionStatus  # START, LOADING, AVAILABLE, UNLOADING, END


class Version:
    """A version of a model, loaded or not.

    Attributes:
        error: why the last attempt to load failed, if it did.
        wanted: False once the version is gone from the disk or from the policy; only
            then may a failed version be tried again.
    """

    def __init__(self, name: str, number: int, load: Callable[[], LoadedModel]) -> None:
        self.name = name
        self.number = number
        self.state = State.START
        self.error: StatusError | None = None
        self.wanted = True
        self._load = load
        self._lock = threading.Lock()
        self._model: LoadedModel | None = None
        self._users = 0
        self._attempts = 0
        self._next_attempt = time.monotonic()

    @property
    def next_attempt(self) -> float | None:
        """When to try to load, in `time.monotonic` seconds; None: not again."""
        trying = self.state in (State.START, State.LOADING)
        return self._next_attempt if trying else None

    def attempt(self, retries: int, interval: float) -> None:
        """Try once to load; up to `retries` further attempts, `interval` s apart."""
        self.state = State.LOADING
        logger.info("loading %s version %d", self.name, self.number)
        self._attempts += 1
        try:
            self._model = self._load()
        except StatusError as error:
            self._failed(error, retries, interval)
            return
        except Exception as error:  # an unforeseen folder must not end the server
            logger.exception("cannot load %s version %d", self.name, self.number)
            self._failed(StatusError(repr(error), "INTERNAL"), retries, interval)
            return
        self.error = None
        self.state = State.AVAILABLE
        logger.info("serving %s version %d", self.name, self.number)

    def _failed(self, error: StatusError, retries: int, interval: float) -> None:
        self.error = error
        self._next_attempt = time.monotonic() + interval
        if self._attempts > retries:
            self.state = State.END

    @contextlib.contextmanager
    def in_use(self) -> Iterator[LoadedModel | None]:
        """The model, kept loaded during the block; None if it is not available."""
        with self._lock:
            model = self._model if self.state == State.AVAILABLE else None
            self._users += 1
        try:
            yield model
        finally:
            with self._lock:
                self._users -= 1
                self._close_if_unused()

    def unload(self) -> None:
        """Take the version out of service; its last user closes it."""
        with self._lock:
            self.state = State.UNLOADING
            self._close_if_unused()

    def close(self) -> None:
        """Free the version at once, even if it is in use."""
        with self._lock:
            self.state = State.UNLOADING
            self._users = 0
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self.state != State.UNLOADING or self._users:
            return
        self.state = State.END
        if self._model is not None:
            self._model.close()
            self._model = None
            logger.info("unloaded %s version %d", self.name, self.number)

    def status(self) -> ModelVersionStatus:
        """The version's entry in GetModelStatus."""
        status = ModelVersionStatus(version=self.number, state=self.state)
        if self.error is not None and self.state == State.END:
            status.status.error_code = CODES.index(self.error.code)
            status.status.error_message = str(self.error)
        else:
            status.status.SetInParent()
        return status
