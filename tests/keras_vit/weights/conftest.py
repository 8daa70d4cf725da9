"""Models for the tests of weights, most of which load one into another."""

import pytest
from tiny_model import Pool

POOL = Pool()


@pytest.fixture
def tiny_vit():
    """As everywhere, but with the models of former tests, given new weights."""
    yield POOL.take
    POOL.give_back()
