"""Random gRPC calls to the model of protocol_model.py, with what must be answered."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from fuzz_requests import LABELS, MODEL, VERSIONS, array, shape_of
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from protocol_model import ECHOED
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)
from tensorflow_serving.apis.model_pb2 import ModelSpec

_PREDICTION = "/tensorflow.serving.PredictionService"
_MODEL = "/tensorflow.serving.ModelService"
# By path: the request's and the answer's class.
METHODS: dict[str, tuple[Any, Any]] = {
    f"{_PREDICTION}/Predict": (predict_pb2.PredictRequest, predict_pb2.PredictResponse),
    f"{_PREDICTION}/Classify": (
        classification_pb2.ClassificationRequest,
        classification_pb2.ClassificationResponse,
    ),
    f"{_PREDICTION}/Regress": (
        regression_pb2.RegressionRequest,
        regression_pb2.RegressionResponse,
    ),
    f"{_PREDICTION}/MultiInference": (
        inference_pb2.MultiInferenceRequest,
        inference_pb2.MultiInferenceResponse,
    ),
    f"{_PREDICTION}/GetModelMetadata": (
        get_model_metadata_pb2.GetModelMetadataRequest,
        get_model_metadata_pb2.GetModelMetadataResponse,
    ),
    f"{_MODEL}/GetModelStatus": (
        get_model_status_pb2.GetModelStatusRequest,
        get_model_status_pb2.GetModelStatusResponse,
    ),
    f"{_MODEL}/HandleReloadConfigRequest": (
        model_management_pb2.ReloadConfigRequest,
        model_management_pb2.ReloadConfigResponse,
    ),
    "/grpc.health.v1.Health/Check": (
        health_pb2.HealthCheckRequest,
        health_pb2.HealthCheckResponse,
    ),
}


class Call(NamedTuple):
    """A gRPC call.

    Attributes:
        path: service and method.
        request: the serialized request.
        check: looks at the answer; None where only the codes are known.
    """

    path: str
    request: bytes
    check: Callable[[Any], None] | None


def _spec(rng: random.Random, signature: str) -> tuple[ModelSpec, int]:
    """A ModelSpec, and the version that answers."""
    spec = ModelSpec(name=MODEL, signature_name=signature)
    choice = rng.choice(("newest", "version", "label"))
    if choice == "version":
        spec.version.value = rng.choice(VERSIONS)
        return spec, spec.version.value
    if choice == "label":
        spec.version_label = rng.choice(list(LABELS))
        return spec, LABELS[spec.version_label]
    return spec, max(VERSIONS)


def _answered(answer_spec: Any, signature: str, version: int) -> None:
    assert answer_spec.name == MODEL
    assert answer_spec.signature_name == signature
    assert answer_spec.version.value == version


def valid_call(rng: random.Random) -> Call:
    """A call that is answered by OK."""
    makers = (echo, echo, default, filtered, examples, multi, metadata, status, health)
    return rng.choice(makers)(rng)


def _tensor(rng: random.Random, values: np.ndarray) -> Any:
    """A TensorProto with its values in the content or in the typed field."""
    proto = tf.make_tensor_proto(values)
    if rng.random() < 0.5 or not values.size or values.dtype == object:
        return proto
    copy = tf.make_tensor_proto(values.reshape(-1).tolist(), dtype=values.dtype)
    if copy.tensor_content:
        return proto
    copy.tensor_shape.CopyFrom(proto.tensor_shape)
    return copy


def _predict(
    rng: random.Random,
    signature: str,
    x: np.ndarray,
    expected: Callable[[int], np.ndarray],
) -> Call:
    spec, version = _spec(rng, signature)
    request = predict_pb2.PredictRequest(model_spec=spec)
    request.inputs["x"].CopyFrom(_tensor(rng, x))

    def check(answer: Any) -> None:
        _answered(answer.model_spec, signature or "serving_default", version)
        received = tf.make_ndarray(answer.outputs["y"])
        assert received.dtype == x.dtype
        wanted = expected(version)
        if x.dtype.kind == "f":
            np.testing.assert_allclose(received, wanted, rtol=1e-6)
        else:
            np.testing.assert_array_equal(received, wanted)

    return Call(f"{_PREDICTION}/Predict", request.SerializeToString(), check)


def echo(rng: random.Random) -> Call:
    """Any type and shape comes back as it was sent."""
    name = rng.choice(ECHOED)
    x = array(rng, name, shape_of(rng))
    return _predict(rng, f"echo_{name}", x, lambda version: x)


def default(rng: random.Random) -> Call:
    """The default signature computes."""
    x = array(rng, "float32", shape_of(rng))

    def expected(version: int) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.float32(3) * x - np.float32(version)

    return _predict(rng, rng.choice(("", "serving_default")), x, expected)


def filtered(rng: random.Random) -> Call:
    """Only the outputs that are asked for come; an input may have its default."""
    spec, version = _spec(rng, "several")
    request = predict_pb2.PredictRequest(model_spec=spec)
    number, row = np.int64([3, -4]), np.float32([[1, 2], [3, 4]])
    request.inputs["number"].CopyFrom(tf.make_tensor_proto(number))
    request.inputs["text"].CopyFrom(tf.make_tensor_proto([b"a", b"\xff"]))
    request.inputs["row"].CopyFrom(tf.make_tensor_proto(row))
    outputs = {
        "number": 2 * number,
        "text_bytes": np.array([b"a", b"\xff"], object),
        "total": row.sum(1),
    }
    wanted = rng.sample(list(outputs), rng.randint(0, 3))
    request.output_filter.extend(wanted)

    def check(answer: Any) -> None:
        _answered(answer.model_spec, "several", version)
        assert set(answer.outputs) == set(wanted or outputs)
        for alias, proto in answer.outputs.items():
            np.testing.assert_array_equal(tf.make_ndarray(proto), outputs[alias])

    return Call(f"{_PREDICTION}/Predict", request.SerializeToString(), check)


def _add_examples(rng: random.Random, request: Any) -> list[float]:
    x = [rng.randint(-99, 99) / 8 for _ in range(rng.randint(1, 4))]
    listed = request.input.example_list
    if rng.random() < 0.5:
        listed = request.input.example_list_with_context
        listed.context.features.feature["other"].int64_list.value.append(1)
    for value in x:
        example = listed.examples.add()
        example.features.feature["x"].float_list.value.append(value)
    return x


def _check_classes(result: Any, x: list[float]) -> None:
    rows = [[(c.label, c.score) for c in row.classes] for row in result.classifications]
    assert rows == [[("low", 1 - value), ("high", value)] for value in x]


def examples(rng: random.Random) -> Call:
    """Classify and Regress."""
    name = rng.choice(("Classify", "Regress"))
    signature = name.lower()
    spec, version = _spec(rng, signature)
    request = METHODS[f"{_PREDICTION}/{name}"][0](model_spec=spec)
    x = _add_examples(rng, request)

    def check(answer: Any) -> None:
        _answered(answer.model_spec, signature, version)
        if name == "Classify":
            _check_classes(answer.result, x)
        else:
            values = [one.value for one in answer.result.regressions]
            assert values == [2 * value for value in x]

    return Call(f"{_PREDICTION}/{name}", request.SerializeToString(), check)


def multi(rng: random.Random) -> Call:
    """MultiInference with one task or two."""
    names = rng.sample(("classify", "regress"), rng.randint(1, 2))
    specs = [_spec(rng, name) for name in names]
    request = inference_pb2.MultiInferenceRequest()
    for name, (spec, _) in zip(names, specs, strict=True):
        request.tasks.add(model_spec=spec, method_name=f"tensorflow/serving/{name}")
    x = _add_examples(rng, request)

    def check(answer: Any) -> None:
        for name, result in zip(names, answer.results, strict=True):
            _answered(result.model_spec, name, specs[0][1])
            if name == "classify":
                _check_classes(result.classification_result, x)
            else:
                values = [one.value for one in result.regression_result.regressions]
                assert values == [2 * value for value in x]

    return Call(f"{_PREDICTION}/MultiInference", request.SerializeToString(), check)


def metadata(rng: random.Random) -> Call:
    """GetModelMetadata."""
    spec, version = _spec(rng, "")
    request = get_model_metadata_pb2.GetModelMetadataRequest(
        model_spec=spec, metadata_field=["signature_def"]
    )

    def check(answer: Any) -> None:
        signatures = get_model_metadata_pb2.SignatureDefMap()
        assert answer.metadata["signature_def"].Unpack(signatures)
        assert "echo_int8" in signatures.signature_def
        assert answer.model_spec.version.value == version

    return Call(f"{_PREDICTION}/GetModelMetadata", request.SerializeToString(), check)


def status(rng: random.Random) -> Call:
    """GetModelStatus; labels are not looked at."""
    spec, _ = _spec(rng, "")
    request = get_model_status_pb2.GetModelStatusRequest(model_spec=spec)
    wanted = [spec.version.value] if spec.HasField("version") else [2, 1]

    def check(answer: Any) -> None:
        assert [one.version for one in answer.model_version_status] == wanted

    return Call(f"{_MODEL}/GetModelStatus", request.SerializeToString(), check)


def health(rng: random.Random) -> Call:
    """Health.Check of a service that there is."""
    name = rng.choice(("", "PredictionService", "ModelService"))
    request = health_pb2.HealthCheckRequest(service=name)

    def check(answer: Any) -> None:
        assert answer.status == health_pb2.HealthCheckResponse.SERVING

    return Call("/grpc.health.v1.Health/Check", request.SerializeToString(), check)


# ---- calls that may be wrong -------------------------------------------------------


def strange_call(rng: random.Random) -> Call:
    """Random bytes, random fields, a message of another method, or a damaged one."""
    path = rng.choice([*METHODS, f"{_PREDICTION}/Nope", "/nope.Service/Predict"])
    kind = rng.choice(("bytes", "fields", "other", "damaged", "tensor"))
    if kind == "bytes":
        request = rng.randbytes(rng.randint(0, 60))
    elif kind == "fields" and path in METHODS:
        request = _random_message(rng, METHODS[path][0]()).SerializeToString()
    elif kind == "tensor":
        return _strange_tensor(rng)
    else:
        call = valid_call(rng)
        request = call.request if kind == "other" else _damaged(rng, call.request)
        path = rng.choice((path, call.path))
    if path.endswith("HandleReloadConfigRequest"):
        # What is served must stay: only what names no list of models.
        request = model_management_pb2.ReloadConfigRequest().SerializeToString()
    return Call(path, request, None)


def _damaged(rng: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data or b"\0")
    for _ in range(rng.randint(1, 3)):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged[: rng.choice((len(damaged), rng.randint(0, len(damaged))))])


def _strange_tensor(rng: random.Random) -> Call:
    """A PredictRequest whose tensor has any type, sizes and contents."""
    signature = rng.choice((*(f"echo_{name}" for name in ECHOED), "pairs", "nope", ""))
    request = predict_pb2.PredictRequest(model_spec=_spec(rng, signature)[0])
    tensor = request.inputs[rng.choice(("x", "x", "x", "z"))]
    tensor.dtype = rng.choice((*range(24), 101, 999))
    sizes = (0, 1, 2, 3, -1, -2, 2**31, 2**40, 2**62)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 65, 255))):
        tensor.tensor_shape.dim.add(size=rng.choice(sizes))
    tensor.tensor_shape.unknown_rank = rng.random() < 0.1
    if rng.random() < 0.5:
        tensor.tensor_content = rng.randbytes(rng.choice((0, 1, 4, 8, 16)))
    for field, value in (("float_val", 1.5), ("int_val", -3), ("string_val", b"s")):
        if rng.random() < 0.4:
            getattr(tensor, field).extend([value] * rng.randint(1, 3))
    request.output_filter.extend(rng.choice(([], [], ["y"], ["y", "y"], ["z"])))
    return Call(f"{_PREDICTION}/Predict", request.SerializeToString(), None)


_SCALARS: dict[int, Callable[[random.Random], Any]] = {
    descriptor_pb2.FieldDescriptorProto.TYPE_STRING: lambda rng: rng.choice(
        (MODEL, MODEL, "", "x", "é\0", "classify", "regress", "__saved_model_init_op")
    ),
    descriptor_pb2.FieldDescriptorProto.TYPE_BYTES: lambda rng: rng.randbytes(3),
    descriptor_pb2.FieldDescriptorProto.TYPE_BOOL: lambda rng: rng.random() < 0.5,
    descriptor_pb2.FieldDescriptorProto.TYPE_INT64: lambda rng: rng.choice((-1, 1, 2)),
    descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT: lambda rng: rng.uniform(-1, 1),
}


def _random_message(rng: random.Random, message: Any, depth: int = 0) -> Any:
    """Sets some of the fields of a message, and of the messages in it."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.4 or depth > 5:
            continue
        many = field.is_repeated
        if field.type == field.TYPE_MESSAGE and not many:
            inner = getattr(message, field.name)
            inner.SetInParent()
            _random_message(rng, inner, depth + 1)
        elif field.type == field.TYPE_MESSAGE:
            if not field.message_type.GetOptions().map_entry:
                inner = getattr(message, field.name).add()
                _random_message(rng, inner, depth + 1)
        elif field.type in _SCALARS and many:
            getattr(message, field.name).append(_SCALARS[field.type](rng))
        elif field.type in _SCALARS:
            setattr(message, field.name, _SCALARS[field.type](rng))
    return message
