"""Which known name was meant by a mistyped one."""

import difflib
from collections.abc import Iterable


def similar_names(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """At most so many of the known names, the most similar first; perhaps none."""
    return difflib.get_close_matches(name, list(known), n=most)


def did_you_mean(
    name: str, known: Iterable[str], prefix: str = "", most: int = 1
) -> str:
    """A question about the most similar known names, or an empty text.

    Args:
        name: What was typed.
        known: The names that exist.
        prefix: Written before each similar name.
        most: How many are named at most.
    """
    meant = [f"{prefix}{each}" for each in similar_names(name, known, most)]
    return f" Did you mean {' or '.join(meant)}?" if meant else ""
