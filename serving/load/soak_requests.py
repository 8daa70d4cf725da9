"""The requests of a soak: good ones for every signature, and bad ones of every kind.

Bad ones are those that users send: no image, wrong shapes, unknown names, rubbish. Each
comes with the code that TensorFlow Serving answers.
"""

import base64
import dataclasses
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image
from tensorflow_serving.apis import classification_pb2, predict_pb2

from ..client.protocol import Target
from ..client.responses import Metadata, Signature, TensorInfo
from .requests import grpc_requests, rest_requests
from .senders import OK, GrpcRequest, RestRequest

_CLASSIFY = "/tensorflow.serving.PredictionService/Classify"
_NOBODY = "/tensorflow.serving.PredictionService/Nobody"
# Above the limit of an export, 16 MiB.
_TOO_MANY_BYTES = 17 * 2**20

Answer = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Case:
    """A request and what has to come of it.

    Attributes:
        name: for reports.
        request: what is sent; its type says over which transport.
        code: what has to come back.
        read: the arrays in an answer, which are the same each time; None where only the
            code counts.
        weight: how often it is sent, beside the others.
    """

    name: str
    request: RestRequest | GrpcRequest
    code: str = OK
    read: Callable[[bytes], Answer] | None = None
    weight: float = 1.0

    @property
    def good(self) -> bool:
        """Whether it has to be answered."""
        return self.code == OK


def rest_cases(metadata: Metadata) -> list[Case]:
    """Everything over REST.

    Args:
        metadata: of the model.
    """
    return [*_good_rest(metadata), *_bad_rest(metadata)]


def grpc_cases(metadata: Metadata) -> list[Case]:
    """Everything over gRPC.

    Args:
        metadata: of the model.
    """
    return [*_good_grpc(metadata), *_bad_grpc(metadata)]


def _good_rest(metadata: Metadata) -> Iterator[Case]:
    target = Target(metadata.model)
    for label, signature, inputs in _good_inputs(metadata):
        [request] = rest_requests(target, signature, [inputs])
        yield Case(f"REST {label}", request, read=_read_rest)
    path = f"/v1/models/{metadata.model}"
    yield Case("REST status", RestRequest("GET", path), weight=0.2)
    yield Case("REST metadata", RestRequest("GET", f"{path}/metadata"), weight=0.2)
    if "classify" in metadata.signatures:
        examples = [{"image/encoded": {"b64": _base64(data)}} for data in _images()[:2]]
        body = {"signature_name": "classify", "examples": examples}
        yield Case(
            "REST classify, 2 examples",
            RestRequest("POST", f"{path}:classify", json.dumps(body).encode()),
            read=_read_rest_classes,
        )


def _good_grpc(metadata: Metadata) -> Iterator[Case]:
    target = Target(metadata.model)
    for label, signature, inputs in _good_inputs(metadata):
        [request] = grpc_requests(target, signature, [inputs])
        yield Case(f"gRPC {label}", request, read=_read_grpc)
    if "classify" in metadata.signatures:
        yield Case(
            "gRPC classify, 2 examples",
            GrpcRequest(_examples(metadata.model, _images()[:2]), _CLASSIFY),
            read=_read_grpc_classes,
        )


def _bad_rest(metadata: Metadata) -> Iterator[Case]:
    path = f"/v1/models/{metadata.model}"
    predict = f"{path}:predict"
    for label, code, signature, inputs, target in _bad_inputs(metadata):
        [request] = rest_requests(target, signature, [inputs])
        http = {"NOT_FOUND": "HTTP 404"}.get(code, "HTTP 400")
        yield Case(f"REST {label}", request, http, weight=_weight(request.body))
    for label, body in [
        ("garbage", b'{"instances": [1, '),
        ("no object", b"[]"),
        ("empty body", b""),
        ("no inputs", b"{}"),
        ("no instances", b'{"instances": []}'),
        ("text for an image", b'{"instances": ["no image"]}'),
        ("deep nesting", b'{"instances": ' + b"[" * 300 + b"]" * 300 + b"}"),
    ]:
        yield Case(f"REST {label}", RestRequest("POST", predict, body), "HTTP 400")
    for method, where, code in [
        ("GET", predict, "HTTP 400"),
        ("PUT", predict, "HTTP 400"),
        ("POST", f"{path}:nothing", "HTTP 400"),
        ("GET", "/v1/models/nobody", "HTTP 404"),
        ("GET", f"{path}/versions/999999", "HTTP 404"),
        ("GET", "/nothing", "HTTP 404"),
    ]:
        yield Case(f"REST {method} {where}", RestRequest(method, where), code)


def _bad_grpc(metadata: Metadata) -> Iterator[Case]:
    for label, code, signature, inputs, target in _bad_inputs(metadata):
        [request] = grpc_requests(target, signature, [inputs])
        weight = _weight(request.message)
        yield Case(f"gRPC {label}", request, code, weight=weight)
    yield Case("gRPC empty message", GrpcRequest(b""), "INVALID_ARGUMENT")
    yield Case("gRPC unknown method", GrpcRequest(b"", _NOBODY), "UNIMPLEMENTED")
    if "classify" in metadata.signatures:
        message = _examples(metadata.model, [b"no image"])
        request = GrpcRequest(message, _CLASSIFY)
        yield Case("gRPC classify, no image", request, "INVALID_ARGUMENT")


