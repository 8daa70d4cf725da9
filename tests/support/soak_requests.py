"""The requests of a soak: valid ones for every signature, and many invalid ones.

Each invalid request has the error code that TensorFlow Serving returns for it.
"""

import dataclasses
import io
import json
import zlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from PIL import Image
from tensorflow_serving.apis import classification_pb2, predict_pb2

from serving.client.grpc_protocol import GrpcProtocol
from serving.client.protocol import Target
from serving.client.rest_protocol import RestProtocol, RestRequest

SERVICE = "/tensorflow.serving.PredictionService"
HTTP_CODES = {"OK": "HTTP 200", "NOT_FOUND": "HTTP 404"}
# Above the default limit of an export, 16 MiB.
TOO_MANY_BYTES = 17 * 2**20


@dataclasses.dataclass(frozen=True)
class GrpcRequest:
    """A serialized message, and the full name of its method."""

    message: bytes
    method: str = f"{SERVICE}/Predict"


@dataclasses.dataclass(frozen=True)
class Case:
    """A request and its expected outcome.

    Attributes:
        name: For the report.
        request: The request; its type decides about the transport.
        code: The expected HTTP or gRPC status.
        read: Arrays by name from an answer, equal in all answers; None: not compared.
        weight: Relative frequency among the valid or the invalid requests.
    """

    name: str
    request: RestRequest | GrpcRequest
    code: str
    read: Callable[[bytes], dict[str, np.ndarray]] | None = None
    weight: float = 1.0

    @property
    def valid(self):
        return self.code in ("OK", "HTTP 200")


def soak_cases(metadata):
    """All cases for a model that `python -m serving export` has written."""
    cases = []
    for name, code, signature, inputs, target in predictions(metadata):
        rest = RestProtocol(target).predict(signature, inputs, {}).request
        message = GrpcProtocol(target).predict(signature, inputs, {}).request.message
        size = message.ByteSize()
        # Requests of many megabytes are sent now and then only.
        weight = 0.02 if size > 2**20 else 1.0
        http = HTTP_CODES.get(code, "HTTP 400")
        valid = code == "OK"
        read_rest, read_grpc = (rest_outputs, grpc_outputs) if valid else (None, None)
        cases += [
            Case(f"REST {name}", rest, http, read_rest, weight),
            Case(
                f"gRPC {name}",
                GrpcRequest(message.SerializeToString()),
                code,
                read_grpc,
                weight,
            ),
        ]
    return [*cases, *rest_cases(metadata.model), *grpc_cases(metadata.model)]


def predictions(metadata):
    """Name, gRPC code, signature, inputs and target of requests of Predict."""
    model, default = Target(metadata.model), "serving_default"
    signatures = {n: s for n, s in metadata.signatures.items() if n != "classify"}
    for name, signature in signatures.items():
        [(alias, info)] = signature.inputs.items()
        for count in (1, 3):
            yield f"{name}, {count}", "OK", name, {alias: values(info, count)}, model
        for label, value in invalid_values(info):
            yield f"{name}, {label}", "INVALID_ARGUMENT", name, {alias: value}, model
    images = {"image_bytes": image_files()[:1]}
    missing = Target(metadata.model, version=999999)
    unlabelled = Target(metadata.model, label="nobody")
    yield "unknown model", "NOT_FOUND", default, images, Target("nobody")
    yield "unknown version", "NOT_FOUND", default, images, missing
    yield "unknown label", "INVALID_ARGUMENT", default, images, unlabelled
    yield "unknown signature", "FAILED_PRECONDITION", "nobody", images, model
    wrong = {"nobody": np.ones(1, "float32")}
    yield "unknown input", "INVALID_ARGUMENT", default, wrong, model


def values(info, count):
    """Images for strings, random numbers otherwise."""
    if info.dtype == "string":
        return image_files()[:count]
    random = np.random.default_rng(count)
    shape = [count, *info.shape[1:]]
    if info.dtype == "uint8":
        return random.integers(0, 256, shape, np.uint8)
    return random.uniform(-1, 1, shape).astype(info.dtype)


