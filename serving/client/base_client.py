"""What clients of either transport hold, blocking and for asyncio."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .responses import Signature

if TYPE_CHECKING:
    from .grpc_protocol import GrpcProtocol
    from .rest_protocol import RestProtocol


class BaseClient:
    """A client for one model on one server.

    Args:
        protocol: Builds the requests and reads the replies.
        timeout: Seconds for each call, its retries included.
    """

    def __init__(self, protocol: "RestProtocol | GrpcProtocol", timeout: float):
        if not 0 < timeout < math.inf:
            raise ValueError(
                "`timeout` must be a positive number of seconds. "
                f"Received: timeout={timeout}"
            )
        self.timeout = timeout
        self.protocol = protocol
        self._signatures: Mapping[str, Signature] = {}
        self._closed = False
