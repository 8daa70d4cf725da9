"""The running server: take the ports, load the models, answer, stop."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import uvicorn
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from ..http_limits import OwnSite
from . import config as configuration
from .flags import ServerOptions
from .status_errors import StartError, StatusError

if TYPE_CHECKING:
    import grpc

    from .inference_service import InferenceService
    from .rest_api import RestApp

HOST = "127.0.0.1"
# Seconds in which running requests may end after a stop; Docker kills after 10.
_GRACE = 8.0
# Seconds after them in which requests that have failed are answered.
_PATIENCE = 1.0
# Seconds after which an idle connection is closed: later than clients do it.
_KEEP_ALIVE = 75


class Stop:
    """A request to stop a server, first gracefully, then at once.

    Attributes:
        asked: running requests are answered, then the server ends.
        hurried: running requests are cancelled.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()

    def ask(self) -> None:
        """Stop gracefully; at the second call, at once."""
        (self.hurried if self.asked.is_set() else self.asked).set()


class Addresses(NamedTuple):
    """The URL of the REST interface and `host:port` of the gRPC interface."""

    rest: str
    grpc: str


async def serve(
    config: ModelServerConfig,
    options: ServerOptions,
    ready: Callable[[Addresses], None],
    stop: Stop,
) -> None:
    """Serve until asked to stop.

    Ports are taken first, then TensorFlow is imported and the models are loaded; only
    then do the ports answer.

    Args:
        ready: called once both interfaces answer.
        stop: ends the server; made in this event loop.

    Raises:
        StartError: a port is in use, or a model cannot be loaded.
        StatusError: the configuration is refused.
    """
    configuration.check_start(config)
    metrics_path = configuration.metrics_path(options.monitoring_config_file)
    with contextlib.ExitStack() as stack:
        rest_socket = stack.enter_context(_bind(options.rest_api_port, "rest_api_port"))
        grpc_socket = stack.enter_context(_bind(options.port, "port"))
        service = await asyncio.to_thread(_new_service, options)
        stack.callback(service.stop)
        if not await _load(service, config, stop):
            return
        stack.enter_context(_watching(service))
        await _listen(service, metrics_path, rest_socket, grpc_socket, ready, stop)


def _new_service(options: ServerOptions) -> "InferenceService":
    # This imports TensorFlow, after invalid flags and files have been reported.
    from .inference_service import InferenceService

    return InferenceService(options)


@contextlib.contextmanager
def _watching(service: "InferenceService") -> Iterator[None]:
    from .watcher import Watcher

    watcher = Watcher(service.models, service.options)
    watcher.start()
    yield
    watcher.stop()


async def _load(
    service: "InferenceService", config: ModelServerConfig, stop: Stop
) -> bool:
    """Load the models; False if the server is asked to stop meanwhile."""
    loading = asyncio.create_task(asyncio.to_thread(service.models.start, config))
    stopping = asyncio.create_task(stop.asked.wait())
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if stop.asked.is_set():
        service.models.give_up()
        with contextlib.suppress(StatusError):
            await loading
        return False
    stopping.cancel()
    await loading
    return True


async def _listen(
    service: "InferenceService",
    metrics_path: str | None,
    rest_socket: socket.socket,
    grpc_socket: socket.socket,
    ready: Callable[[Addresses], None],
    stop: Stop,
) -> None:
    """Answer on both ports until asked to stop, then let requests end."""
    from .rest_api import RestApp

    options = service.options
    addresses = Addresses(
        f"http://{HOST}:{rest_socket.getsockname()[1]}",
        f"{HOST}:{grpc_socket.getsockname()[1]}",
    )
    with (
        ThreadPoolExecutor(options.rest_api_num_threads, "rest") as rest_threads,
        ThreadPoolExecutor(options.grpc_max_threads, "grpc") as grpc_threads,
    ):
        app = RestApp(service, rest_threads, metrics_path)
        rest = _rest_server(app, options)
        grpc_socket.close()
        grpc_server = _grpc_server(service, grpc_threads, addresses.grpc)
        grpc_server.start()
        rest_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # In a thread of its own uvicorn leaves signals alone.
        rest_task = asyncio.create_task(asyncio.to_thread(rest.run, [rest_socket]))
        while not rest.started and not rest_task.done():
            await asyncio.sleep(0.01)
        ready(addresses)
        await stop.asked.wait()
        rest.should_exit = True
        grpc_stopped = grpc_server.stop(_GRACE + _PATIENCE)
        grpc_task = asyncio.create_task(asyncio.to_thread(grpc_stopped.wait))
        hurrying = asyncio.create_task(stop.hurried.wait())
        answering = asyncio.gather(rest_task, grpc_task)
        waited: set[asyncio.Future[Any]] = {answering, hurrying}
        await asyncio.wait(waited, timeout=_GRACE, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        # Running requests fail, so that their clients get an answer.
        app.stop()
        service.stop()
        grpc_server.stop(_PATIENCE)
        await answering


def _rest_server(app: "RestApp", options: ServerOptions) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            OwnSite(
                app,
                options.allowed_host,
                any_origin=options.rest_api_enable_cors_support,
            ),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=int(_GRACE + _PATIENCE),
        )
    )


def _grpc_server(
    service: "InferenceService", threads: ThreadPoolExecutor, address: str
) -> "grpc.Server":
    from .grpc_services import grpc_server

    server = grpc_server(service, threads)
    try:
        server.add_insecure_port(address)
        if path := service.options.grpc_socket_path:
            server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise StartError(f"cannot listen on {address}: {error}") from error
    return server


def _bind(port: int, flag: str) -> socket.socket:
    """Take a port on loopback without answering there yet; 0 means a free one."""
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
