"""The places that `tests/support/mutants.py` breaks exist, once each."""

import pathlib

import mutants
import pytest


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.path)
def test_the_place_of_a_mutant_is_found_once(mutant):
    text = pathlib.Path(mutants.ROOT, mutant.path).read_text("utf-8")
    assert text.count(mutant.before) == 1
    assert mutant.after != mutant.before
    for name in mutant.tests.split():
        assert pathlib.Path(mutants.ROOT, "tests", name).exists()


def test_there_are_mutants_of_thirty_modules():
    assert len({mutant.path for mutant in mutants.MUTANTS}) >= 30
