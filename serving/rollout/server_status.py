"""Watches a server over REST until it has loaded a version, or taken a label."""

import time
from collections.abc import Callable

from rich.console import Console

from ..client import InvalidArgument, NotFound, RestClient, ServingError, Unavailable
from ..client.responses import VersionStatus
from ..errors import ExportError

WAIT_SECONDS = 600.0
LOOK_SECONDS = 0.2


def states(url: str, name: str) -> dict[int, VersionStatus]:
    """What a server says about a model's versions, by number; none if it has no such.

    Raises:
        ExportError: It cannot be asked.
    """
    try:
        with RestClient(url, name) as client:
            return {status.version: status for status in client.status()}
    except NotFound:
        return {}
    except (ServingError, ValueError) as error:
        raise ExportError(f"{url}: {error}") from None


def wait_available(url: str, name: str, version: int) -> None:
    """Returns once a server has loaded a version.

    Raises:
        ExportError: It cannot load it, or has not in time.
    """

    def loaded() -> bool:
        status = states(url, name).get(version)
        if status and status.state == "END" and status.error_code != "OK":
            raise ExportError(
                f"{url}: cannot load version {version} of {name}: "
                f"{status.error_message}"
            )
        return status is not None and status.state == "AVAILABLE"

    _wait(loaded, f"waiting until {url} has loaded version {version} of {name}")


def wait_points(url: str, name: str, label: str, version: int) -> None:
    """Returns once a server answers a label's requests with a version.

    Raises:
        ExportError: It does not in time.
    """

    def points() -> bool:
        try:
            with RestClient(url, name, label=label) as client:
                return client.metadata().version == version
        except (InvalidArgument, NotFound, Unavailable):
            return False  # it has not seen the file yet
        except ServingError as error:
            raise ExportError(f"{url}: {error}") from None

    _wait(points, f"waiting until {url} has version {version} as {label} of {name}")


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(what, highlight=False, soft_wrap=True)
    with console.status(what):
        while not condition():
            if time.monotonic() > deadline:
                raise ExportError(
                    f"{what}: given up after {WAIT_SECONDS:g} s. Does it read the file "
                    "that was changed (--model_config_file_poll_wait_seconds)?"
                )
            time.sleep(LOOK_SECONDS)
