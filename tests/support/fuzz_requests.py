"""Random requests to the model of protocol_model.py, with what must be answered.

A valid request comes with the answer that NumPy computes; of any other, only the status
codes are known. A generator is a function of a `random.Random`.
"""

import base64
import gzip
import json
import math
import random
import re
import string
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from protocol_model import ECHOED

MODEL = "probe"
VERSIONS = (1, 2)
LABELS = {"stable": 1, "canary é": 2}
FLOATS = (0.0, -0.0, 0.5, 1e-30, -1.5e30, 3.4e38, 1 / 3, math.nan, math.inf, -math.inf)


class Request(NamedTuple):
    """A REST request.

    Attributes:
        kind: under which name it is counted.
        check: looks at status and body; None where only the status is known.
    """

    kind: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None
    check: Callable[[int, Any], None] | None


def same(expected: Any, received: Any) -> None:
    """Compares what JSON holds: numbers to 1e-6, everything else exactly."""
    if isinstance(expected, dict):
        assert expected.keys() == received.keys(), (expected, received)
        for key, value in expected.items():
            same(value, received[key])
    elif isinstance(expected, list):
        assert isinstance(received, list), (expected, received)
        assert len(expected) == len(received), (expected, received)
        for one, other in zip(expected, received, strict=True):
            same(one, other)
    elif isinstance(expected, float):
        assert type(received) is float, (expected, received)
        close = math.isclose(expected, received, rel_tol=1e-6, abs_tol=1e-30)
        assert close or (math.isnan(expected) and math.isnan(received)), (
            expected,
            received,
        )
    else:
        assert type(expected) is type(received), (expected, received)
        assert expected == received


# ---- values ------------------------------------------------------------------------


