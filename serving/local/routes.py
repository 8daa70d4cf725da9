"""The paths of the REST interface: what a method and a path ask for."""

import re
from typing import NamedTuple
from urllib.parse import unquote

from tensorflow_serving.apis.model_pb2 import ModelSpec

from .errors import InvalidArgument

# Paths in any case, verbs only in lower case.
_NAME = r"(?P<name>[^/:]+)"
_CHOICE = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_VERB = r"(?P<verb>classify|regress|predict)"
_POST = re.compile(rf"(?i:/v1/models/{_NAME}{_CHOICE}):{_VERB}", re.ASCII)
_GET = re.compile(rf"(?i:/v1/models(?:/{_NAME})?{_CHOICE}(?P<rest>/metadata)?)", re.A)


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
        return Route(match["verb"], match["verb"], _spec(match))
    if method == "GET" and (match := _GET.fullmatch(path)):
        if not match["name"]:
            raise InvalidArgument("Missing model name in request.")
        # In upper case `/METADATA` is the status, as in TensorFlow Serving.
        operation = "metadata" if match["rest"] == "/metadata" else "status"
        return Route(operation, "", _spec(match))
    raise InvalidArgument(f"Malformed request: {method} {path}")


def _spec(match: re.Match[str]) -> ModelSpec:
    spec = ModelSpec(name=unquote(match["name"]))
    if match["version"]:
        if len(match["version"].lstrip("0")) > 19 or int(match["version"]) >= 2**63:
            raise VersionOverflow
        spec.version.value = int(match["version"])
    elif match["label"]:
        spec.version_label = unquote(match["label"])
    return spec
