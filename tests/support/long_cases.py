"""Which cases of a parametrized test are long ones."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def long_after(
    fast: int, cases: Iterable[Any], ids: Sequence[str] | None = None
) -> list[Any]:
    """Have `make test` run the first cases only, and `make test-all` all of them.

    Args:
        fast: How many cases `make test` runs. They should differ in what matters most.
        cases: Values of one argument, tuples of several, or `pytest.param`.
        ids: The cases' names, or pytest's.
    """
    chosen = []
    for number, case in enumerate(cases):
        param = (
            case
            if hasattr(case, "marks")
            else pytest.param(*(case if isinstance(case, tuple) else (case,)))
        )
        if ids is not None:
            param = param._replace(id=ids[number])
        if number >= fast:
            param = param._replace(marks=(*param.marks, pytest.mark.slow))
        chosen.append(param)
    return chosen
