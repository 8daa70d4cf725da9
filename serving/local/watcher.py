"""The thread that looks for new versions and for a new configuration file."""

import logging
import math
import threading
import time

from .config import read_model_config
from .flags import ServerOptions
from .server_core import ServedModels
from .status_errors import ServingError

logger = logging.getLogger(__name__)


class Watcher:
    """Keeps served models up to date with the disk, until it is stopped.

    Args:
        models: what is served.
        options: how often to look; 0 seconds means never.
    """

    def __init__(self, models: ServedModels, options: ServerOptions):
        self._models = models
        self._config_file = options.model_config_file
        self._scan = _Clock(options.file_system_poll_wait_seconds)
        self._reread = _Clock(options.model_config_file_poll_wait_seconds)
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="model-watcher", daemon=True
        )

    def start(self) -> None:
        """Starts watching."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; a load that is under way is waited for."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        retry: float | None = None
        while True:
            due = min(self._scan.due, self._reread.due, retry or math.inf)
            wait = None if due == math.inf else max(0.0, due - time.monotonic())
            if self._stopping.wait(wait):
                return
            if self._reread.ticks():
                self._reread_config()
            retry = self._models.refresh(scan=self._scan.ticks())

    def _reread_config(self) -> None:
        """Takes a changed configuration file over; a wrong one changes nothing."""
        if not self._config_file:
            return
        try:
            config = read_model_config(self._config_file)
            if not self._models.serves(config):
                self._models.reload(config)
        except ServingError as error:
            logger.error("the configuration stays as it was: %s", error)


class _Clock:
    """Ticks every so many seconds; never if that is 0 or less."""

    def __init__(self, seconds: float):
        self._seconds = seconds if seconds > 0 else math.inf
        self.due = time.monotonic() + self._seconds

    def ticks(self) -> bool:
        """Whether it is time; if so, the next time is set."""
        now = time.monotonic()
        if now < self.due:
            return False
        self.due = now + self._seconds
        return True
