"""`LocalServer`: the server in a background thread, for programs and tests."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from . import config as configuration
from .flags import ServerOptions
from .server import Addresses, Stop, serve


class LocalServer:
    """A server that runs in a background thread during a `with` block.

    Args:
        models: base paths by model name, or a ModelServerConfig.
        rest_port: port of the REST interface; 0 means a free one.
        grpc_port: port of the gRPC interface; 0 means a free one.
        **flags: other flags, by TensorFlow Serving's names.

    Attributes:
        rest_url: URL of the REST interface, `http://127.0.0.1:8501`.
        grpc_address: address of the gRPC interface, `127.0.0.1:8500`.

    Raises:
        TypeError: `models` is neither a mapping nor a ModelServerConfig.
        StatusError: on entering, if the server cannot start.

    ```python
    with LocalServer({"digits": "models/digits"}, rest_port=0, grpc_port=0) as server:
        print(server.rest_url, server.grpc_address)
    ```
    """

    rest_url: str
    grpc_address: str

    def __init__(
        self,
        models: Mapping[str, str | Path] | ModelServerConfig,
        *,
        rest_port: int = 8501,
        grpc_port: int = 8500,
        **flags: Any,
    ) -> None:
        self._options = ServerOptions(port=grpc_port, rest_api_port=rest_port, **flags)
        if not isinstance(models, ModelServerConfig):
            models = _config_from_paths(models)
        self._config = models
        configuration.check_config(self._config)
        self._started: Future[Addresses] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Stop | None = None
        self._thread = threading.Thread(
            target=self._run, name="local-server", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        self.rest_url, self.grpc_address = self._started.result()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.ask)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = Stop()
        await serve(self._config, self._options, self._started.set_result, self._stop)


def _config_from_paths(models: Mapping[str, str | Path]) -> ModelServerConfig:
    if not isinstance(models, Mapping):
        raise TypeError(
            '`models` must be base paths by model name, {"digits": "models/digits"}, '
            f"or a ModelServerConfig. Received: {models!r}"
        )
    config = ModelServerConfig()
    config.model_config_list.config.extend(
        configuration.model_config(name, str(Path(path).absolute()))
        for name, path in models.items()
    )
    return config
