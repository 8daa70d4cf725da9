"""What is sent: images for a signature, encoded once as requests of one transport."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..client.protocol import Target
from ..client.responses import TensorInfo
from .senders import GrpcRequest, RestRequest


def rest_requests(
    target: Target, signature_name: str, inputs: Sequence[dict[str, Any]]
) -> list[RestRequest]:
    """Predict requests for REST.

    Args:
        target: model and version.
        signature_name: of the model.
        inputs: for each request arrays or lists of bytes, by name.
    """
    from ..client.rest import RestProtocol

    protocol = RestProtocol(target)
    questions = (protocol.predict(signature_name, values, {}) for values in inputs)
    return [
        RestRequest(q.request.method, q.request.path, q.request.content)
        for q in questions
    ]


def grpc_requests(
    target: Target, signature_name: str, inputs: Sequence[dict[str, Any]]
) -> list[GrpcRequest]:
    """Predict requests for gRPC; imports TensorFlow.

    Args:
        target: model and version.
        signature_name: of the model.
        inputs: for each request arrays or lists of bytes, by name.
    """
    from ..client.grpc import GrpcProtocol

    protocol = GrpcProtocol(target)
    questions = (protocol.predict(signature_name, values, {}) for values in inputs)
    return [GrpcRequest(q.request.message.SerializeToString()) for q in questions]


def image_inputs(
    files: Sequence[Path], name: str, info: TensorInfo, images_per_request: int
) -> list[dict[str, Any]]:
    """Inputs of requests that take the images in turn.

    Args:
        files: image files; repeated where a request has more images than there are.
        name: of the signature's input.
        info: its type: string for the files' bytes, uint8 or float32 [B, H, W, C] for
            pixels, float32 as -1 to 1.
        images_per_request: images in each request.

    Raises:
        OSError: a file cannot be read, or is no image where pixels are asked for.
        ValueError: the input takes no images.
    """
    values = [_value(file, name, info) for file in files]
    count = -(-len(values) // images_per_request)
    turns = itertools.cycle(values)
    rows = (list(itertools.islice(turns, images_per_request)) for _ in range(count))
    if info.dtype == "string":
        return [{name: row} for row in rows]
    return [{name: np.stack(row)} for row in rows]


def _value(file: Path, name: str, info: TensorInfo) -> Any:
    if info.dtype == "string":
        return file.read_bytes()
    sizes = [size for size in (info.shape or ())[1:] if size is not None]
    if info.dtype not in ("uint8", "float32") or len(sizes) != 3:
        raise ValueError(
            "The signature must take image bytes, or pixels of one size. Received: "
            f"{name}, {info.dtype} {info.shape}"
        )
    pixels = _pixels(file, *sizes)
    return pixels if info.dtype == "uint8" else np.float32(pixels / 127.5 - 1)


def _pixels(file: Path, height: int, width: int, channels: int) -> np.ndarray:
    """uint8 [height, width, channels]."""
    from PIL import Image

    with Image.open(file) as image:
        resized = image.convert("L" if channels == 1 else "RGB").resize((width, height))
    return np.asarray(resized).reshape(height, width, channels)
