"""JSON text -> Python values: numbers, objects and depths as RapidJSON reads them.

The standard library's decoder reads almost everything. What it cannot read is read
again here, with a stack instead of recursion: deep nesting, and the numbers `Inf`,
`-Inf` and `-NaN`.
"""

import json
import math
import re
import sys
from collections.abc import Iterable
from typing import Any

BLANKS = " \t\n\r"
# A level takes some 100 bytes of memory.
MAX_DEPTH = 1_000_000

_SMALLEST, _LARGEST = sys.float_info.min, sys.float_info.max
_NEAR_LARGEST = 1.797e308
_MANY_DIGITS = 300
_PARTS = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")
_SIGNIFICANT = 17
_BLANK = re.compile(f"[{BLANKS}]*")
_SPECIAL = re.compile(r"(-?)Inf(?:inity)?|-?NaN")


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


def read(text: str, start: int) -> Any:
    """The value that begins at a position; what follows it is not looked at.

    Args:
        text: JSON.
        start: the position of its first character.

    Raises:
        JSONDecodeError: no JSON.
        OverflowError: a number beyond float64.
        RecursionError: more than `MAX_DEPTH` levels.
    """
    try:
        return _DECODER.raw_decode(text, start)[0]
    except RecursionError:
        pass
    except json.JSONDecodeError as error:
        if not _SPECIAL.match(text, error.pos):
            raise
    return _Reader(text, start).read()


class _Reader:
    """Reads one value with a stack of its own.

    Args:
        text: JSON.
        position: where the value begins.
    """

    def __init__(self, text: str, position: int):
        self._text = text
        self._position = position
        # Arrays and objects that are open, outermost first: what is in them so far,
        # and the key whose value is being read (None: an array).
        self._contents: list[list[Any]] = []
        self._keys: list[str | None] = []

    def read(self) -> Any:
        """The value."""
        while True:
            opening = self._character()
            if opening in ("[", "{"):
                if self._opens(opening):
                    continue
                value: Any = [] if opening == "[" else {}
            else:
                value = self._scalar()
            whole, value = self._closes(value)
            if whole:
                return value

    def _opens(self, opening: str) -> bool:
        """Enters an array or an object; False if it is empty."""
        if len(self._contents) == MAX_DEPTH:
            raise RecursionError
        self._skip(1)
        if self._character() == ("]" if opening == "[" else "}"):
            self._position += 1
            return False
        self._contents.append([])
        self._keys.append(self._key() if opening == "{" else None)
        return True

    def _closes(self, value: Any) -> tuple[bool, Any]:
        """Puts a value where it belongs and leaves what ends with it.

        Returns:
            Whether the outermost value is read, and that value.
        """
        while self._contents:
            key = self._keys.pop()
            self._contents[-1].append(value if key is None else (key, value))
            self._skip(0)
            delimiter = self._character()
            if delimiter == ",":
                self._skip(1)
                self._keys.append(None if key is None else self._key())
                return False, None
            if delimiter != ("]" if key is None else "}"):
                raise self._error(f"Missing a comma or {']' if key is None else '}'}")
            self._position += 1
            contents = self._contents.pop()
            value = contents if key is None else _object(contents)
        return True, value

    def _key(self) -> str:
        if self._character() != '"':
            raise self._error("Missing a name for object member")
        key = self._scalar()
        self._skip(0)
        if self._character() != ":":
            raise self._error("Missing a colon after a name of object member")
        self._skip(1)
        return key

    def _scalar(self) -> Any:
        """A string, number, truth value or null."""
        if special := _SPECIAL.match(self._text, self._position):
            self._position = special.end()
            return math.nan if special[1] is None else float(f"{special[1]}inf")
        try:
            value, self._position = _scan(self._text, self._position)
        except StopIteration as error:
            raise self._error("Invalid value") from error
        return value

    def _character(self) -> str:
        return self._text[self._position : self._position + 1]

    def _skip(self, characters: int) -> None:
        """Moves on, over the blanks that follow too."""
        position = self._position + characters
        self._position = _BLANK.match(self._text, position).end()  # type: ignore

    def _error(self, text: str) -> json.JSONDecodeError:
        return json.JSONDecodeError(text, self._text, self._position)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    return value if len(value) == len(pairs) else Repeated(pairs)


def _number(text: str) -> float:
    """The number as RapidJSON 1.1 computes it; denormal numbers are 0."""
    value = float(text)
    if _SMALLEST <= abs(value) < _NEAR_LARGEST and len(text) < _MANY_DIGITS:
        return value
    if value or "e" in text.lower():  # most zeros have no exponent
        value = _computed(text)
    return value if abs(value) >= _SMALLEST else math.copysign(0.0, value)


def _computed(text: str) -> float:
    """A number from its digits and its exponent, in steps that may overflow.

    Whether it is too big is asked of the steps, not of the result: 1e309 and 0e400 are,
    2e308 is infinite.

    Raises:
        OverflowError: it is too big.
    """
    minus, whole, fraction, exponent = _PARTS.fullmatch(text).groups("")  # type: ignore
    if float(whole[:-1] or 0) >= _LARGEST / 10:
        raise OverflowError(text)
    significand = int(whole)
    known, used = len(whole) - 1, 0
    for digit in fraction:
        if known >= _SIGNIFICANT:
            break
        significand = 10 * significand + int(digit)
        used += 1
        known += significand > 0
    power = max(float(exponent or 0), -1000.0) - used
    if power > 308:
        raise OverflowError(text)
    value = float(significand) * _power_of_ten(max(power, 0))
    value /= _power_of_ten(max(min(-power, 308), 0))
    value /= _power_of_ten(max(-power - 308, 0))
    return -value if minus else value


def _power_of_ten(exponent: float) -> float:
    return float(f"1e{exponent:.0f}")


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
_scan = _DECODER.scan_once  # type: ignore[attr-defined]
