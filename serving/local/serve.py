"""`keras-vit serve`: the local server as a command."""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import signal
from collections.abc import Callable, Sequence
from importlib import metadata

from keras_vit.common.activity import activity
from keras_vit.common.command_line import CommandError
from keras_vit.common.quiet import without_native_lines

from ..usage import without_keras
from .flags import ServerOptions, parse_flags
from .status_errors import StatusError

# Seconds after the first signal in which the server ends by itself; it is then ended.
_STOP_LIMIT = 30


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT.

    Raises:
        UsageError: A flag is invalid.
        CommandError: The server cannot start.
    """
    options = parse_flags(argv)
    if options.version:
        print(f"keras-vit local server, TensorFlow {metadata.version('tensorflow')}")
        return 0
    try:
        # While the first versions are loaded, TensorFlow logs what nothing silences.
        with contextlib.ExitStack() as start_up:
            start_up.enter_context(without_native_lines())
            start_up.enter_context(activity("keras-vit serve", redraw=False))
            _log_to_stderr()
            asyncio.run(_serve(options, start_up.close))
    except StatusError as error:
        raise CommandError(str(error)) from None
    return 0


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger(__package__)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False


async def _serve(options: ServerOptions, started: Callable[[], None]) -> None:
    without_keras()
    from .config import config_of
    from .server import Addresses, Stop, serve

    config = config_of(options)
    names = ", ".join(model.name for model in config.model_config_list.config)

    def ready(addresses: Addresses) -> None:
        # TensorFlow's objects stay; collections that traverse them would double the
        # time to parse a large JSON body.
        gc.freeze()
        started()
        # In one piece even where Python does not buffer: who reads the first line may
        # make the server write at once.
        print(
            f"serving {names}: REST {addresses.rest}/v1/models, gRPC {addresses.grpc}\n"
            f"page: {addresses.rest}/\n",
            end="",
            flush=True,
        )

    stop = Stop()
    loop = asyncio.get_running_loop()

    def end() -> None:
        if not stop.asked.is_set():
            # A thread that hangs is shown; Python could not end it.
            faulthandler.dump_traceback_later(_STOP_LIMIT, exit=True)
        stop.ask()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    await serve(config, options, ready, stop)
