"""Fixtures that leave out what most tests of exports do not look at."""

import contextlib

import pytest

from serving.export import publish, signatures


@pytest.fixture
def only(monkeypatch):
    """A function after whose call exports have these signatures alone."""

    def select(*names):
        monkeypatch.setattr(signatures, "signature_names", lambda _: list(names))

    return select


@pytest.fixture
def unverified(monkeypatch):
    """Skip the verification of what is published."""
    agreement = {"images": 9, "max_difference": 0.0, "top1": 1.0}
    agrees = contextlib.nullcontext(lambda *_: agreement)
    monkeypatch.setattr(publish, "verification", lambda: agrees)
