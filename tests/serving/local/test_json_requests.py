"""JSON of the REST interface: parsing, conversion to tensors, answers."""

import numpy as np
import pytest
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf.meta_graph_pb2 import TensorInfo
from tensorflow_serving.apis.classification_pb2 import ClassificationResult
from tensorflow_serving.apis.input_pb2 import Input
from tensorflow_serving.apis.regression_pb2 import RegressionResult

from serving.local.json_document import dump, parse, quote
from serving.local.json_examples import examples_from_json, result_to_json
from serving.local.json_tensors import (
    decode_base64,
    inputs_from_json,
    outputs_to_json,
)
from serving.local.status_errors import InvalidArgument, Unimplemented

FLOAT, STRING = types_pb2.DT_FLOAT, types_pb2.DT_STRING
ONE = {"x": TensorInfo(dtype=FLOAT)}
TWO = {"a": TensorInfo(dtype=FLOAT), "b": TensorInfo(dtype=types_pb2.DT_INT64)}


def column(value, data_type):
    """The tensor of `inputs`."""
    infos = {"x": TensorInfo(dtype=data_type)}
    return inputs_from_json({"inputs": value}, "", infos)[1]["x"]


def test_parse_accepts_a_byte_order_mark_and_non_finite_numbers():
    assert parse(b'\xef\xbb\xbf {"a": 1}') == {"a": 1}
    numbers = parse(b'{"a": [NaN, Infinity, -Infinity, 1e308]}')["a"]
    np.testing.assert_array_equal(numbers, [np.nan, np.inf, -np.inf, 1e308])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "JSON Parse error: The document is empty"),
        (b"instances = [1]", "JSON Parse error: "),
        (b'{"a": [1,]}', "JSON Parse error: "),
        (b'{"a": 01}', "JSON Parse error: "),
        (b'{"a": 1} {}', "JSON Parse error: Extra data"),
        (b'{"a": "\xff"}', "JSON Parse error: 'utf-8' codec"),
        (b'{"a": 1e400}', "JSON Parse error: Number too big to be stored in double."),
        (b'{"a": ' + b"9" * 5000 + b"}", "JSON Parse error: "),
        (b'{"a": 1, "a": 1}', 'JSON Parse error: the key "a" comes more than once'),
        (b"[" * 200_000, "JSON Parse error: the document is nested too deeply."),
        (b"[1, 2]", "JSON Value: [1, 2] Is not object"),
        (b"null", "JSON Value: null Is not object"),
    ],
)
def test_invalid_json_is_refused(body, text):
    with pytest.raises(InvalidArgument) as caught:
        parse(body)
    assert str(caught.value).startswith(text)


def test_quoted_values_are_cut():
    assert quote({"a": "é"}) == '{"a": "é"}'
    assert len(quote([1] * 1000)) == 256


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("aGVsbG8=", b"hello"),
        ("aGVsbG8", b"hello"),
        ("aGVsbG8.", b"hello"),
        (" aGVs\nbG8 = ", b"hello"),
        ("YR==", b"a"),
        ("", b""),
    ],
)
def test_base64_is_decoded_as_by_tensorflow_serving(text, data):
    assert decode_base64({"b64": text}) == data


@pytest.mark.parametrize(
    "text", ["_-_-", "aGVsbG8==", "a", "YQ==YQ==", "=", "YQ=", "data:,YQ==", "é"]
)
def test_invalid_base64_is_refused(text):
    with pytest.raises(InvalidArgument, match="Unable to base64 decode"):
        decode_base64({"b64": text})


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 5), (2, 0)])
def test_nested_lists_become_an_array(shape):
    expected = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    array = column(expected.tolist(), FLOAT)
    np.testing.assert_array_equal(array, expected)
    assert array.dtype == np.float32


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([[1, 2], [3]], "unexpected size: 1 at level: 1 expected size: 2"),
        ([[1, [2]]], "Encountered list at unexpected level: 2 expected < 2"),
        ([[1], 2], "JSON Value: 2 found at incorrect level: 2 in the JSON DOM"),
        ([[1, "a"], [2]], 'JSON Value: "a" Type: String'),
        ([1, None], "JSON Value: null Type: Null is not of expected type: float"),
        ([1, True], "JSON Value: true Type: True is not of expected type: float"),
        ([1, 10**400], "Type: Number is not of expected type: float"),
        ([{"b64": "YQ=="}], "Type: Object is not of expected type: float"),
        ([np.ones([1] * 64).tolist()], "tensor parsing error: x"),
    ],
)
def test_values_that_are_not_a_float_tensor(value, text):
    with pytest.raises(InvalidArgument) as caught:
        column(value, FLOAT)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("INT32", -(2**31), 2**31 - 1),
        ("INT64", -(2**63), 2**63 - 1),
        ("UINT32", 0, 2**32 - 1),
        ("UINT64", 0, 2**64 - 1),
    ],
)
def test_integers_within_their_limits(name, low, high):
    data_type = types_pb2.DataType.Value(f"DT_{name}")
    assert column([low, high], data_type).tolist() == [low, high]
    for value in (low - 1, high + 1, 1.0, "1", True):
        with pytest.raises(InvalidArgument, match=f"expected type: {name.lower()}"):
            column([value], data_type)


