"""JSON as TensorFlow Serving's parser reads it and prints it.

What RapidJSON reads otherwise than the standard library: NaN and Infinity are numbers
(Inf and -NaN too), the first of two equal keys counts, bytes after the document are
ignored, bytes that are not UTF-8 pass through strings and so does half of a surrogate
pair, denormal numbers are 0, and a zero may have no exponent that another digit could
not have.
"""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np

from .jsonreader import BLANKS, members, read
from .status_errors import InvalidArgument

TOO_DEEP = "JSON Parse error: the document is nested too deeply."

_ENCODER = json.JSONEncoder(ensure_ascii=False)
# An escape as the standard library writes it: a control character, or another one.
_ESCAPED = re.compile(r"\\(?:u(....)|.)")
# Of a value that an error quotes, only so many characters are printed.
_ECHO_LIMIT = 256
# A surrogate pair, half of one, any other escape.
_ESCAPE = re.compile(
    r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u([dD][89a-fA-F]..)|\\.", re.DOTALL
)


def parse(body: bytes) -> dict[str, Any]:
    """Reads a request.

    Args:
        body: JSON; bytes that are not UTF-8 become lone surrogates (PEP 383).

    Raises:
        InvalidArgument: no JSON, no object, or nested too deeply.
    """
    if not body:
        raise InvalidArgument("JSON Parse error: The document is empty")
    text = body.decode("utf-8-sig", "surrogateescape")
    if "\\u" in text:
        text = _ESCAPE.sub(_without_halves, text)
    start = len(text) - len(text.lstrip(BLANKS))
    if start == len(text):
        raise _parse_error("The document is empty.", start)
    try:
        value = read(text, start)
    except json.JSONDecodeError as error:
        raise _parse_error(f"{error.msg}.", error.pos) from error
    except OverflowError as error:
        raise _parse_error("Number too big to be stored in double.", start) from error
    except RecursionError as error:
        raise InvalidArgument(TOO_DEEP) from error
    if not isinstance(value, dict):
        raise format_error(value, "Is not object")
    return value


def format_error(value: Any, text: str) -> InvalidArgument:
    """An error that quotes a value of the request."""
    return InvalidArgument(f"JSON Value: {echo(value)} {text}")


def _without_halves(escape: re.Match[str]) -> str:
    """An escape that Python reads as RapidJSON does.

    Half of a surrogate pair is a wrong escape if it is the first half, and three bytes
    that are not UTF-8 if it is the second.
    """
    try:
        half = int(escape[1] or "0", 16)
    except ValueError:  # no hexadecimal digits: wrong anyway
        return escape[0]
    if half < 0xDC00:
        return r"\?" if half else escape[0]
    return chr(half).encode("utf-8", "surrogatepass").decode("ascii", "surrogateescape")


def _parse_error(text: str, offset: int) -> InvalidArgument:
    return InvalidArgument(f"JSON Parse error: {text} at offset: {offset}")


def dump(value: Any) -> bytes:
    """Writes an answer; NaN and the infinities as `NaN`, `Infinity`, `-Infinity`."""
    return _ENCODER.encode(value).encode("utf-8", "surrogateescape")


def printed_floats(values: np.ndarray) -> np.ndarray:
    """The decimals that TensorFlow Serving prints for float32 values, as float64.

    Six significant digits where they are enough to read the value again, nine
    otherwise; never the seven or eight that would do (json_tensor.cc, WriteDecimal).

    Args:
        values: float32, of any shape.
    """
    flat = values.ravel()
    decimals = _with_digits(6, flat)
    inexact = decimals.astype(np.float32) != flat
    decimals[inexact] = _with_digits(9, flat[inexact])
    return decimals.reshape(values.shape)


def _with_digits(digits: int, values: np.ndarray) -> np.ndarray:
    # One format for all: five times faster than one for each.
    text = f"%.{digits}g " * len(values) % tuple(values.tolist())
    return np.fromiter(map(float, text.split()), np.float64, len(values))


def type_of(value: Any) -> str:
    """RapidJSON's name of a value's type."""
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


def echo(value: Any) -> str:
    """The beginning of a value as error texts quote it."""
    text = ""
    for piece in _pieces(value, ""):
        text += piece
        if len(text) >= _ECHO_LIMIT:
            break
    return text[:_ECHO_LIMIT]


def _pieces(value: Any, indent: str) -> Iterator[str]:
    """Objects on several lines, arrays on one."""
    if isinstance(value, dict) and value:
        inner, separator = f"{indent}    ", "{\n"
        for name, member in members(value):
            yield f"{separator}{inner}{_quoted(name)}: "
            yield from _pieces(member, inner)
            separator = ",\n"
        yield f"\n{indent}}}"
    elif isinstance(value, list) and value:
        separator = "["
        for item in value:
            yield separator
            yield from _pieces(item, indent)
            separator = ", "
        yield "]"
    elif isinstance(value, float):
        yield _decimal(value) if math.isfinite(value) else ""
    elif isinstance(value, str):
        yield _quoted(value)
    else:
        yield json.dumps(value)


def _quoted(text: str) -> str:
    """A string; control characters have capital digits."""
    escaped = json.dumps(text, ensure_ascii=False)
    return _ESCAPED.sub(lambda m: rf"\u{m[1].upper()}" if m[1] else m[0], escaped)


def _decimal(value: float) -> str:
    """A number with an exponent only where it is very large or small."""
    if value and not 1e-6 <= abs(value) < 1e21:
        mantissa, _, exponent = repr(value).partition("e")
        return f"{mantissa}e{int(exponent)}"
    text = f"{Decimal(repr(value)):f}"
    return text if "." in text else f"{text}.0"
