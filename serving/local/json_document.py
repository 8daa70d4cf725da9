"""JSON documents of the REST interface: read requests, quote values, write answers.

Stricter than TensorFlow Serving's parser: a body must be UTF-8 without a key that
comes twice, half of a surrogate pair or anything after the document.
"""

import itertools
import json
import math
import re
from typing import Any

import numpy as np

from .status_errors import InvalidArgument

TOO_DEEP = "JSON Parse error: the document is nested too deeply."
# Characters of a value that an error message quotes.
_QUOTE_LIMIT = 256
# Bytes that begin a list or an object. Python needs about 100 and 800 bytes for each;
# 64 images of 224 x 224 pixels are 3.2 million lists.
_MOST = {b"[": 2**23, b"{": 2**20}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse(body: bytes | bytearray) -> dict[str, Any]:
    """Parse the body of a request.

    Raises:
        InvalidArgument: not JSON, not an object, nested too deeply, with too many lists
            or objects, or with a string that is not Unicode.
    """
    if not body.strip():
        raise InvalidArgument("JSON Parse error: The document is empty")
    for byte, most in _MOST.items():
        if body.count(byte) > most:
            raise InvalidArgument(
                f"JSON Parse error: more than {most} times {byte.decode()}"
            )
    try:
        document = json.loads(
            body.decode("utf-8-sig"), object_pairs_hook=_object, parse_float=_finite
        )
        if _SURROGATE.search(body):
            json.dumps(document, ensure_ascii=False).encode()
    except ValueError as error:  # also from decoding, and for very long integers
        raise InvalidArgument(f"JSON Parse error: {error}") from error
    except RecursionError as error:
        raise InvalidArgument(TOO_DEEP) from error
    if not isinstance(document, dict):
        raise format_error(document, "Is not object")
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                text = json.dumps(key)[:_QUOTE_LIMIT]
                raise ValueError(f"the key {text} comes more than once")
            seen.add(key)
    return document


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("Number too big to be stored in double.")
    return value


def format_error(value: Any, text: str) -> InvalidArgument:
    """An error that quotes a value of the request."""
    return InvalidArgument(f"JSON Value: {quote(value)} {text}")


def quote(value: Any) -> str:
    """The beginning of a value, for error messages."""
    # Piece by piece: a value may be the whole body.
    pieces = json.JSONEncoder(ensure_ascii=False).iterencode(value)
    return "".join(itertools.islice(pieces, _QUOTE_LIMIT))[:_QUOTE_LIMIT]


def type_name(value: Any) -> str:
    """The name of a value's JSON type in error messages."""
    match value:
        case None:
            return "Null"
        case bool():
            return str(value)
        case dict():
            return "Object"
        case list():
            return "Array"
        case str():
            return "String"
    return "Number"


def dump(value: Any) -> bytes:
    """Write an answer; strings may hold bytes that are not UTF-8 (PEP 383)."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")


def printed_floats(values: np.ndarray) -> np.ndarray:
    """The decimals that TensorFlow Serving prints for float32 values, as float64.

    Six significant digits where they identify the value, nine otherwise.
    """
    flat = values.ravel()
    decimals = _with_digits(6, flat)
    inexact = decimals.astype(np.float32) != flat
    decimals[inexact] = _with_digits(9, flat[inexact])
    return decimals.reshape(values.shape)


def _with_digits(digits: int, values: np.ndarray) -> np.ndarray:
    # One format for all values is five times faster than one for each.
    text = f"%.{digits}g " * len(values) % tuple(values.tolist())
    return np.fromiter(map(float, text.split()), np.float64, len(values))