def test_small_integers_wrap_and_floats_overflow_to_infinity():
    assert column([300, -1], types_pb2.DT_UINT8).tolist() == [44, 255]
    assert column([1e300, -1e300], FLOAT).tolist() == [np.inf, -np.inf]


def test_strings_are_text_or_base64_objects():
    values = column(["é", {"b64": "/wA="}], STRING).tolist()
    assert values == ["é".encode(), b"\xff\x00"]
    for value in ({"b64": 5}, {"b64": "YQ==", "more": 1}):
        with pytest.raises(InvalidArgument, match="not formatted correctly for base64"):
            column([value], STRING)


def test_types_that_json_cannot_represent():
    with pytest.raises(Unimplemented, match="Value: 1 to type: half"):
        column(1, types_pb2.DT_HALF)
    with pytest.raises(InvalidArgument, match="write JSON value for tensor type: half"):
        outputs_to_json({"y": np.ones(1, np.float16)}, row=True)


def test_rows_and_columns_of_several_inputs_give_the_same_arrays():
    rows = {"instances": [{"a": 1, "b": 2}, {"b": 4, "a": 3}]}
    columns = {"inputs": {"a": [1, 3], "b": [2, 4], "ignored": "x"}}
    is_row, by_row = inputs_from_json(rows, "", TWO)
    is_column_row, by_column = inputs_from_json(columns, "", TWO)
    assert (is_row, is_column_row) == (True, False)
    for name in TWO:
        np.testing.assert_array_equal(by_row[name], by_column[name])


def test_a_single_input_needs_no_name():
    for instances in ([[1.0], [2.0]], [{"x": [1.0]}, {"x": [2.0]}]):
        _, inputs = inputs_from_json({"instances": instances}, "", ONE)
        assert inputs["x"].tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("infos", "document", "text"),
    [
        (ONE, {}, "Missing 'inputs' or 'instances' key"),
        (ONE, {"instances": [1], "inputs": [1]}, "only one of 'inputs' or 'instances'"),
        (ONE, {"instances": {"x": 1}}, "Expecting 'instances' to be an list/array"),
        (ONE, {"instances": []}, "No values in 'instances' array"),
        (
            ONE,
            {"instances": [1, "a"]},
            "Failed to process element: 1 of 'instances' list. "
            'Error: INVALID_ARGUMENT: JSON Value: "a" Type: String',
        ),
        (ONE, {"instances": [[1, 2], [3]]}, "Expecting tensor size: 2 but got: 1"),
        (ONE, {"instances": [[1], [[1]]]}, "Expecting shape [1] but got: [1,1]"),
        (ONE, {"instances": [1, {"x": 2}]}, "value/list but got object at item 1"),
        (ONE, {"instances": [{"x": 1}, 2]}, "object but got list at item 1"),
        (ONE, {"instances": [{"y": 1}]}, "element: 0 key: y of 'instances'"),
        (TWO, {"instances": [1]}, "instances is a plain list, but expecting"),
        (TWO, {"inputs": [1]}, "inputs is a plain value/list, but expecting"),
        (TWO, {"inputs": {"a": 1}}, "Missing named input: b in 'inputs' object."),
        (TWO, {"instances": [{"a": 1}]}, "keys must be equal to: a,b"),
        (
            TWO,
            {"instances": [{"a": 1, "b": 1}, {"a": [2], "b": 1}]},
            "element: 1 key: a of 'instances' list. "
            "Error: INVALID_ARGUMENT: Expecting shape [] but got: [1]",
        ),
    ],
)
def test_rows_and_columns_that_are_refused(infos, document, text):
    with pytest.raises(InvalidArgument) as caught:
        inputs_from_json(document, "", infos)
    assert text in str(caught.value)


