"""The page of a server: images in; classes, attention and neighbors out.

`index.html` is the whole of it and asks the server it came from, in TensorFlow
Serving's REST protocol. `page/models.json` alone is not in that protocol, which has no
request for the names of the models.
"""

import functools
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

MODELS_PATH = "/page/models.json"


@functools.cache
def html() -> bytes:
    """The page, UTF-8."""
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
