"""The paths of the REST interface: which operation a method and a path ask for."""

import re
from typing import NamedTuple
from urllib.parse import unquote

from tensorflow_serving.apis.model_pb2 import ModelSpec

from .status_errors import InvalidArgument

VERBS = ("classify", "regress", "predict")

# Paths are matched without regard to case. Verbs in another case are matched and then
# refused, so that an invalid version is reported first.
_NAME = r"(?P<name>[^/:]+)"
_CHOICE = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_VERB = f"(?P<verb>{'|'.join(VERBS)})"
_FLAGS = re.ASCII | re.IGNORECASE
_POST = re.compile(f"/v1/models/{_NAME}{_CHOICE}:{_VERB}", _FLAGS)
_GET = re.compile(f"/v1/models(?:/{_NAME})?{_CHOICE}(?P<rest>/metadata)?", _FLAGS)


class Route(NamedTuple):
    """An operation on a model, with version or label; `api` is its name in metrics."""

    operation: str
    api: str
    spec: ModelSpec


class VersionOverflow(Exception):
    """A version number beyond 64 bits; the answer is 400 with an empty body."""


def route(method: str, path: str) -> Route:
    """Parse a request line.

    Args:
        path: the path with its query, percent-encoded.

    Raises:
        InvalidArgument: there is no such route.
        VersionOverflow: a version number beyond 64 bits.
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
        digits = match["version"].lstrip("0") or "0"
        if len(digits) > 19 or int(digits) >= 2**63:
            raise VersionOverflow
        spec.version.value = int(digits)
    elif match["label"]:
        spec.version_label = unquote(match["label"])
    return spec