# As TensorFlow Serving prints them: %g, or %.9g where that is another float32.
PRINTED = {
    123456789: "123456792.0",
    123456: "123456.0",
    1234567: "1234567.0",
    16777217: "16777216.0",
    987654321: "987654336.0",
    9e6: "9000000.0",
    0.1: "0.1",
    2.05: "2.05",
    1 / 3: "0.333333343",
    0.12345678: "0.123456784",
    3e-05: "3e-05",
    1e-45: "1.4013e-45",
    3.4028235e38: "3.40282347e+38",
    -0.0: "-0.0",
    np.nan: "NaN",
    -np.inf: "-Infinity",
}


def test_floats_are_printed_with_six_or_nine_digits():
    values = np.array(list(PRINTED), np.float32)
    text = dump(outputs_to_json({"y": values}, row=False)).decode()
    assert text == f'{{"outputs": [{", ".join(PRINTED.values())}]}}'
    regressions = [{"value": value} for value in values]
    result = RegressionResult(regressions=regressions)
    assert dump(result_to_json(result)).decode() == text.replace("outputs", "results")
    classes = [{"label": "a", "score": value} for value in values]
    result = ClassificationResult(classifications=[{"classes": classes}])
    pairs = ", ".join(f'["a", {number}]' for number in PRINTED.values())
    assert dump(result_to_json(result)).decode() == f'{{"results": [[{pairs}]]}}'


def test_an_answer_needs_outputs():
    with pytest.raises(InvalidArgument, match="Cannot convert empty tensor map"):
        outputs_to_json({}, row=False)


def test_rows_carry_every_output_and_bytes_in_base64():
    outputs = {
        "score": np.array([0.5, 1.5], np.float32),
        "raw_bytes": np.array([b"\xff", b"a"], object),
    }
    assert outputs_to_json(outputs, row=True) == {
        "predictions": [
            {"score": 0.5, "raw_bytes": {"b64": "/w=="}},
            {"score": 1.5, "raw_bytes": {"b64": "YQ=="}},
        ]
    }


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ({"y": np.float32(1)}, "Tensor name: y has no shape information "),
        (
            {"a": np.zeros(2), "b": np.zeros(1)},
            "Tensor name: b has inconsistent batch size: 1 expecting: 2",
        ),
    ],
)
def test_row_format_needs_a_common_batch_dimension(outputs, text):
    with pytest.raises(InvalidArgument) as caught:
        outputs_to_json({name: np.asarray(v) for name, v in outputs.items()}, row=True)
    assert str(caught.value) == text


def read_examples(document):
    listed = Input()
    examples_from_json(document, listed)
    return listed


def test_examples_with_every_kind_of_feature():
    document = {
        "context": {"k": 1},
        "examples": [{"f": 1.5, "i": [1, True], "s": ["a", {"b64": "/w=="}], "e": []}],
    }
    listed = read_examples(document).example_list_with_context
    features = listed.examples[0].features.feature
    assert listed.context.features.feature["k"].int64_list.value == [1]
    assert features["f"].float_list.value == [1.5]
    assert features["i"].int64_list.value == [1, 1]
    assert features["s"].bytes_list.value == [b"a", b"\xff"]
    assert features["e"].WhichOneof("kind") is None


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({}, "key 'examples' is expected and was not found"),
        ({"examples": {}}, "Expecting 'examples' value to be an list/array"),
        ({"examples": []}, "'examples' value is an empty array"),
        ({"examples": [1.0]}, "Example must be JSON object but got JSON Number"),
        ({"examples": [{"x": None}]}, "x has element with unexpected JSON type: Null"),
        ({"examples": [{"x": [1, 1.5]}]}, "feature: x expecting type: int64"),
        ({"examples": [{"x": ["a", 1]}]}, "feature: x expecting type: bytes"),
        ({"examples": [{"x": 2**63}]}, "x has uint64_t element"),
        ({"examples": [{"x": -(2**63) - 1}]}, "x has uint64_t element"),
        ({"examples": [{"x": [1, {"b64": "-"}]}]}, "feature: x expecting type: int64"),
    ],
)
def test_examples_that_are_refused(document, text):
    with pytest.raises(InvalidArgument) as caught:
        read_examples(document)
    assert text in str(caught.value)
