"""TensorProto messages against TensorFlow's own conversions and official messages."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pool
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    predict_pb2,
)

from serving.client import ServingError, messages, tensor_messages
from serving.client.grpc_protocol import GrpcProtocol
from serving.client.protocol import Target

OFFICIAL = {
    "PredictRequest": predict_pb2.PredictRequest,
    "PredictResponse": predict_pb2.PredictResponse,
    "GetModelMetadataRequest": get_model_metadata_pb2.GetModelMetadataRequest,
    "GetModelMetadataResponse": get_model_metadata_pb2.GetModelMetadataResponse,
    "SignatureDefMap": get_model_metadata_pb2.SignatureDefMap,
    "GetModelStatusRequest": get_model_status_pb2.GetModelStatusRequest,
    "GetModelStatusResponse": get_model_status_pb2.GetModelStatusResponse,
    "ReloadConfigRequest": model_management_pb2.ReloadConfigRequest,
    "ReloadConfigResponse": model_management_pb2.ReloadConfigResponse,
}
DTYPES = [
    *("float16", "float32", "float64", "bool", "complex64", "complex128"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
]


def check_fields(ours, official, seen):
    """Every field has the official name, number and type, in nested messages too."""
    if ours.full_name in seen:
        return
    seen.add(ours.full_name)
    for field in ours.fields:
        other = official.fields_by_name[field.name]
        assert (field.number, field.type) == (other.number, other.type), field.full_name
        assert field.is_repeated == other.is_repeated, field.full_name
        if field.message_type:
            check_fields(field.message_type, other.message_type, seen)
        if field.enum_type:
            values = {v.name: v.number for v in field.enum_type.values}
            theirs = {v.name: v.number for v in other.enum_type.values}
            assert values.items() <= theirs.items(), field.full_name


@pytest.mark.parametrize("name", OFFICIAL)
def test_messages_have_the_official_fields(name):
    seen = set()
    ours = messages.POOL.FindMessageTypeByName(f"tensorflow.serving.{name}")
    check_fields(ours, OFFICIAL[name].DESCRIPTOR, seen)
    assert len(seen) > 1


def test_messages_do_not_share_the_official_pool():
    assert messages.PredictRequest.DESCRIPTOR.file.pool is not descriptor_pool.Default()


def random_array(name, shape=(2, 3)):
    values = np.random.default_rng(0).normal(0, 50, shape)
    if name.startswith("complex"):
        values = values + 1j * values.T.reshape(shape)
    return np.abs(values).astype(name) if name[0] == "u" else values.astype(name)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
def test_tensorflow_reads_the_arrays_that_are_sent(name, shape):
    values = random_array(name, shape)
    content = tensor_messages.from_values(values).SerializeToString()
    read = tf.io.parse_tensor(content, name).numpy()
    np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize("name", ["float32", "float64", "int32", "int64", "uint8"])
def test_arrays_have_tensorflows_bytes(name):
    values = random_array(name)
    ours = tensor_messages.from_values(values).SerializeToString(deterministic=True)
    theirs = tf.make_tensor_proto(values).SerializeToString(deterministic=True)
    assert ours == theirs


@pytest.mark.parametrize("shape", [(), (1,), (2, 2)])
def test_strings_have_tensorflows_bytes(shape):
    values = np.array([b"", b"\x00\xff", "é".encode(), b"a" * 300], object)
    values = values[: int(np.prod(shape))].reshape(shape)
    ours = tensor_messages.from_values(values).SerializeToString(deterministic=True)
    theirs = tf.make_tensor_proto(values).SerializeToString(deterministic=True)
    assert ours == theirs
    flat = list(values.ravel())
    ours = tensor_messages.from_values(flat).SerializeToString(deterministic=True)
    assert ours == tf.make_tensor_proto(flat).SerializeToString(deterministic=True)


@pytest.mark.parametrize("name", ["big", "little"])
def test_byte_orders_are_sent_as_little_endian(name):
    values = random_array("float32").astype({"big": ">f4", "little": "<f4"}[name])
    sent = tensor_messages.from_values(values)
    theirs = tensor_pb2.TensorProto.FromString(sent.SerializeToString())
    np.testing.assert_array_equal(tf.make_ndarray(theirs), values)


def stored_in_fields(values):
    """A TensorProto without `tensor_content`, as servers may answer."""
    proto = tf.make_tensor_proto(values)
    fields = tf.make_tensor_proto(values.ravel()[:1])
    fields.ClearField("tensor_shape")
    for value in values.ravel()[1:]:
        fields.MergeFrom(tf.make_tensor_proto(np.array([value])))
    fields.tensor_shape.CopyFrom(proto.tensor_shape)
    return fields


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("stored", [tf.make_tensor_proto, stored_in_fields])
def test_answers_are_read_as_tensorflow_reads_them(name, stored):
    values = random_array(name)
    official = stored(values)
    proto = messages.TensorProto.FromString(official.SerializeToString())
    read = tensor_messages.to_array(proto)
    assert read.dtype == name
    np.testing.assert_array_equal(read, values)


def test_bfloat16_is_read_and_sent():
    values = random_array("float32").astype(ml_dtypes.bfloat16)
    proto = tensor_messages.from_values(values)
    assert proto.SerializeToString() == tf.make_tensor_proto(values).SerializeToString()
    read = tensor_messages.to_array(proto)
    assert read.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize(
    "convert", [tensor_messages.to_array, tensor_messages.to_lists]
)
def test_the_last_value_stands_for_the_rest(convert):
    proto = tf.make_tensor_proto(np.full((2, 3), 1.5, "float32"))
    proto.ClearField("tensor_content")
    proto.float_val.append(1.5)
    assert np.array(convert(proto)).tolist() == tf.make_ndarray(proto).tolist()


@pytest.mark.parametrize(
    "values",
    [
        random_array("float32"),
        random_array("int64"),
        np.array([[b"a", b""], [b"\xff", b"bc"]], object),
        np.zeros((0, 3), "float32"),
        np.zeros((2, 0), "int64"),
        np.array(2.5, "float32"),
    ],
    ids=str,
)
def test_lists_are_those_of_the_array(values):
    proto = tf.make_tensor_proto(values)
    assert tensor_messages.to_lists(proto) == values.tolist()


def test_an_unsupported_type_is_named():
    proto = tensor_pb2.TensorProto(dtype=tf.resource.as_datatype_enum)
    with pytest.raises(ServingError, match="unsupported type: resource"):
        tensor_messages.to_array(proto)
    with pytest.raises(TypeError, match="datetime64"):
        tensor_messages.from_values(np.array(["2026-01-01"], "datetime64[D]"))


def test_requests_have_the_official_bytes():
    protocol = GrpcProtocol(Target("m", label="canary"))
    inputs = {"x": random_array("float32"), "image_bytes": [b"\xff\xd8", b""]}
    ours = protocol.predict("serve_pixels", inputs, {}).request
    theirs = predict_pb2.PredictRequest()
    theirs.model_spec.name = "m"
    theirs.model_spec.version_label = "canary"
    theirs.model_spec.signature_name = "serve_pixels"
    for name, values in inputs.items():
        theirs.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    official = theirs.SerializeToString(deterministic=True)
    assert ours.SerializeToString(deterministic=True) == official
