"""Wait over REST until a server has loaded a version or moved a label."""

import time
from collections.abc import Callable

from rich.console import Console

from keras_vit.common.command_line import CommandError

from ..client import InvalidArgument, NotFound, RestClient, ServingError, Unavailable
from ..client.responses import VersionStatus

WAIT_SECONDS = 600.0
POLL_SECONDS = 0.2


def states(url: str, name: str) -> dict[int, VersionStatus]:
    """The states of a model's versions on a server by number; empty without it."""
    try:
        with RestClient(url, name) as client:
            return {status.version: status for status in client.status()}
    except NotFound:
        return {}
    except (ServingError, ValueError) as error:
        raise CommandError(f"{url}: {error}") from None


def wait_available(url: str, name: str, version: int) -> None:
    """Wait until a server has loaded a version."""

    def loaded() -> bool:
        status = states(url, name).get(version)
        if status and status.state == "END" and status.error_code != "OK":
            raise CommandError(
                f"{url}: cannot load version {version} of {name}: "
                f"{status.error_message}"
            )
        return status is not None and status.state == "AVAILABLE"

    _wait(loaded, f"waiting until {url} has loaded version {version} of {name}")


def wait_points(url: str, name: str, label: str, version: int) -> None:
    """Wait until a label on a server is a version."""

    def points() -> bool:
        try:
            with RestClient(url, name, label=label) as client:
                return client.metadata().version == version
        except (InvalidArgument, NotFound, Unavailable):
            return False  # it has not read the file yet
        except ServingError as error:
            raise CommandError(f"{url}: {error}") from None

    _wait(points, f"waiting until {url} has version {version} as {label} of {name}")


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(what, highlight=False, soft_wrap=True)
    with console.status(what):
        while not condition():
            if time.monotonic() > deadline:
                raise CommandError(
                    f"{what}: timed out after {WAIT_SECONDS:g} s. Does the server poll "
                    "the config file (--model_config_file_poll_wait_seconds)?"
                )
            time.sleep(POLL_SECONDS)
