"""How a class of options is read: rows, checks, signatures and docstrings from fields.

A row is a field of a frozen dataclass: its type (`Literal` for choices), a check where
the type allows too much, a sentence, and its default. `keras_vit.options` has the rows.
This module does not import Keras.
"""

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Mapping
from numbers import Integral
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from keras_vit.typing import Config


class Check(NamedTuple):
    """What a value must be beside its type."""

    wanted: str
    holds: Callable[[object], bool]


class ShownBy(NamedTuple):
    """The weight whose presence in a checkpoint shows a boolean."""

    path: str
    value: bool = True


class CountedBy(NamedTuple):
    """The weights whose number in a checkpoint shows an integer.

    They are counted from 0, in the place of `{n}`; the first may be absent.
    """

    path: str


class Mark(NamedTuple):
    """What else is said of a row."""

    meaning: str


# Options without a mark are parts of the structure: weights fit one value only.
ADAPTABLE = Mark("weights fit, or are adapted to, any value")
OF_THE_RUN = Mark("adaptable; a recipe's default wins over what a `.keras` file has")
OF_THE_SIZE = Mark("a model with another value is of another size")
UNSEEN = Mark("the model's outputs depend on it, the shapes of its weights do not")


def at_least(least: int) -> Check:
    """Check an integer against the least one."""
    return Check(
        f"an integer of at least {least}",
        lambda value: isinstance(value, Integral) and int(value) >= least,
    )


class OptionRow(NamedTuple):
    """An option, as its field states it.

    Attributes:
        kind: Its type.
        about: What it is, a sentence or more.
        check: What else it must be.
        shown_by: The weight that shows it, see `ShownBy`.
        counted_by: The weights that show it, see `CountedBy`.
        marks: Such as `ADAPTABLE`.
    """

    kind: Any
    about: str
    check: Check | None
    shown_by: ShownBy | None
    counted_by: CountedBy | None
    marks: frozenset[Mark]

    @property
    def adaptable(self) -> bool:
        """Whether weights fit any value."""
        return not self.marks.isdisjoint({ADAPTABLE, OF_THE_RUN})

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of a `Literal`; empty for other types."""
        kinds = _alternatives(self.kind)
        values = [v for k in kinds if get_origin(k) is Literal for v in get_args(k)]
        return (*values, None) if values and NoneType in kinds else tuple(values)

    def problem(self, value: object) -> str | None:
        """What the value must be, if it is not."""
        if self.choices and value not in self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        if self.kind is bool and value not in (True, False):
            return "true or false"
        optional = value is None and NoneType in _alternatives(self.kind)
        if optional or self.check is None:
            return None
        fits = value is not None and self.check.holds(value)
        return None if fits else self.check.wanted


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _row(annotation: Any, plain: Any) -> OptionRow:
    """Gather what the annotations of a type, then of those in a union, say."""
    notes = [*getattr(annotation, "__metadata__", ())]
    inner = getattr(annotation, "__origin__", annotation) if notes else annotation
    for each in _alternatives(inner):
        notes += getattr(each, "__metadata__", ())
    texts = [note for note in notes if isinstance(note, str)]
    return OptionRow(
        plain,
        texts[0] if texts else "",
        next((note for note in notes if isinstance(note, Check)), None),
        next((note for note in notes if isinstance(note, ShownBy)), None),
        next((note for note in notes if isinstance(note, CountedBy)), None),
        frozenset(note for note in notes if isinstance(note, Mark)),
    )


Options = TypeVar("Options")
_ROWS: dict[type, dict[str, OptionRow]] = {}


@dataclass_transform(kw_only_default=True, frozen_default=True)
def options(cls: type[Options]) -> type[Options]:
    """Make a class of rows a frozen dataclass with keyword arguments.

    The docstring gets a line for each row that it has not; the annotations become
    plain types.
    """
    annotated = get_type_hints(cls, include_extras=True)
    plain = get_type_hints(cls)
    found: dict[str, OptionRow] = {}
    for base in reversed(cls.__mro__[1:]):
        found |= _ROWS.get(base, {})
    for name in cls.__annotations__:
        row = _row(annotated[name], plain[name])
        if not row.about and name in found:  # another type for the same option
            row = found[name]._replace(kind=plain[name])
        found[name] = row
    cls.__annotations__ = {name: plain[name] for name in cls.__annotations__}
    made = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    names = [field.name for field in dataclasses.fields(made)]  # type: ignore[arg-type]
    _ROWS[made] = {name: found[name] for name in names}
    made.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\nArgs:\n{_lines(made)}"
    return made


def rows(cls: type) -> Mapping[str, OptionRow]:
    """The rows of a class of options by name."""
    return _ROWS[cls]


def _lines(cls: type) -> str:
    """The section Args of a docstring, without its heading."""
    return "\n".join(
        textwrap.fill(
            f"{name}: {row.about}",
            84,
            initial_indent=" " * 4,
            subsequent_indent="  " * 4,
        )
        for name, row in rows(cls).items()
    )


def part_of(cls: type, source: object) -> Config:
    """The options of a class, as the attributes of an object have them."""
    return {name: getattr(source, name) for name in rows(cls)}


def taken(cls: type[Options], arguments: Config) -> Options:
    """Take a class's options out of keyword arguments, and check them."""
    given = [name for name in arguments if name in rows(cls)]
    made = cls(**{name: arguments.pop(name) for name in given})
    check(made)
    return made


def check(made: object) -> None:
    """Raise ValueError for an option that is not what its row says."""
    for name, row in rows(type(made)).items():
        value = getattr(made, name)
        if wanted := row.problem(value):
            raise ValueError(f"`{name}` must be {wanted}. Received: {name}={value!r}")


Parameters = ParamSpec("Parameters")
Made = TypeVar("Made")


def built_from(
    cls: Callable[Parameters, Options],
) -> Callable[
    [Callable[[Made, Options], None]], Callable[Concatenate[Made, Parameters], None]
]:
    """Make a constructor that takes the options themselves, as keyword arguments."""

    def decorate(
        construct: Callable[[Made, Options], None],
    ) -> Callable[Concatenate[Made, Parameters], None]:
        def __init__(
            self: Made, /, *args: Parameters.args, **kwargs: Parameters.kwargs
        ) -> None:
            construct(self, cls(*args, **kwargs))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        fields = inspect.signature(cls).parameters.values()
        __init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [own, *fields]
        )
        return __init__

    return decorate


class _HasOptions(Protocol):
    options_class: ClassVar[type]


Documented = TypeVar("Documented", bound=_HasOptions)


def documented(cls: type[Documented]) -> type[Documented]:
    """Put the lines of `options_class` into a docstring, where it says {options}."""
    lines = _lines(cls.options_class)
    cls.__doc__ = (cls.__doc__ or "").replace(
        "    {options}", textwrap.indent(lines, "    ")
    )
    return cls