def array(rng: random.Random, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values of a type that JSON can carry; strings are `bytes` objects."""
    values = np.empty(math.prod(shape), object)
    values[:] = [_value(rng, name) for _ in values]
    dtype = object if name == "string" else name
    with np.errstate(over="ignore"):
        return values.astype(dtype).reshape(shape)


def _value(rng: random.Random, name: str) -> Any:
    if name == "string":
        return _text(rng).encode()
    if name == "bool":
        return rng.random() < 0.5
    if name.startswith("float"):
        return rng.choice((*FLOATS, rng.uniform(-9, 9), float(rng.randint(-99, 99))))
    limits = np.iinfo(name)
    low, high = int(limits.min), int(limits.max)
    return rng.choice((low, high, 0, 1, rng.randint(low, high)))


def _text(rng: random.Random) -> str:
    letters = "ab \"\\/\n\t\x00\x7fé☃😀{[]}:,'"
    return "".join(rng.choice(letters) for _ in range(rng.randint(0, 8)))


def shape_of(rng: random.Random) -> tuple[int, ...]:
    """Up to four dimensions; a list that is empty has nothing inside."""
    shape = tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 4)))
    return (*shape, 0) if rng.random() < 0.1 else shape


# ---- JSON in all its spellings -----------------------------------------------------


def spelled(rng: random.Random, value: Any) -> str:
    """JSON of nested lists and objects, written in one of many ways."""
    gap = rng.choice(("", " ", "\n\t", "\r\n "))
    if isinstance(value, dict):
        pairs = list(value.items())
        rng.shuffle(pairs)
        inner = f",{gap}".join(
            f"{_string(rng, k)}{gap}:{gap}{spelled(rng, v)}" for k, v in pairs
        )
        return f"{{{gap}{inner}{gap}}}"
    if isinstance(value, list):
        return f"[{gap}{f',{gap}'.join(spelled(rng, v) for v in value)}{gap}]"
    if isinstance(value, bytes):
        return _bytes(rng, value)
    if isinstance(value, str):
        return _string(rng, value)
    if isinstance(value, float):
        return _float(rng, value)
    return json.dumps(value)


def _float(rng: random.Random, value: float) -> str:
    if math.isnan(value):
        return rng.choice(("NaN", "-NaN"))
    if math.isinf(value):
        text = rng.choice(("Infinity", "Inf"))
        return text if value > 0 else f"-{text}"
    if value.is_integer() and abs(value) < 1000 and rng.random() < 0.5:
        return str(int(value))
    return rng.choice((repr(value), f"{value:.17g}", f"{value:.16e}", f"{value:.20E}"))


def _string(rng: random.Random, text: str) -> str:
    plain = json.dumps(text, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.8:
        return plain
    units = text.encode("utf-16-be")
    escaped = (units[i : i + 2].hex() for i in range(0, len(units), 2))
    return '"' + "".join(f"\\u{unit}" for unit in escaped) + '"'


def _bytes(rng: random.Random, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if data and text and rng.random() < 0.5:
        return _string(rng, text)
    encoded = base64.b64encode(data).decode()
    padding = encoded.count("=")
    encoded = encoded.rstrip("=") + rng.choice(("", "=" * padding, "." * padding))
    place = rng.randint(0, len(encoded))
    encoded = encoded[:place] + rng.choice(("", "", "\n", " \t")) + encoded[place:]
    return spelled(rng, {"b64": encoded})


def _document(rng: random.Random, keys: dict[str, Any]) -> str:
    """A body with keys that do not count, or something before or after it."""
    if rng.random() < 0.2:
        keys = {"ignored": {"a": [None, True, {}]}, **keys}
    if rng.random() < 0.02:
        nested = "[" * 3000 + "]" * 3000
        return f'{{"deep": {nested}, {spelled(rng, keys).lstrip()[1:]}'
    before = rng.choice(("", "", "", "\ufeff", " \n"))
    after = rng.choice(("", "", "", " ", "}", '{"instances": 1}', '"\\ud800"'))
    return before + spelled(rng, keys) + after


# ---- valid REST requests -----------------------------------------------------------


def target(rng: random.Random) -> tuple[str, int, str]:
    """A path to the model, the version that answers, and how it was chosen."""
    name = rng.choice((MODEL, "%70robe", "prob%65"))
    path = rng.choice(("/v1/models/", "/V1/Models/")) + name
    choice = rng.choice(("newest", "version", "label"))
    if choice == "newest":
        return path, max(VERSIONS), choice
    if choice == "version":
        version = rng.choice(VERSIONS)
        return f"{path}/versions/{rng.choice(('', '00'))}{version}", version, choice
    label = rng.choice(list(LABELS))
    safe = rng.choice(("", string.ascii_lowercase))
    quoted = "".join(c if c in safe else quote(c, safe="") for c in label)
    return f"{path}/labels/{quoted or label}", LABELS[label], choice


def valid(rng: random.Random) -> Request:
    """A request that is answered by 200."""
    make = rng.choice((echo, echo, default, several, optional, examples, look))
    return make(rng)


def _post(
    rng: random.Random,
    verb: str,
    keys: dict[str, Any],
    expected: Callable[[int], dict[str, Any]],
) -> Request:
    path, version, choice = target(rng)

    def check(status: int, answer: Any) -> None:
        assert status == 200, answer
        same(expected(version), answer)

    headers = {}
    if rng.random() < 0.3:
        kinds = ("text/plain", "application/json; charset=utf-8", "x")
        headers["Content-Type"] = rng.choice(kinds)
    body = _document(rng, keys).encode()
    if rng.random() < 0.2:
        headers["Content-Encoding"] = rng.choice(("gzip", "x-gzip"))
        body = gzip.compress(body)
    return Request(f"{verb} {choice}", "POST", f"{path}:{verb}", headers, body, check)


def _predict(
    rng: random.Random,
    signature: str,
    inputs: dict[str, Any],
    outputs: Callable[[int], dict[str, Any]],
    rows: bool,
) -> Request:
    """A predict request.

    Args:
        rng: random numbers.
        signature: its key.
        inputs: nested lists by alias.
        outputs: the nested lists that a version answers, by alias.
        rows: whether the request has the row format.
    """
    keys: dict[str, Any] = {"inputs": inputs}
    if rows:
        columns = zip(*inputs.values(), strict=True)
        keys = {"instances": [dict(zip(inputs, row, strict=True)) for row in columns]}
    if len(inputs) == 1 and rng.random() < 0.7:
        (alone,) = inputs.values()
        keys = {"instances" if rows else "inputs": alone}
    if signature != "serving_default" or rng.random() < 0.3:
        keys["signature_name"] = signature

    def expected(version: int) -> dict[str, Any]:
        answer = outputs(version)
        if len(answer) == 1:
            (alone,) = answer.values()
            return {"predictions" if rows else "outputs": alone}
        if not rows:
            return {"outputs": answer}
        columns = zip(*answer.values(), strict=True)
        return {"predictions": [dict(zip(answer, row, strict=True)) for row in columns]}

    return _post(rng, "predict", keys, expected)


def as_text(value: Any) -> Any:
    """Nested lists in which bytes are text, as the server writes them."""
    if isinstance(value, list):
        return [as_text(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def echo(rng: random.Random) -> Request:
    """Any type and shape comes back as it was sent."""
    name = rng.choice(ECHOED)
    shape = shape_of(rng)
    value = array(rng, name, shape).tolist()
    rows = bool(shape and shape[0]) and rng.random() < 0.5
    return _predict(
        rng, f"echo_{name}", {"x": value}, lambda version: {"y": as_text(value)}, rows
    )


def default(rng: random.Random) -> Request:
    """The default signature computes."""
    shape = shape_of(rng)
    x = array(rng, "float32", shape)
    rows = bool(shape and shape[0]) and rng.random() < 0.5

    def outputs(version: int) -> dict[str, Any]:
        with np.errstate(over="ignore", invalid="ignore"):
            return {"y": (np.float32(3) * x - np.float32(version)).tolist()}

    return _predict(rng, "serving_default", {"x": x.tolist()}, outputs, rows)


def several(rng: random.Random) -> Request:
    """Three inputs of different types, three outputs."""
    count, width = rng.randint(1, 4), rng.randint(1, 3)
    number = np.array([rng.randint(-(2**62), 2**62 - 1) for _ in range(count)])
    text = [rng.randbytes(rng.randint(0, 5)) for _ in range(count)]
    # Eighths, whose sums are exact in float32.
    row = np.array([[rng.randint(-99, 99) / 8] * width for _ in range(count)])
    outputs = {
        "number": (2 * number).tolist(),
        "text_bytes": [{"b64": base64.b64encode(t).decode()} for t in text],
        "total": [float(total) for total in row.sum(1)],
    }
    inputs = {"number": number.tolist(), "text": text, "row": row.tolist()}
    return _predict(rng, "several", inputs, lambda version: outputs, rng.random() < 0.5)


def optional(rng: random.Random) -> Request:
    """Over REST every input is needed, even one with a default."""
    x = [float(rng.randint(-9, 9)) for _ in range(rng.randint(0, 3))]
    inputs = {"x": x, "offset": 5.0}
    outputs = {"y": [value + 5.0 for value in x]}
    return _predict(rng, "optional", inputs, lambda version: outputs, rows=False)


def examples(rng: random.Random) -> Request:
    """Classify and regress."""
    verb = rng.choice(("classify", "regress"))
    # Never a whole number, which would be a feature of another kind.
    x = [(2 * rng.randint(-99, 99) + 1) / 8 for _ in range(rng.randint(1, 4))]
    keys = {
        "signature_name": verb,
        "examples": [{"x": rng.choice((v, [v])), "more": ["a", b"\xff"]} for v in x],
    }
    if rng.random() < 0.3:
        keys["context"] = {"x": 7.5, "other": [1, True]}
    results: list[Any] = [2 * value for value in x]
    if verb == "classify":
        results = [[["low", 1 - value], ["high", value]] for value in x]
    return _post(rng, verb, keys, lambda version: {"results": results})


def look(rng: random.Random) -> Request:
    """Status and metadata."""
    path, version, choice = target(rng)
    operation = rng.choice(("status", "metadata"))

    def check(status: int, answer: Any) -> None:
        assert status == 200, answer
        if operation == "metadata":
            spec = {"name": MODEL, "signature_name": "", "version": str(version)}
            assert answer["model_spec"] == spec
            assert (
                "serving_default"
                in answer["metadata"]["signature_def"]["signature_def"]
            )
            return
        numbers = [int(one["version"]) for one in answer["model_version_status"]]
        assert numbers == ([version] if choice == "version" else [2, 1])

    suffix = "/metadata" if operation == "metadata" else ""
    return Request(f"{operation} {choice}", "GET", path + suffix, {}, None, check)


# ---- requests that are refused -----------------------------------------------------

# What is posted, where, and the status and text that TensorFlow Serving answers.
_REFUSED = (
    ("nope:predict", {"instances": [1]}, 404, "Servable not found for request: Latest"),
    ("nope:classify", {"examples": [{}]}, 404, "Servable not found for request: Lat"),
    ("probe/versions/9:regress", {"examples": [{}]}, 404, "Specific(probe, 9)"),
    ("probe/labels/z:predict", {"inputs": 1}, 400, "Unrecognized servable version la"),
    ("probe:predict", {"signature_name": 1}, 400, "key must be a string value."),
    ("probe:predict", {"signature_name": "z"}, 400, 'name: "z" not found in signature'),
    (
        "probe:regress",
        {"examples": [1]},
        400,
        "must be JSON object but got JSON Number",
    ),
    ("probe:classify", {"examples": []}, 400, "'examples' value is an empty array"),
    (
        "probe:predict",
        {"instances": [[1], [1, 2]]},
        400,
        "Expecting tensor size: 1 but",
    ),
    ("probe:predict", {"inputs": [[1], [1, 2]]}, 400, "list at unexpected size: 2 at "),
    (
        "probe:predict",
        {"inputs": ["x"]},
        400,
        'JSON Value: "x" Type: String is not of ',
    ),
    ("probe:predict", {"inputs": {"z": 1}}, 400, "Missing named input: x in 'inputs'"),
    ("probe:predict", {"instances": [{"z": 1}]}, 400, "does not have named input: z"),
    ("probe:predict", {}, 400, "Missing 'inputs' or 'instances' key"),
    ("probe:predict", {"signature_name": "echo_half", "inputs": 2}, 501, "type: half"),
    (
        "probe:predict",
        {"signature_name": "half_out", "inputs": [2.5]},
        400,
        "type: half",
    ),
)


def refused(rng: random.Random) -> Request:
    """A request of which status and error are known."""
    path, keys, wanted, text = rng.choice(_REFUSED)

    def check(status: int, answer: Any) -> None:
        assert (status, list(answer)) == (wanted, ["error"])
        assert text in answer["error"]

    body = _document(rng, dict(keys)).encode()
    return Request("refused", "POST", f"/v1/models/{path}", {}, body, check)


# ---- requests that may be wrong ----------------------------------------------------

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE")
_PIECES = (
    *("/v1", "/V1", "/models", "/probe", "/nope", "/versions/1", "/versions/99"),
    *("/versions/-1", "/versions/9223372036854775808", "/labels/stable", "/labels/x"),
    *("/metadata", "/METADATA", ":predict", ":PREDICT", ":classify", ":regress", ":"),
    *("/", "?x=1", "#f", "%2f", "%zz", "%", "%00", "%ff", "é", "[", '"', "\\", "//"),
)
_TOKENS = (
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"null", b"true", b"1e999"),
    *(b"-", b"NaN", b"Inf", b"-1", b"99999999999999999999", b'{"b64": "YQ"}', b"\xff"),
    *(b"\x00", b"\\ud800", b"\\udc00", b'"x": 1', b"[" * 2000, b" " * 2000, b"[[]]"),
)


def strange_path(rng: random.Random) -> Request:
    """Any method on pieces of paths in any order."""
    path = "".join(rng.choice(_PIECES) for _ in range(rng.randint(0, 5)))
    if rng.random() < 0.5:
        path = f"/v1/models/probe{path}"
    if rng.random() < 0.1:
        path = f"/monitoring/prometheus/metrics{rng.choice(('', '', '?x=1', '/'))}"
    method = rng.choice(METHODS)
    headers = {"Origin": "http://example.org"} if rng.random() < 0.3 else {}
    return Request(
        f"any {method}", method, quote_non_ascii(path or "/"), headers, None, None
    )


def quote_non_ascii(path: str) -> str:
    """A path that http.client sends; raw bytes are for raw sockets."""
    return re.sub(r"[^!-~]", lambda match: quote(match[0], safe=""), path)


def damaged(rng: random.Random, request: Request) -> Request:
    """A request with a body that was cut, doubled, or written over."""
    body = bytearray(request.body or b"{}")
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(body))
        end = min(len(body), start + rng.choice((0, 0, 1, 2, 9)))
        piece = bytes(body[rng.randint(0, len(body)) :][: rng.randint(0, 20)])
        body[start:end] = rng.choice(
            (b"", rng.choice(_TOKENS), piece, rng.randbytes(2))
        )
    if rng.random() < 0.2:
        body = body[: rng.randint(0, len(body))]
    return request._replace(kind="damaged", body=bytes(body), check=None)