def _good_inputs(metadata: Metadata) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name of the case, of the signature, and the inputs of each."""
    for name, signature in metadata.signatures.items():
        if not signature.inputs or name == "classify":
            continue
        for count in (1, 3):
            yield f"{name}, {count}", name, _values(signature, count)


def _bad_inputs(
    metadata: Metadata,
) -> Iterator[tuple[str, str, str, dict[str, Any], Target]]:
    """Name of the case, gRPC's code, signature, inputs, model and version."""
    model = Target(metadata.model)
    default = metadata.signatures["serving_default"]
    good = _values(default, 1)
    for label, code, target in [
        ("unknown model", "NOT_FOUND", Target("nobody")),
        ("unknown version", "NOT_FOUND", Target(metadata.model, version=999999)),
        ("unknown label", "INVALID_ARGUMENT", Target(metadata.model, label="nobody")),
    ]:
        yield label, code, "serving_default", good, target
    yield "unknown signature", "FAILED_PRECONDITION", "nobody", good, model
    wrong_name = {"nobody": [1.0]}
    yield "unknown input", "INVALID_ARGUMENT", "serving_default", wrong_name, model
    for name, signature in metadata.signatures.items():
        for label, inputs in _bad_values(signature):
            yield f"{name}, {label}", "INVALID_ARGUMENT", name, inputs, model


def _bad_values(signature: Signature) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, info in signature.inputs.items():
        if name == "image_bytes":
            for label, data in _bad_images().items():
                yield label, {name: [data]}
            yield "one bad of three", {name: [*_images()[:2], b"no image"]}
            yield "empty batch", {name: np.empty(0, dtype=object)}
        elif info.shape is not None and len(info.shape) == 4:
            value = _value(info, 1)
            yield "wrong height", {name: value[:, 1:]}
            yield "wrong rank", {name: value[0]}
            yield "wrong type", {name: np.full(value.shape, "text", dtype=object)}
            yield "empty batch", {name: value[:0]}


def _values(signature: Signature, count: int) -> dict[str, Any]:
    return {name: _value(info, count) for name, info in signature.inputs.items()}


def _value(info: TensorInfo, count: int) -> Any:
    """Images for strings, random numbers else."""
    if info.dtype == "string":
        return _images()[:count]
    shape = [count if size is None else size for size in info.shape or ()]
    random = np.random.default_rng(count)
    if info.dtype.startswith(("int", "uint")):
        return random.integers(0, 256, shape).astype(info.dtype)
    return random.uniform(-1, 1, shape).astype(info.dtype)


def _images() -> list[bytes]:
    """A JPEG, a PNG in colour and one in grey, of different sizes."""
    random = np.random.default_rng(0)
    coarse = Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8))
    picture = coarse.resize((320, 240), Image.Resampling.BICUBIC)
    return [
        _encoded(picture, "JPEG"),
        _encoded(picture.rotate(90, expand=True), "PNG"),
        _encoded(picture.convert("L").crop((0, 0, 97, 61)), "PNG"),
    ]


def _bad_images() -> Mapping[str, bytes]:
    jpeg, png, _ = _images()
    return {
        "no image": b"no image",
        "no bytes": b"",
        "half a JPEG": jpeg[: len(jpeg) // 2],
        "half a PNG": png[: len(png) // 2],
        "a header of 30000 x 30000 pixels": _claim_size(png, 30_000),
        "too many bytes": jpeg + bytes(_TOO_MANY_BYTES),
    }


def _claim_size(png: bytes, side: int) -> bytes:
    """The PNG with another width and height in its header."""
    header = png[12:16] + side.to_bytes(4, "big") * 2 + png[24:29]
    return png[:12] + header + zlib.crc32(header).to_bytes(4, "big") + png[33:]


def _encoded(image: Image.Image, form: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


def _weight(body: bytes) -> float:
    """Requests of many megabytes are sent now and then only."""
    return 0.02 if len(body) > 2**20 else 1.0


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _examples(model: str, images: list[bytes]) -> bytes:
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = "classify"
    for data in images:
        example = request.input.example_list.examples.add()
        example.features.feature["image/encoded"].bytes_list.value.append(data)
    return request.SerializeToString()


def _read_rest(answer: bytes) -> Answer:
    outputs = json.loads(answer)["outputs"]
    named = outputs if isinstance(outputs, dict) else {"": outputs}
    return {name: np.array(value) for name, value in named.items()}


def _read_rest_classes(answer: bytes) -> Answer:
    rows = json.loads(answer)["results"]
    return {
        "labels": np.array([[label for label, _ in row] for row in rows]),
        "scores": np.array([[score for _, score in row] for row in rows]),
    }


def _read_grpc(answer: bytes) -> Answer:
    outputs = predict_pb2.PredictResponse.FromString(answer).outputs
    return {name: tf.make_ndarray(value) for name, value in outputs.items()}


def _read_grpc_classes(answer: bytes) -> Answer:
    result = classification_pb2.ClassificationResponse.FromString(answer).result
    classes = [each.classes for each in result.classifications]
    return {
        "labels": np.array([[each.label for each in row] for row in classes]),
        "scores": np.array([[each.score for each in row] for row in classes]),
    }
