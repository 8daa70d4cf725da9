"""The process in which what was written is verified."""

import signal

import pytest

from serving.export import verify

START = verify._start


@pytest.fixture
def processes(monkeypatch):
    """The processes that are started, in place of none."""
    started = []

    def start():
        started.append(START())
        return started[-1]

    monkeypatch.setattr(verify, "_start", start)
    return started


def test_it_is_ended_where_nothing_could_be_written(processes):
    with pytest.raises(OSError, match="no space"), verify.verification():
        raise OSError("no space")
    assert processes[0].returncode == -signal.SIGKILL
    assert processes[0].stdin.closed


@pytest.mark.slow
def test_without_a_request_it_does_nothing(processes):
    with verify.verification():
        output = processes[0].communicate("", timeout=verify.SECONDS)
    assert output[0] == ""
    assert processes[0].returncode == 0
