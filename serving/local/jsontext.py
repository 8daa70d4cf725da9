"""JSON as TensorFlow Serving's parser reads it and prints it.

The standard library reads it; what RapidJSON does otherwise is here: NaN and Infinity
are numbers (Inf and -NaN too), the first of two equal keys counts, bytes after the
document are ignored, bytes that are not UTF-8 pass through strings, denormal numbers
are 0, and a zero may have no exponent that another digit could not have.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from .errors import InvalidArgument

TOO_DEEP = "JSON Parse error: the document is nested too deeply."

# Of a value that an error quotes, only so many characters are printed.
_ECHO_LIMIT = 256
_SMALLEST, _LARGEST = sys.float_info.min, sys.float_info.max
_BLANKS = " \t\n\r"
_SPECIAL = re.compile(r'"(?:[^"\\]|\\.)*"|-(?=NaN)|(-?)Inf(?:inity)?', re.DOTALL)
_ESCAPES = re.compile(
    r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)|\\.", re.DOTALL
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
    start = len(text) - len(text.lstrip(_BLANKS))
    if start == len(text):
        raise _parse_error("The document is empty.", start)
    try:
        value = _decode(text, start)
    except json.JSONDecodeError as error:
        raise _parse_error(f"{error.msg}.", error.pos) from error
    except OverflowError as error:
        raise _parse_error("Number too big to be stored in double.", start) from error
    except RecursionError as error:
        raise InvalidArgument(TOO_DEEP) from error
    for match in _ESCAPES.finditer(text) if "\\u" in text else ():
        if match[1]:
            reason = "The surrogate pair in string is invalid."
            raise _parse_error(reason, match.start())
    if not isinstance(value, dict):
        raise format_error(value, "Is not object")
    return value


def format_error(value: Any, text: str) -> InvalidArgument:
    """An error that quotes a value of the request."""
    return InvalidArgument(f"JSON Value: {echo(value)} {text}")


def _decode(text: str, start: int) -> Any:
    try:
        return _DECODER.raw_decode(text, start)[0]
    except json.JSONDecodeError as error:
        if not text.startswith(("Inf", "-Inf", "-NaN"), error.pos):
            raise
    return _DECODER.raw_decode(_SPECIAL.sub(_as_python, text), start)[0]


def _as_python(match: re.Match[str]) -> str:
    """A number of `_SPECIAL` as Python spells it; NaN has no sign."""
    if match[1] is not None:
        return f"{match[1]}Infinity"
    return "" if match[0] == "-" else match[0]


def _parse_error(text: str, offset: int) -> InvalidArgument:
    return InvalidArgument(f"JSON Parse error: {text} at offset: {offset}")


class Repeated(dict[str, Any]):
    """An object in which a key comes twice: the first one is found by it.

    Attributes:
        pairs: all keys with their values, in order.
    """

    def __init__(self, pairs: list[tuple[str, Any]]):
        super().__init__(reversed(pairs))
        self.pairs = pairs


def members(value: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """The keys of an object with their values, each as often as it comes."""
    return value.pairs if isinstance(value, Repeated) else value.items()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    return value if len(value) == len(pairs) else Repeated(pairs)


def _number(text: str) -> float:
    value = float(text)
    if _SMALLEST <= abs(value) <= _LARGEST:
        return value
    if math.isinf(value) or _exponent_too_large(text):
        raise OverflowError(text)
    return math.copysign(0.0, value)


def _exponent_too_large(text: str) -> bool:
    """Whether a zero has an exponent that RapidJSON refuses whatever comes before."""
    if len(text) < len("0e309"):  # most zeros
        return False
    digits, _, exponent = text.lower().partition("e")
    return bool(exponent) and float(exponent) > 308 + len(digits.partition(".")[2])


def _integer(text: str) -> int | float:
    """What no 64 bits hold is a floating-point number."""
    if len(text) <= 20:
        value = int(text)
        if -(2**63) <= value < 2**64:
            return value
    return _number(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_number, parse_int=_integer
)


def dump(value: Any) -> bytes:
    """Writes an answer; NaN and the infinities as `NaN`, `Infinity`, `-Infinity`."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")


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
            yield f"{separator}{inner}{json.dumps(name, ensure_ascii=False)}: "
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
        yield repr(value).replace("e+", "e") if math.isfinite(value) else ""
    else:
        yield json.dumps(value, ensure_ascii=False)
