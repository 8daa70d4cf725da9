"""A thread that polls for new versions and for a new configuration file."""

import logging
import math
import threading
import time

from .config import read_model_config
from .flags import ServerOptions
from .server_core import ServedModels
from .status_errors import StatusError

logger = logging.getLogger(__name__)


class Watcher:
    """Keep the served models in step with the disk.

    Args:
        options: the polling intervals; 0 seconds means never.
    """

    def __init__(self, models: ServedModels, options: ServerOptions) -> None:
        self._models = models
        self._config_file = options.model_config_file
        self._scan = _Clock(options.file_system_poll_wait_seconds)
        self._reread = _Clock(options.model_config_file_poll_wait_seconds)
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="model-watcher", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after a load that is running."""
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
        """Adopt a changed configuration file; an invalid one changes nothing."""
        if not self._config_file:
            return
        try:
            config = read_model_config(self._config_file)
            if not self._models.serves(config):
                self._models.reload(config)
        except StatusError as error:
            logger.error("the configuration is unchanged: %s", error)


class _Clock:
    """A periodic timer; 0 seconds or less means never."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds if seconds > 0 else math.inf
        self.due = time.monotonic() + self._seconds

    def ticks(self) -> bool:
        """Whether the period is over; if so, start the next one."""
        now = time.monotonic()
        if now < self.due:
            return False
        self.due = now + self._seconds
        return True
