"""Which cases of a parametrized test are long ones."""

from collections.abc import Iterable
from typing import Any

import pytest


def long_after(fast: int, cases: Iterable[Any]) -> list[Any]:
    """Have `make test` run the first cases only, and `make test-all` all of them.

    Args:
        fast: How many cases `make test` runs. They should differ in what matters most.
        cases: Values of one argument, tuples of several, or `pytest.param`.
    """
    cases = list(cases)
    return [*cases[:fast], *map(_long, cases[fast:])]


def _long(case: Any) -> Any:
    if hasattr(case, "marks"):  # of `pytest.param`
        return case._replace(marks=(*case.marks, pytest.mark.slow))
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
