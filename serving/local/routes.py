"""The paths of the REST interface: what a method and a path ask for."""

import re
from typing import NamedTuple
from urllib.parse import unquote

from tensorflow_serving.apis.model_pb2 import ModelSpec

from .status_errors import InvalidArgument

VERBS = ("classify", "regress", "predict")

# Paths may have any case; verbs in another case are found and then refused, so that
# what is wrong with the version is told first.
_NAME = r"(?P<name>[^/:]+)"
_CHOICE = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_VERB = f"(?P<verb>{'|'.join(VERBS)})"
_FLAGS = re.ASCII | re.IGNORECASE
_POST = re.compile(f"/v1/models/{_NAME}{_CHOICE}:{_VERB}", _FLAGS)
_GET = re.compile(f"/v1/models(?:/{_NAME})?{_CHOICE}(?P<rest>/metadata)?", _FLAGS)
# A URI (RFC 3986): scheme, user, host, port, path, query and fragment.
_TARGET = re.compile(
    rb"(?>[A-Za-z][0-9A-Za-z+.-]*:|(?![^/?#]*:))"
    rb"(?://(?:(?:%(held)b|:)*@)?(?:\[[0-9A-Fa-f:.]+\]|(?:%(held)b)*)"
    rb"(?::0*(?P<port>\d{0,5}))?(?=[/?#]|$)|(?!//))"
    rb"(?P<path>(?:%(held)b|[/:@])*(?:\?(?:%(held)b|[/:@?])*)?"
    rb"(?:#(?:%(held)b|[/:@?])*)?)"
    % {b"held": rb"[!$&-.0-9;=A-Z_a-z~]|%[0-9A-Fa-f]{2}"}
)


class Route(NamedTuple):
    """What is asked for.

    Attributes:
        operation: predict, classify, regress, status or metadata.
        api: the name under which the request is counted.
        spec: the model, with version or label.
    """

    operation: str
    api: str
    spec: ModelSpec


class VersionOverflow(Exception):
    """A version number beyond 64 bits, which is answered by 400 without a text."""


def path_of(target: bytes) -> str | None:
    """The path of a request's target, with its query and fragment, not decoded.

    Args:
        target: as it came; `http://host:8501/v1/models/m` is one, too.

    Returns:
        None if the target is no URI.
    """
    match = _TARGET.fullmatch(target)
    if match is None or int(match["port"] or 0) > 65535:
        return None
    return match["path"].decode("ascii")


def route(method: str, path: str) -> Route:
    """Reads a request's line.

    Args:
        method: the HTTP method.
        path: the path with its query, not decoded.

    Raises:
        InvalidArgument: there is no such route.
        VersionOverflow: see there.
    """
    if method == "POST" and (match := _POST.fullmatch(path)):
        spec = _spec(match)
        if match["verb"] in VERBS:
            return Route(match["verb"], match["verb"], spec)
    if method == "GET" and (match := _GET.fullmatch(path)):
        spec = _spec(match)
        if not spec.name:
            raise InvalidArgument("Missing model name in request.")
        # In upper case `/METADATA` is the status, as in TensorFlow Serving.
        operation = "metadata" if match["rest"] == "/metadata" else "status"
        return Route(operation, "", spec)
    raise InvalidArgument(f"Malformed request: {method} {path}")


def _spec(match: re.Match[str]) -> ModelSpec:
    spec = ModelSpec(name=unquote(match["name"] or ""))
    if match["version"]:
        if len(match["version"].lstrip("0")) > 19 or int(match["version"]) >= 2**63:
            raise VersionOverflow
        spec.version.value = int(match["version"])
    elif match["label"]:
        spec.version_label = unquote(match["label"])
    return spec
