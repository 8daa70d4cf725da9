"""Models for the tests of weights, most of which load one into another."""

import pytest
from tiny_model import Pool

POOL = Pool()


@pytest.fixture
def tiny_vit():
    """As everywhere, but with the models of former tests, given new weights."""
    yield POOL.take
    POOL.give_back()


GRIDS = [
    ((7, 7), (12, 12)),
    ((14, 14), (24, 24)),
    ((14, 14), (7, 7)),
    ((5, 3), (11, 17)),
    ((11, 17), (5, 3)),
    ((5, 17), (7, 11)),
    ((1, 5), (7, 2)),
    ((5, 3), (1, 1)),
    ((1, 1), (3, 2)),
]


@pytest.fixture(params=GRIDS, ids=str)
def grids(request):
    """The old grid and the new one of resampled positions."""
    return request.param


@pytest.fixture(params=[0, 1, 5])
def prefix_tokens(request):
    """Number of tokens before the patches."""
    return request.param
