"""The JSON of the local server: reading, converting, writing."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf.meta_graph_pb2 import TensorInfo
from tensorflow_serving.apis.classification_pb2 import ClassificationResult
from tensorflow_serving.apis.regression_pb2 import RegressionResult

from serving.local import jsonreader
from serving.local.jsondense import decode_base64, dense
from serving.local.jsonexamples import examples_from_json, result_to_json
from serving.local.jsontensor import inputs_from_json, outputs_to_json
from serving.local.jsontext import dump, echo, parse, printed_floats
from serving.local.status_errors import InvalidArgument, ServingError, Unimplemented

FLOAT, STRING = types_pb2.DT_FLOAT, types_pb2.DT_STRING
ONE = {"x": TensorInfo(dtype=FLOAT)}
TWO = {"a": TensorInfo(dtype=FLOAT), "b": TensorInfo(dtype=types_pb2.DT_INT64)}


def arrays(document, infos):
    row, inputs = inputs_from_json(document, "", infos)
    return row, {alias: value.array(alias) for alias, value in inputs.items()}


INFINITE = {"a": [-np.inf, {}, [], {"b": []}, "x"]}


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b'\xef\xbb\xbf {"a": 1}', {"a": 1}),
        (b'{"a": 1} and more', {"a": 1}),
        (b'{"a": 1, "a": 2}', {"a": 1}),
        (b'{"a": "Inf", "b": [Inf, -Inf]}', {"a": "Inf", "b": [np.inf, -np.inf]}),
        (b'{"a": [1, "-NaN", -Inf], "a": -NaN}', {"a": [1, "-NaN", -np.inf]}),
        (b'{"a": 0.0e309}', {"a": 0.0}),
        (b'{"a": 18446744073709551616}', {"a": 2.0**64}),
        (b'{"a": 5e-324}', {"a": 0.0}),
        (rb'{"a": "\ud83d\ude00 \\ud800"}', {"a": "\U0001f600 \\ud800"}),
        (b'{"a": 1} "\\ud800"', {"a": 1}),
        (b'{"a": [-Inf, {}, [], {"b": [], "b": 1}, "x"]}', INFINITE),
    ],
)
def test_reads_what_rapidjson_reads(body, value):
    assert parse(body) == value


DEEP = 2000
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_subnormal=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@UNHURRIED
@given(JSON_VALUES, st.sampled_from([None, 0, 2]), st.booleans())
def test_deep_documents_are_read_as_others_are(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    body = f'{{"a": {"[" * DEEP} {text}\n{"]" * DEEP}}}'.encode()
    found = parse(body)["a"]
    for _ in range(DEEP):
        (found,) = found
    assert found == value
    assert json.dumps(found) == json.dumps(value)


@UNHURRIED
@given(JSON_VALUES, st.data())
def test_damaged_documents_are_refused_deep_or_not(value, data):
    """A document that the standard library refuses is refused by the reader with a
    stack too, and the other way round."""
    text = json.dumps(value)
    place = data.draw(st.integers(0, len(text)))
    piece = data.draw(st.sampled_from([*'[]{},:"0-.e\\', "null", "tru", " ", "1 1"]))
    text = text[:place] + piece + text[place + 1 :]
    shallow, deep = (
        f'{{"a": {"[" * depth}{text}{"]" * depth}}}'.encode() for depth in (1, DEEP)
    )
    if refused := _refused(shallow):
        assert _refused(deep), refused
    else:
        assert not _refused(deep)


def _refused(body):
    try:
        parse(body)
    except InvalidArgument as error:
        return str(error)
    return ""


def test_levels_are_counted(monkeypatch):
    monkeypatch.setattr(jsonreader, "MAX_DEPTH", 3000)
    assert parse(b'{"a":' + b"[" * 2999 + b"]" * 2999 + b"}")
    with pytest.raises(InvalidArgument, match="nested too deeply"):
        parse(b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}")


def test_bytes_that_are_not_utf8_pass_through():
    assert dump(parse(b'{"a": "\xff"}')) == b'{"a": "\xff"}'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "JSON Parse error: The document is empty"),
        (b" \n ", "JSON Parse error: The document is empty. at offset: 3"),
        (b"instances = [1]", "JSON Parse error: "),
        (b'{"a": [1,]}', "JSON Parse error: "),
        (b'{"a": 01}', "JSON Parse error: "),
        (b'{"a": 1e400}', "JSON Parse error: Number too big to be stored in double."),
        (b'{"a": 0e309}', "JSON Parse error: Number too big to be stored in double."),
        (b'{"a": 0.0E310}', "JSON Parse error: Number too big"),
        (b'{"a": --NaN}', "JSON Parse error: "),
        (b'{"a": ' + b"9" * 5000 + b"}", "JSON Parse error: Number too big"),
        (rb'{"a": "\ud800"}', "JSON Parse error: "),
        (b'{"a": Infinit}', "JSON Parse error: "),
        (b"[" * 200_000, "JSON Parse error: Invalid value. at offset: 200000"),
        (b'{"a":' * 2000 + b"1", "JSON Parse error: Missing a comma or }."),
        (b'{"a":' * 2000 + b"}", "JSON Parse error: Invalid value."),
        (b'{"a" 1' + b"[" * 2000, "JSON Parse error: "),
        (b"[1, 2]", "JSON Value: [1, 2] Is not object"),
        (b"null", "JSON Value: null Is not object"),
    ],
)
def test_refuses_what_is_no_object(body, text):
    with pytest.raises(InvalidArgument) as caught:
        parse(body)
    assert str(caught.value).startswith(text)


def test_echo_has_objects_on_lines_and_arrays_on_one_and_is_cut():
    assert echo({"a": [1.0, {"b": "x"}], "c": {}}) == (
        '{\n    "a": [1.0, {\n        "b": "x"\n    }],\n    "c": {}\n}'
    )
    assert echo(float("nan")) == ""
    assert len(echo([1] * 1000)) == 256


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
def test_base64_of_tensorflow_serving(text, data):
    assert decode_base64({"b64": text}) == data


@pytest.mark.parametrize(
    "text", ["_-_-", "aGVsbG8==", "a", "YQ==YQ==", "=", "YQ=", "data:,YQ==", "é"]
)
def test_base64_that_is_refused(text):
    with pytest.raises(InvalidArgument, match="Unable to base64 decode"):
        decode_base64({"b64": text})


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 5), (2, 0)])
def test_nested_lists_become_the_array_that_numpy_makes(shape):
    expected = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    array = dense(expected.tolist(), FLOAT).array("x")
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
        ([{"b64": "YQ=="}], "Type: Object is not of expected type: float"),
    ],
)
def test_lists_that_are_no_float_tensor(value, text):
    with pytest.raises(InvalidArgument) as caught:
        dense(value, FLOAT)
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
def test_integers_up_to_their_limits_and_no_further(name, low, high):
    data_type = types_pb2.DataType.Value(f"DT_{name}")
    assert dense([low, high], data_type).values.tolist() == [low, high]
    for value in (low - 1, high + 1, 1.0, "1", True):
        with pytest.raises(InvalidArgument, match=f"expected type: {name.lower()}"):
            dense([value], data_type)


def test_small_integers_wrap_and_floats_overflow_to_infinity():
    assert dense([300, -1], types_pb2.DT_UINT8).values.tolist() == [44, 255]
    assert dense([1e300, -1e300], FLOAT).values.tolist() == [np.inf, -np.inf]


def test_strings_are_text_or_base64_objects():
    values = dense(["é", {"b64": "/wA="}], STRING).values.tolist()
    assert values == ["é".encode(), b"\xff\x00"]
    with pytest.raises(InvalidArgument, match="not formatted correctly for base64"):
        dense([{"b64": 5}], STRING)


def test_types_that_json_cannot_hold():
    with pytest.raises(Unimplemented, match="Value: 1 to type: half"):
        dense(1, types_pb2.DT_HALF)
    with pytest.raises(InvalidArgument, match="write JSON value for tensor type: half"):
        outputs_to_json({"y": np.ones(1, np.float16)}, row=True)


def test_more_dimensions_than_an_array_has():
    value: object = 1.0
    for _ in range(300):
        value = [value]
    with pytest.raises(InvalidArgument, match="tensor parsing error: x"):
        dense(value, FLOAT).array("x")


def test_rows_and_columns_of_several_inputs_give_the_same_arrays():
    rows = {"instances": [{"a": 1, "b": 2}, {"b": 4, "a": 3}]}
    columns = {"inputs": {"a": [1, 3], "b": [2, 4], "ignored": "x"}}
    is_row, by_row = arrays(rows, TWO)
    is_column, by_column = arrays(columns, TWO)
    assert (is_row, is_column) == (True, False)
    for name in TWO:
        np.testing.assert_array_equal(by_row[name], by_column[name])


def test_a_single_input_needs_no_name():
    for instances in ([[1.0], [2.0]], [{"x": [1.0]}, {"x": [2.0]}]):
        _, inputs = arrays({"instances": instances}, ONE)
        assert inputs["x"].tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({}, "Missing 'inputs' or 'instances' key"),
        ({"instances": [1], "inputs": [1]}, "only one of 'inputs' or 'instances'"),
        ({"instances": {"x": 1}}, "Expecting 'instances' to be an list/array"),
        ({"instances": []}, "No values in 'instances' array"),
        (
            {"instances": [1, "a"]},
            "Failed to process element: 1 of 'instances' list. "
            'Error: INVALID_ARGUMENT: JSON Value: "a" Type: String',
        ),
        ({"instances": [[1, 2], [3]]}, "Expecting tensor size: 2 but got: 1"),
        ({"instances": [[1], [[1]]]}, "Expecting shape [1] but got: [1,1]"),
        ({"instances": [1, {"x": 2}]}, "value/list but got object at item 1"),
        ({"instances": [{"x": 1}, 2]}, "object but got list at item 1"),
        ({"instances": [{"y": 1}]}, "element: 0 key: y of 'instances'"),
    ],
)
def test_rows_that_are_refused(document, text):
    with pytest.raises(InvalidArgument) as caught:
        inputs_from_json(document, "", ONE)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"instances": [1]}, "instances is a plain list, but expecting"),
        ({"inputs": [1]}, "inputs is a plain value/list, but expecting"),
        ({"inputs": {"a": 1}}, "Missing named input: b in 'inputs' object."),
        ({"instances": [{"a": 1}]}, "keys must be equal to: a,b"),
        (
            {"instances": [{"a": 1, "b": 1}, {"a": [2], "b": 1}]},
            "element: 1 key: a of 'instances' list. "
            "Error: INVALID_ARGUMENT: Expecting shape [] but got: [1]",
        ),
    ],
)
def test_several_inputs_that_are_refused(document, text):
    with pytest.raises(ServingError) as caught:
        inputs_from_json(document, "", TWO)
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


def test_floats_are_written_with_six_digits_or_with_nine():
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


@given(st.lists(st.floats(width=32), max_size=9))
def test_every_float_is_printed_as_c_prints_it(values):
    for value, printed in zip(
        values, printed_floats(np.array(values, np.float32)).tolist(), strict=True
    ):
        short = float(f"{value:g}")
        reads_back = np.float32(short) == np.float32(value)
        assert repr(printed) == repr(short if reads_back else float(f"{value:.9g}"))


def test_no_outputs_are_no_answer():
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
def test_outputs_that_are_no_rows(outputs, text):
    with pytest.raises(InvalidArgument) as caught:
        outputs_to_json({name: np.asarray(v) for name, v in outputs.items()}, row=True)
    assert str(caught.value) == text


def test_examples_hold_each_kind_of_value():
    document = {
        "context": {"k": 1},
        "examples": [{"f": 1.5, "i": [1, True], "s": ["a", {"b64": "/w=="}], "e": []}],
    }
    listed = examples_from_json(document).example_list_with_context
    features = listed.examples[0].features.feature
    assert listed.context.features.feature["k"].int64_list.value == [1]
    assert features["f"].float_list.value == [1.5]
    assert features["i"].int64_list.value == [1, 1]
    assert features["s"].bytes_list.value == [b"a", b"\xff"]
    assert features["e"].WhichOneof("kind") is None


def test_of_a_name_that_comes_twice_the_first_or_in_examples_the_last_counts():
    columns = parse(b'{"inputs": {"x": [1], "x": ["a"]}}')
    assert arrays(columns, ONE)[1]["x"].tolist() == [1]
    rows = parse(b'{"instances": [{"x": 1, "x": 2}]}')
    assert arrays(rows, ONE)[1]["x"].tolist() == [1]
    rows = parse(b'{"instances": [{"x": 1, "x": "a"}]}')
    with pytest.raises(InvalidArgument, match="element: 0 key: x .*Type: String"):
        arrays(rows, ONE)
    examples = examples_from_json(parse(b'{"examples": [{"x": 1, "x": 2.5}]}'))
    feature = examples.example_list.examples[0].features.feature["x"]
    assert feature.float_list.value == [2.5]


def test_two_b64_keys_are_no_bytes():
    rows = parse(b'{"instances": [{"b64": "YQ==", "b64": "Yg=="}]}')
    with pytest.raises(InvalidArgument, match="does not have named input: b64"):
        arrays(rows, {"x": TensorInfo(dtype=STRING)})


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
        ({"examples": [{"x": [1.5, 2**63]}]}, "feature: x expecting type: float"),
        ({"examples": [{"x": [1, {"b64": "-"}]}]}, "feature: x expecting type: int64"),
    ],
)
def test_examples_that_are_refused(document, text):
    with pytest.raises(InvalidArgument) as caught:
        examples_from_json(document)
    assert text in str(caught.value)
