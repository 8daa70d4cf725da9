"""The figures of training steps, which `fit` gets while the next step runs."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

from keras_vit.typing import Arrays

from .progress import Progress

# A call's figures by name, and whether a worker asked all of them to stop.
Figures: TypeAlias = tuple[Arrays, bool]
Read: TypeAlias = Callable[[], Figures]


class LateFigures:
    """Figures of the calls of a step function, each of them one call late.

    A device computes a step while Python goes on. Were a step's figures awaited before
    the next step is started, the device would be idle for as long as Python takes.

    A call's own figures are awaited only where there are no earlier ones, at an epoch's
    end (Keras makes the epoch's figures of them), and where the run stops. `progress`
    says how late the figures are.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.newest: Future[Figures] | None = None

    def forget(self) -> None:
        """Begin an epoch, in which the figures of the last one are out of place."""
        self.newest = None

    def after(self, steps: int, read: Read) -> Arrays:
        """Start to read the figures of a call, and return those of the call before."""
        progress = self.progress
        before, self.newest = self.newest, _start(read)
        progress.lag = 0
        progress.stopping = progress.alone and progress.stop_requested
        ends = progress.steps_per_epoch is None or progress.at_epoch_end
        if before is not None and not ends and not progress.stopping:
            figures, progress.stopping = before.result()
            if not progress.stopping:
                progress.lag = steps
                return figures
        figures, stop = self.newest.result()
        progress.stopping = progress.stopping or stop
        return figures


def _start(read: Read) -> Future[Figures]:
    """Call `read` in a thread.

    TensorFlow's copy from a GPU waits for all that was started before it: begun after
    the next step, it would wait for that, too.

    The thread is a daemon, since a read from a lost device or worker never returns, and
    an executor's threads are awaited before the interpreter ends. A new one for each
    call, 0.08 ms, needs no end of its own.
    """
    future: Future[Figures] = Future()

    def run() -> None:
        try:
            future.set_result(read())
        except BaseException as error:  # raised by `result`  # noqa: BLE001
            future.set_exception(error)

    threading.Thread(target=run, name="figures", daemon=True).start()
    return future