def invalid_values(info):
    """Name and value of inputs that are refused."""
    if info.dtype == "string":
        jpeg, png, _ = image_files()
        yield "not an image", [b"not an image"]
        yield "no bytes", [b""]
        yield "half a JPEG", [jpeg[: len(jpeg) // 2]]
        yield "half a PNG", [png[: len(png) // 2]]
        yield "30000 x 30000 pixels", [claim_size(png, 30_000)]
        yield "too many bytes", [jpeg + bytes(TOO_MANY_BYTES)]
        yield "one bad of three", [jpeg, png, b"not an image"]
        yield "empty batch", np.empty(0, dtype=object)
    else:
        value = values(info, 1)
        yield "wrong height", value[:, 1:]
        yield "wrong rank", value[0]
        yield "wrong type", np.full(value.shape, "text", dtype=object)
        yield "empty batch", value[:0]


def rest_cases(model):
    """Requests of the REST interface other than predictions."""
    path = f"/v1/models/{model}"
    for method, where, status in [
        ("GET", path, 200),
        ("GET", f"{path}/metadata", 200),
        ("GET", f"{path}:predict", 400),
        ("PUT", f"{path}:predict", 400),
        ("POST", f"{path}:nothing", 400),
        ("GET", "/v1/models/nobody", 404),
        ("GET", f"{path}/versions/999999", 404),
        ("GET", "/nothing", 404),
    ]:
        request = RestRequest(method, where, None)
        yield Case(f"REST {method} {where}", request, f"HTTP {status}", weight=0.3)
    for name, body in [
        ("malformed JSON", b'{"instances": [1, '),
        ("not an object", b"[]"),
        ("empty body", b""),
        ("no inputs", b"{}"),
        ("no instances", b'{"instances": []}'),
        ("text for an image", b'{"instances": ["no image"]}'),
        ("deep nesting", b'{"instances": ' + b"[" * 300 + b"]" * 300 + b"}"),
    ]:
        yield Case(
            f"REST {name}", RestRequest("POST", f"{path}:predict", body), "HTTP 400"
        )


def grpc_cases(model):
    """Requests of the gRPC interface other than Predict."""

    def classify(image):
        request = classification_pb2.ClassificationRequest()
        request.model_spec.name = model
        request.model_spec.signature_name = "classify"
        features = request.input.example_list.examples.add().features
        features.feature["image/encoded"].bytes_list.value.append(image)
        return GrpcRequest(request.SerializeToString(), f"{SERVICE}/Classify")

    good, bad = classify(image_files()[0]), classify(b"not an image")
    unknown = GrpcRequest(b"", f"{SERVICE}/Nobody")
    yield Case("gRPC classify", good, "OK", grpc_classes)
    yield Case("gRPC classify, not an image", bad, "INVALID_ARGUMENT")
    yield Case("gRPC empty message", GrpcRequest(b""), "INVALID_ARGUMENT")
    yield Case("gRPC unknown method", unknown, "UNIMPLEMENTED")


def image_files():
    """A JPEG, a colour PNG and a grey PNG of different sizes."""
    random = np.random.default_rng(0)
    coarse = Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8))
    picture = coarse.resize((320, 240), Image.Resampling.BICUBIC)
    return [
        encoded(picture, "JPEG"),
        encoded(picture.rotate(90, expand=True), "PNG"),
        encoded(picture.convert("L").crop((0, 0, 97, 61)), "PNG"),
    ]


def encoded(image, form):
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


def claim_size(png, side):
    """The PNG with another width and height in its header."""
    header = png[12:16] + side.to_bytes(4, "big") * 2 + png[24:29]
    return png[:12] + header + zlib.crc32(header).to_bytes(4, "big") + png[33:]


def rest_outputs(answer):
    outputs = json.loads(answer)["outputs"]
    named = outputs if isinstance(outputs, dict) else {"": outputs}
    return {name: np.array(value) for name, value in named.items()}


def grpc_outputs(answer):
    outputs = predict_pb2.PredictResponse.FromString(answer).outputs
    return {name: tf.make_ndarray(value) for name, value in outputs.items()}


def grpc_classes(answer):
    result = classification_pb2.ClassificationResponse.FromString(answer).result
    [classes] = [each.classes for each in result.classifications]
    return {
        "labels": np.array([each.label for each in classes]),
        "scores": np.array([each.score for each in classes]),
    }
