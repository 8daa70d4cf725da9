"""An event loop with a simulated clock: sleeping takes no time, and is exact."""

import asyncio
import selectors


class _Clock(selectors.DefaultSelector):
    """A selector that advances the clock instead of waiting."""

    now = 1000.0

    def select(self, timeout=None):
        if timeout:
            self.now += timeout
        return super().select(0)


def simulated(coroutine):
    """Run a coroutine that waits for timers only."""

    def new_loop():
        clock = _Clock()
        loop = asyncio.SelectorEventLoop(clock)
        loop.time = lambda: clock.now
        return loop

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(coroutine)
