"""Keys of a project's config: the options of ours that each states.

A family lists every key that its classes know. A key that it does not list may change
what the model computes, and is refused by its name.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from keras_vit.errors import WeightsFileError
from keras_vit.typing import JSON

Config = Mapping[str, JSON]


class Unsaid:
    """The type of `UNSAID`."""

    def __repr__(self) -> str:
        return "UNSAID"


UNSAID = Unsaid()  # no value, where None is one


class Stated(NamedTuple):
    """An option's value as a document states it.

    Attributes:
        value: In our terms.
        source: The key that it came from, in words.
    """

    value: JSON
    source: str


@dataclasses.dataclass(frozen=True)
class ConfigKey:
    """What one key of a config says of a model.

    Args:
        read: From its value, and the config with the defaults of all keys, to options
            of ours. Raises ValueError, with what the value must be, for what no model
            of ours computes.
        default: What the project's class assumes where the key is absent or null.
        write: From a model of ours to its value; None where it is not written. Raises
            ValueError for a model that it cannot state.
    """

    read: Callable[[JSON, Config], Mapping[str, JSON]]
    default: JSON = UNSAID
    write: Callable[[JSON], JSON] | None = None


Keys = Mapping[str, ConfigKey]


@dataclasses.dataclass(frozen=True)
class OneOf:
    """A `read` and a `write` by a table.

    Args:
        names: Our values by theirs; of several the first is written.
    """

    names: Mapping[JSON, JSON]

    def __call__(self, value: JSON, config: Config) -> JSON:
        """Our value."""
        if not isinstance(value, (str, int)) or value not in self.names:
            known = (str(name) or "''" for name in self.names)
            raise ValueError(f"one of {', '.join(known)}")
        return self.names[value]

    def theirs(self, ours: JSON) -> JSON:
        """Their value."""
        for name, value in self.names.items():
            if value == ours:
                return name
        known = dict.fromkeys(map(repr, self.names.values()))
        raise ValueError(f"one of {', '.join(known)}")


def says(
    *options: str,
    default: JSON = UNSAID,
    read: Callable[[JSON, Config], JSON] | None = None,
    write: Callable[[JSON], JSON] | None = None,
) -> ConfigKey:
    """A key that states options, all the same value.

    Args:
        options: Their names.
        default: What the project's class assumes without the key.
        read: From its value and the whole config to ours, `UNSAID` for nothing; the
            same value where there is no such function.
        write: From a model to its value; by the table of a `OneOf`, or the option's own
            value, where there is no such function.
    """

    def read_all(value: JSON, config: Config) -> dict[str, JSON]:
        ours = value if read is None else read(value, config)
        return {} if ours is UNSAID else dict.fromkeys(options, ours)

    def write_first(model: JSON) -> JSON:
        ours = getattr(model, options[0])
        return read.theirs(ours) if isinstance(read, OneOf) else ours

    plain = read is None or isinstance(read, OneOf)
    return ConfigKey(read_all, default, write or (write_first if plain else None))


def says_nothing(*names: str) -> dict[str, ConfigKey]:
    """Keys on which no output depends."""
    return dict.fromkeys(names, ConfigKey(lambda value, config: {}))


def read_by_another(
    default: JSON, write: Callable[[JSON], JSON] | None = None
) -> ConfigKey:
    """A key that another one is read with."""
    return ConfigKey(lambda value, config: {}, default, write)


def must_be(*supported: JSON, default: JSON = UNSAID) -> ConfigKey:
    """A key that makes the model another one, unless it has one of these values."""

    def read(value: JSON, config: Config) -> dict[str, JSON]:
        if value not in supported:
            wanted = " or ".join(map(repr, supported))
            raise ValueError(f"{wanted}: no model here computes another")
        return {}

    return ConfigKey(read, default)


def written(keys: Keys, model: JSON) -> dict[str, JSON]:
    """The values of all keys that are written, for a model of ours.

    Raises:
        ValueError: A key cannot state what the model has.
    """
    values: dict[str, JSON] = {}
    for name, key in keys.items():
        if key.write is None:
            continue
        try:
            values[name] = key.write(model)
        except ValueError as error:
            raise ValueError(f"{name} can state {error}") from error
    return values


def read_config(
    path: object, keys: Keys, parts: Sequence[tuple[str, Config]]
) -> dict[str, Stated]:
    """Options that a config states, in our terms.

    Args:
        path: The file that the config is of, for messages.
        keys: What its keys say.
        parts: What gives it, the most important first: how a key of this part is called
            in messages, with `{}` for its name, and the values by key. Null is the
            class's default, whatever later parts say.

    Raises:
        WeightsFileError: It has a key that may change what the model computes, and that
            nobody here knows, or a value that no model of ours has.
    """
    given: dict[str, Stated] = {}
    for words, part in parts:
        for name, value in part.items():
            given.setdefault(name, Stated(value, words.format(name)))
    given = {name: each for name, each in given.items() if each.value is not None}
    unknown = [given[name].source for name in given if _is_unknown(keys, name, given)]
    if unknown:
        raise WeightsFileError(
            "A config must have keys that are known here, as another may change what "
            f"the model computes. Received: {', '.join(unknown)} in the config of "
            f"{str(path)!r}; delete what does not"
        )
    for name, key in keys.items():
        if key.default is not UNSAID:
            given.setdefault(name, Stated(key.default, f"`{name}`, which is absent,"))
    config = {name: each.value for name, each in given.items()}
    stated: dict[str, Stated] = {}
    for name, (value, source) in given.items():
        if name not in keys:
            continue
        try:
            options = keys[name].read(value, config)
        except ValueError as error:
            raise WeightsFileError(
                f"{source} must be {error}. Received: {value!r} in the config of "
                f"{str(path)!r}"
            ) from error
        stated |= {option: Stated(ours, source) for option, ours in options.items()}
    return stated


def _is_unknown(keys: Keys, name: str, given: Mapping[str, Stated]) -> bool:
    # What is off or empty changes nothing.
    return name not in keys and given[name].value not in (False, [], {}, "")
