"""HTTP/1.1 through uvicorn and h11, with each request's target left as it came."""

from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Protocol(H11Protocol):
    """uvicorn's protocol; the target of a request is in `scope["state"]["target"]`.

    ASGI's `path` and `query_string` do not tell `/x?` from `/x`, which are two requests
    to TensorFlow Serving.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.app_state = dict(self.app_state)
        self.conn = _Connection(h11.SERVER, self.conn._max_incomplete_event_size)
        self.conn.app_state = self.app_state


class _Connection(h11.Connection):
    """h11's connection, which notes the target of each request."""

    app_state: dict[str, Any]

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.app_state["target"] = event.target
        return event
