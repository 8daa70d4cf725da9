"""All served models: load them, change the configuration, find a version.

A new version is loaded before an old one is unloaded; a version that fails to load
leaves the old one in service.
"""

import contextlib
import gc
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusResponse
from tensorflow_serving.apis.model_pb2 import ModelSpec
from tensorflow_serving.config.model_server_config_pb2 import (
    ModelConfig,
    ModelServerConfig,
)

from . import config as configuration
from .flags import ServerOptions
from .servable import Failure, Loader, ServedModel, log_failures
from .session import LoadedModel
from .status_errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    StartError,
    StatusError,
)
from .version_lifecycle import Version

# Attempts to find a version, which another one may replace meanwhile.
_ATTEMPTS = 3


class ServedModels:
    """The models of a server. Any thread may call any method."""

    def __init__(self, options: ServerOptions, load: Loader) -> None:
        self._options = options
        self._load = load
        self._models: dict[str, ServedModel] = {}
        self._changes = threading.Lock()  # one change of what is served at a time
        self._stopping = threading.Event()

    def start(self, config: ModelServerConfig) -> None:
        """Load every model.

        Raises:
            StartError: a model has no version that can be loaded.
            StatusError: the configuration is refused.
        """
        retries = self._options.max_num_load_retries or 0
        with self._changes:
            try:
                self._accept(config)
            except FailedPrecondition as error:
                flag = "--allow_version_labels_for_unavailable_models"
                raise StartError(f"{error}; {flag} allows it") from error
            attempted = self._reconcile(retries)
            while not self._stopping.is_set() and (due := self._next_attempt()):
                log_failures(attempted)
                self._stopping.wait(max(0.0, due - time.monotonic()))
                attempted = self._reconcile(retries)
        if failures := self._failures(self._models):
            texts = [
                f"model {name}, version {number}, cannot be loaded: {error}"
                for name, number, error in failures
            ]
            raise StartError("; ".join(texts))
        log_failures(attempted)

    def reload(self, config: ModelServerConfig) -> None:
        """Serve the models of a new configuration and no others.

        Raises:
            InvalidArgument: the configuration is invalid.
            FailedPrecondition: a label would point to a version that is not available.
            StatusError: a new model has no version that can be loaded.
        """
        configuration.check_config(config)
        with self._changes:
            before = self._configs().keys()
            self._accept(config)
            log_failures(self._reconcile(self._retries))
            failures = self._failures(self._configs().keys() - before)
        if failures:
            errors = "".join(
                f"{{{{name: {name} version: {number}}} "
                f"due to error: {error.with_code()}}}, "
                for name, number, error in failures
            )
            raise StatusError(
                f"{len(failures)} model(s) did not become available: {{{errors}}}"
            )

    def refresh(self, scan: bool) -> float | None:
        """Load and unload what changed on the disk, and retry failed loads.

        Returns:
            When the next retry is due, in `time.monotonic` seconds.
        """
        with self._changes:
            log_failures(self._reconcile(self._retries, scan))
            return self._next_attempt()

    def give_up(self) -> None:
        """Let `start` return after the current attempt."""
        self._stopping.set()

    def stop(self) -> None:
        """Free everything; running requests fail."""
        self._stopping.set()
        for version in self._versions():
            version.close()

    def serves(self, config: ModelServerConfig) -> bool:
        """Whether a configuration is the current one."""
        return self._configs() == {m.name: m for m in config.model_config_list.config}

    @contextlib.contextmanager
    def use(self, spec: ModelSpec) -> Iterator[tuple[LoadedModel, int]]:
        """The version that a ModelSpec names, and its number, for the block.

        Raises:
            InvalidArgument: no name, or an unknown label.
            NotFound: no such version is available.
        """
        if not spec.name:
            raise InvalidArgument("ModelSpec has no name specified.")
        served = self._model(spec.name)
        for _ in range(_ATTEMPTS):
            for version in served.candidates(spec):
                with version.in_use() as model:
                    if model is not None:
                        yield model, version.number
                        return
        asked = f"Latest({spec.name})"
        if spec.WhichOneof("version_choice"):
            asked = f"Specific({spec.name}, {served.number(spec)})"
        raise NotFound(f"Servable not found for request: {asked}")

    def labels(self) -> dict[str, list[str]]:
        """The models by name, and the labels of each."""
        return {
            name: sorted(config.version_labels)
            for name, config in sorted(self._configs().items())
        }

    def status(self, spec: ModelSpec) -> GetModelStatusResponse:
        """The states of a model's versions."""
        return self._model(spec.name).status(spec)

    def _model(self, name: str) -> ServedModel:
        """A model; a new one without versions if the name is unknown."""
        return self._models.get(name) or ServedModel(name, self._load)

    def _configs(self) -> dict[str, ModelConfig]:
        present = list(self._models.items())  # a copy: other threads add to it
        return {name: model.config for name, model in present if model.config}

    def _accept(self, config: ModelServerConfig) -> None:
        """Adopt a configuration, or refuse it and change nothing."""
        new = {model.name: model for model in config.model_config_list.config}
        present = self._configs()
        for name in [name for name in new if name in present]:
            platforms = [configuration.platform_of(c[name]) for c in (present, new)]
            if platforms[0] != platforms[1]:
                raise InvalidArgument(
                    f"Illegal to change a model's platform. For model {name} platform "
                    f"was {platforms[0]} and new platform requested is {platforms[1]}"
                )
        allow = self._options.allow_version_labels_for_unavailable_models
        for name, model in new.items():
            self._model(name).check_labels(model, allow)
        for model in new.values():
            configuration.check_platform(model)
        for name in new.keys() - self._models.keys():
            self._models[name] = ServedModel(name, self._load)
        for name, served in self._models.items():
            served.config = new.get(name)

    @property
    def _retries(self) -> int:
        retries = self._options.max_num_load_retries
        return 5 if retries is None else retries

    def _reconcile(self, retries: int, scan: bool = True) -> list[Version]:
        """Load missing versions, then unload unwanted ones; returns the attempts."""
        if scan:
            for model in self._models.values():
                model.scan()
        now = time.monotonic()
        due = [v for v in self._versions() if (v.next_attempt or now + 1) <= now]
        interval = self._options.load_retry_interval_micros / 1e6
        if due:
            with ThreadPoolExecutor(max(1, self._options.num_load_threads)) as pool:
                list(pool.map(lambda version: version.attempt(retries, interval), due))
        unwanted = [v for model in self._models.values() for v in model.unwanted()]
        if unwanted:
            with ThreadPoolExecutor(max(1, self._options.num_unload_threads)) as pool:
                list(pool.map(Version.unload, unwanted))
            # TensorFlow's graphs are cycles of Python objects that hold C++ memory.
            gc.collect()
        return due

    def _versions(self) -> list[Version]:
        present = list(self._models.values())  # a copy: other threads add to it
        return [v for model in present for v in list(model.versions.values())]

    def _next_attempt(self) -> float | None:
        times = (version.next_attempt for version in self._versions())
        return min((due for due in times if due is not None), default=None)

    def _failures(self, names: Iterable[str]) -> list[Failure]:
        return [
            failure
            for name in names
            if (failure := self._models[name].failure()) is not None
        ]
