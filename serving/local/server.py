"""The running server: takes the ports, loads, answers, stops."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import uvicorn

from . import config as configuration
from .config import ModelServerConfig
from .flags import ServerOptions
from .http import Protocol
from .status_errors import ServingError, StartError
from .workers import Workers

if TYPE_CHECKING:
    import grpc

    from .service import Service

HOST = "127.0.0.1"
# Seconds in which requests may end after a stop; Docker kills after 10.
_GRACE = 8.0
# Seconds after which an idle connection is closed: later than clients do it.
_KEEP_ALIVE = 75


class Stop:
    """Tells a server to stop: with grace, and then without.

    Attributes:
        asked: what was accepted is answered, then the server ends.
        hurried: what still runs is cancelled, and answered so.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()

    def ask(self) -> None:
        """Stops; asked again, hurries."""
        (self.hurried if self.asked.is_set() else self.asked).set()


class Addresses(NamedTuple):
    """Where a server listens.

    Attributes:
        rest: URL of the REST interface.
        grpc: `host:port` of the gRPC interface.
    """

    rest: str
    grpc: str


async def serve(
    config: ModelServerConfig,
    options: ServerOptions,
    ready: Callable[[Addresses], None],
    stop: Stop,
) -> None:
    """Serves until it is told to stop.

    Ports are taken first, TensorFlow is imported and models are loaded next; only then
    do the ports answer.

    Args:
        config: the models.
        options: the flags.
        ready: called once both interfaces answer.
        stop: ends the server; made in this loop.

    Raises:
        StartError: a port is in use, or a model cannot be loaded.
        ServingError: the configuration is refused.
    """
    configuration.check_start(config)
    metrics_path = configuration.metrics_path(options.monitoring_config_file)
    with contextlib.ExitStack() as stack:
        rest_socket = stack.enter_context(_bind(options.rest_api_port, "rest_api_port"))
        grpc_socket = stack.enter_context(_bind(options.port, "port"))
        service = await _in_thread(_new_service, options)
        stack.callback(service.stop)
        if not await _load(service, config, stop):
            return
        stack.enter_context(_watching(service))
        await _listen(service, metrics_path, rest_socket, grpc_socket, ready, stop)


def _new_service(options: ServerOptions) -> "Service":
    # Here TensorFlow is imported; what is wrong with flags and files was told before.
    from .service import Service

    return Service(options)


@contextlib.contextmanager
def _watching(service: "Service") -> Iterator[None]:
    from .watcher import Watcher

    watcher = Watcher(service.models, service.options)
    watcher.start()
    yield
    watcher.stop()


async def _in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


async def _load(service: "Service", config: ModelServerConfig, stop: Stop) -> bool:
    """Loads the models; False if the server is told to stop meanwhile."""
    loading = asyncio.ensure_future(_in_thread(service.models.start, config))
    stopping = asyncio.ensure_future(stop.asked.wait())
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if stop.asked.is_set():
        service.models.give_up()
        with contextlib.suppress(ServingError):
            await loading
        return False
    stopping.cancel()
    await loading
    return True


async def _listen(
    service: "Service",
    metrics_path: str | None,
    rest_socket: socket.socket,
    grpc_socket: socket.socket,
    ready: Callable[[Addresses], None],
    stop: Stop,
) -> None:
    """Answers on both ports until it is told to stop, then lets requests end."""
    addresses = Addresses(
        f"http://{HOST}:{rest_socket.getsockname()[1]}",
        f"{HOST}:{grpc_socket.getsockname()[1]}",
    )
    with contextlib.ExitStack() as stack:
        rest_workers = Workers(service.options.rest_api_num_threads, "rest")
        stack.callback(rest_workers.close)
        grpc_workers = Workers(service.options.grpc_max_threads, "grpc")
        stack.callback(grpc_workers.close)
        rest = _rest_server(service, rest_workers, metrics_path)
        grpc_socket.close()
        grpc_server = _grpc_server(service, grpc_workers, addresses.grpc)
        await grpc_server.start()
        rest_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rest_task = asyncio.create_task(rest.serve(sockets=[rest_socket]))
        while not rest.started and not rest_task.done():
            await asyncio.sleep(0.01)
        ready(addresses)
        await stop.asked.wait()
        rest.should_exit = True
        grpc_task = asyncio.create_task(grpc_server.stop(2 * _GRACE))
        await _end(asyncio.gather(rest_task, grpc_task), service, stop)


async def _end(answering: asyncio.Future[Any], service: "Service", stop: Stop) -> None:
    """Waits for the last answers; what takes longer than the grace is cancelled."""
    hurrying = asyncio.create_task(stop.hurried.wait())
    await asyncio.wait(
        {answering, hurrying}, timeout=_GRACE, return_when=asyncio.FIRST_COMPLETED
    )
    hurrying.cancel()
    service.stop()  # so that the callers of what still runs are told
    await answering


def _rest_server(
    service: "Service", workers: Workers, metrics_path: str | None
) -> "_Uvicorn":
    from .rest import RestApp

    return _Uvicorn(
        uvicorn.Config(
            RestApp(service, workers, metrics_path),
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=int(2 * _GRACE),
        )
    )


def _grpc_server(
    service: "Service", workers: Workers, address: str
) -> "grpc.aio.Server":
    from .grpc_services import grpc_server

    server = grpc_server(service, workers)
    try:
        server.add_insecure_port(address)
        if path := service.options.grpc_socket_path:
            server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise StartError(f"cannot listen on {address}: {error}") from error
    return server


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, which leaves signals to the process it runs in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(port: int, flag: str) -> socket.socket:
    """Takes a port on loopback without answering there yet; 0 means a free one."""
    # With the protocol named, asyncio turns Nagle's algorithm off (40 ms a request).
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((HOST, port))
    except OSError as error:
        bound.close()
        raise StartError(
            f"cannot listen on {HOST}:{port} (--{flag}): {error.strerror}"
        ) from error
    # Otherwise another server could take the port, too, until this one listens.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return bound
