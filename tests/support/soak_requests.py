"""The requests of a soak: valid ones for every signature, and many invalid ones.

Each invalid request has the error that TensorFlow Serving's answer raises in a client.
"""

import dataclasses
import zlib

import numpy as np
from image_bytes import image_bytes
from PIL import Image

from serving.client import FailedPrecondition, InvalidArgument, NotFound
from serving.client.grpc_protocol import GrpcProtocol
from serving.client.protocol import Call, Target
from serving.client.rest_protocol import RestProtocol, RestRequest

# Above the default limit of an export, 16 MiB.
TOO_MANY_BYTES = 17 * 2**20
MALFORMED_BODIES = {
    "malformed JSON": b'{"instances": [1, ',
    "not an object": b"[]",
    "empty body": b"",
    "no inputs": b"{}",
    "no instances": b'{"instances": []}',
    "text for an image": b'{"instances": ["no image"]}',
    "deep nesting": b'{"instances": ' + b"[" * 300 + b"]" * 300 + b"}",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A request and its expected outcome.

    Attributes:
        transport: "REST" or "gRPC".
        name: For the report.
        call: For a client's `ask_once`.
        error: The expected class of `ServingError`; None for a valid request.
        weight: Relative frequency among the valid or the invalid requests.
    """

    transport: str
    name: str
    call: Call
    error: type | None = None
    weight: float = 1.0


def soak_cases(metadata):
    """All cases for a model that `keras-vit export` has written."""
    cases = []
    for transport, protocol in (("REST", RestProtocol), ("gRPC", GrpcProtocol)):
        for name, error, signature, inputs, target in predictions(metadata):
            outputs = {}
            if signature in metadata.signatures:
                outputs = metadata.signatures[signature].outputs
            call = protocol(target).predict(signature, inputs, outputs)
            # Requests of many megabytes are sent now and then only.
            weight = 0.02 if "too many" in name else 1.0
            cases.append(Case(transport, name, call, error, weight))
    path = f"/v1/models/{metadata.model}:predict"
    read = RestProtocol(Target(metadata.model)).status().read
    for name, body in MALFORMED_BODIES.items():
        call = Call(RestRequest("POST", path, body), read)
        cases.append(Case("REST", name, call, InvalidArgument))
    return cases


def predictions(metadata):
    """Name, error, signature, inputs and target of requests."""
    model, default = Target(metadata.model), "serving_default"
    for name, signature in metadata.signatures.items():
        if name == "classify":
            continue  # not an input of Predict
        [(alias, info)] = signature.inputs.items()
        for count in (1, 3):
            yield f"{name}, {count}", None, name, {alias: values(info, count)}, model
        for label, value in invalid_values(info):
            yield f"{name}, {label}", InvalidArgument, name, {alias: value}, model
    images = {"image_bytes": image_files()[:1]}
    missing = Target(metadata.model, version=999999)
    unlabeled = Target(metadata.model, label="nobody")
    yield "unknown model", NotFound, default, images, Target("nobody")
    yield "unknown version", NotFound, default, images, missing
    yield "unknown label", InvalidArgument, default, images, unlabeled
    yield "unknown signature", FailedPrecondition, "nobody", images, model
    wrong = {"nobody": np.ones(1, "float32")}
    yield "unknown input", InvalidArgument, default, wrong, model


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


def image_files():
    """A JPEG, a color PNG and a gray PNG of different sizes."""
    random = np.random.default_rng(0)
    coarse = Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8))
    picture = coarse.resize((320, 240), Image.Resampling.BICUBIC)
    return [
        image_bytes(picture, "JPEG"),
        image_bytes(picture.rotate(90, expand=True), "PNG"),
        image_bytes(picture.convert("L").crop((0, 0, 97, 61)), "PNG"),
    ]


def claim_size(png, side):
    """The PNG with another width and height in its header."""
    header = png[12:16] + side.to_bytes(4, "big") * 2 + png[24:29]
    return png[:12] + header + zlib.crc32(header).to_bytes(4, "big") + png[33:]
