"""One served model: the versions it should have, and its labels."""

import logging
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusResponse
from tensorflow_serving.apis.model_pb2 import ModelSpec
from tensorflow_serving.config.model_server_config_pb2 import ModelConfig

from . import config as configuration
from .session import LoadedModel
from .status_errors import FailedPrecondition, InvalidArgument, NotFound, StatusError
from .version_lifecycle import State, Version

logger = logging.getLogger(__name__)
# Loads a version's folder, warm-up included.
Loader = Callable[[str], LoadedModel]


class Failure(NamedTuple):
    """Why a model has no available version: its newest version, or 0, and the error."""

    name: str
    version: int
    error: StatusError


class ServedModel:
    """A model, from its first configuration on.

    Attributes:
        config: the current configuration; None once it is removed. The versions stay
            listed.
    """

    def __init__(self, name: str, load: Loader) -> None:
        self.name = name
        self.config: ModelConfig | None = None
        self.versions: dict[int, Version] = {}
        self._load = load
        self._logged = ""

    @property
    def labels(self) -> dict[str, int]:
        """Version numbers by label."""
        config = self.config  # another thread may remove it
        return dict(config.version_labels) if config else {}

    def candidates(self, spec: ModelSpec) -> list[Version]:
        """The versions that may answer a request, the best one first."""
        if not spec.WhichOneof("version_choice"):
            return self._newest_first()
        number = self.number(spec)
        return [self.versions[number]] if number in self.versions else []

    def number(self, spec: ModelSpec) -> int:
        """The version number that a ModelSpec names, itself or by label.

        Raises:
            InvalidArgument: the label is unknown.
        """
        if spec.WhichOneof("version_choice") == "version":
            return int(spec.version.value)
        number = self.labels.get(spec.version_label)
        if number is None:
            raise InvalidArgument(
                f"Unrecognized servable version label: {spec.version_label}"
            )
        return number

    def status(self, spec: ModelSpec) -> GetModelStatusResponse:
        """The states of all versions, newest first, or of the one that is named.

        Labels are ignored, as in TensorFlow Serving.
        """
        if spec.WhichOneof("version_choice") == "version":
            listed, asked = self.candidates(spec), f"version {spec.version.value}"
        else:
            listed, asked = self._newest_first(), "any versions"
        if not listed:
            raise NotFound(f"Could not find {asked} of model {self.name}")
        return GetModelStatusResponse(
            model_version_status=[version.status() for version in listed]
        )

    def _newest_first(self) -> list[Version]:
        return sorted(
            self.versions.values(), key=lambda version: version.number, reverse=True
        )

    def check_labels(self, new: ModelConfig, allow_unavailable: bool) -> None:
        """Check that each label of a new configuration points to an available version.

        Args:
            allow_unavailable: --allow_version_labels_for_unavailable_models, which
                exempts labels that do not move.

        Raises:
            FailedPrecondition: a label would point to a version that is not available.
        """
        existing = self.labels
        for label, number in new.version_labels.items():
            version = self.versions.get(number)
            if version is not None and version.state == State.AVAILABLE:
                continue
            unmoved = existing.get(label, number) == number
            if not (unmoved and allow_unavailable):
                raise FailedPrecondition(
                    f"Request to assign label to version {number} of model "
                    f"{self.name}, which is not currently available for inference"
                )

    def scan(self) -> None:
        """Update the versions' `wanted` from the disk and the policy."""
        numbers = self._aspired()
        if numbers is None:
            return
        for number, version in self.versions.items():
            kept = version.wanted or version.state == State.AVAILABLE
            version.wanted = number in numbers and kept
        for number in numbers:
            before = self.versions.get(number)
            if before is None or (before.state == State.END and not before.wanted):
                self.versions[number] = self._new_version(number)

    def _aspired(self) -> list[int] | None:
        """None if the base path cannot be read; then nothing changes."""
        try:
            numbers = configuration.aspired_versions(self.config) if self.config else []
        except StatusError as error:
            if self._logged != str(error):
                logger.error("model %s: %s", self.name, error)
            self._logged = str(error)
            return None
        self._logged = ""
        return numbers

    def _new_version(self, number: int) -> Version:
        base_path = self.config.base_path if self.config else ""

        def load() -> LoadedModel:
            folders = configuration.version_folders(base_path)
            return self._load(os.path.join(base_path, folders.get(number, str(number))))

        return Version(self.name, number, load)

    def unwanted(self) -> list[Version]:
        """The versions to unload, once a wanted one can take over."""
        versions = list(self.versions.values())
        wanted = [version for version in versions if version.wanted]
        if wanted and not any(v.state == State.AVAILABLE for v in wanted):
            return []
        return [v for v in versions if not v.wanted and v.state != State.END]

    def failure(self) -> Failure | None:
        """Why no version is available; None if one is."""
        versions = self._newest_first()
        if any(version.state == State.AVAILABLE for version in versions):
            return None
        if not versions:
            return Failure(self.name, 0, NotFound("there is no version"))
        error = versions[0].error or NotFound("it is not loaded")
        return Failure(self.name, versions[0].number, error)


def log_failures(versions: list[Version]) -> None:
    """Log the loads that failed."""
    for version in versions:
        if version.error is not None:
            due = version.next_attempt
            then = f"; next attempt in {due - time.monotonic():.0f} s" if due else ""
            logger.error(
                "cannot load %s version %d: %s%s",
                version.name,
                version.number,
                version.error,
                then,
            )
