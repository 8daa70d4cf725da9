"""An event loop on a clock of its own: sleeping takes no time, and is exact."""

import asyncio
import selectors


class _Clock(selectors.DefaultSelector):
    """Where an event loop waits; time passes at once when there is nothing to do."""

    now = 1000.0

    def select(self, timeout=None):
        if timeout:
            self.now += timeout
        return super().select(0)


def simulated(coroutine):
    """The result of a coroutine that waits for timers alone."""

    def new_loop():
        clock = _Clock()
        loop = asyncio.SelectorEventLoop(clock)
        loop.time = lambda: clock.now
        return loop

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(coroutine)
