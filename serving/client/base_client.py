"""What clients of either transport hold, blocking and for asyncio."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgument
from .protocol import Call
from .responses import Signature

if TYPE_CHECKING:
    from .grpc_protocol import GrpcProtocol
    from .rest_protocol import RestProtocol

_UNKNOWN = Signature(inputs={}, outputs={})


class BaseClient:
    """A client for one model on one server.

    Args:
        protocol: Builds the requests and reads the replies.
        timeout: Seconds for each call, its retries included.
    """

    def __init__(self, protocol: "RestProtocol | GrpcProtocol", timeout: float) -> None:
        if not 0 < timeout < math.inf:
            raise ValueError(
                "`timeout` must be a positive number of seconds. "
                f"Received: timeout={timeout}"
            )
        self.timeout = timeout
        self.protocol = protocol
        self._signatures: Mapping[str, Signature] = {}
        self._closed = False

    def _predict_call(
        self, signature_name: str, inputs: Mapping[str, Any]
    ) -> Call[dict[str, Any]]:
        """Convert inputs to the types of the signature."""
        from .tensors import input_array  # NumPy: as long to import as httpx2

        # The server refuses an unknown name, in its own words.
        signature = self._signatures.get(signature_name, _UNKNOWN)
        try:
            arrays = {
                name: input_array(name, value, signature.inputs.get(name))
                for name, value in inputs.items()
            }
            return self.protocol.predict(signature_name, arrays, signature.outputs)
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidArgument(f"`inputs` cannot be sent: {error}") from error
