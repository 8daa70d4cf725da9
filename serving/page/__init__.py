"""The page of a server: images in; classes, attention and neighbors out.

`index.html` is the whole of it and asks the server it came from, in TensorFlow
Serving's REST protocol. `page/models.json` alone is not in that protocol, which has no
request for the names of the models.
"""

import functools
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from starlette.responses import Response

MODELS_PATH = "/page/models.json"


# The page asks its own server alone, and no other site may show it in a frame.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def html_response() -> Response:
    """The answer that holds the page."""
    return Response(_html(), media_type="text/html", headers=_HEADERS)


@functools.cache
def _html() -> bytes:
    return resources.files(__package__).joinpath("index.html").read_bytes()


def models_document(
    url: str, labels: Mapping[str, Sequence[str] | None], selected: str = ""
) -> dict[str, Any]:
    """The contents of models.json.

    Args:
        url: Of the server, as its users write it.
        labels: Labels of each model by its name; None if they are unknown.
        selected: The version to select, such as "versions/3" or "labels/canary".
    """
    models = [
        {"name": name, "labels": known, "selected": selected}
        for name, known in labels.items()
    ]
    return {"url": url, "models": models}
