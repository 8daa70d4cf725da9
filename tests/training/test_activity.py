"""Reports of what takes long, on a stream that says when it was written to."""

import io
import threading

import pytest

from training.activity import activity
from training.reporting.progress_line import Stages


class Stream(io.StringIO):
    """A stream with an event for a number of lines."""

    def __init__(self, terminal=False, lines=1):
        super().__init__()
        self.terminal = terminal
        self.missing = lines
        self.written = threading.Event()

    def isatty(self):
        return self.terminal

    def flush(self):
        self.missing -= 1
        if not self.missing:
            self.written.set()


@pytest.fixture
def stderr(monkeypatch):
    """A function that replaces stderr."""

    def replace(**kwargs):
        stream = Stream(**kwargs)
        monkeypatch.setattr("sys.stderr", stream)
        return stream

    return replace


def test_a_long_activity_is_reported_again_and_again(stderr):
    stream = stderr(lines=3)
    with activity("compiling", every=0):
        assert stream.written.wait(60)
    lines = stream.getvalue().splitlines()
    assert len(lines) >= 3
    assert all(line.startswith("compiling") for line in lines)


def test_a_short_activity_is_not_reported(stderr):
    stream = stderr()
    with activity("compiling", every=1000):
        pass
    assert stream.getvalue() == ""


def test_the_line_of_a_terminal_is_cleared(stderr):
    stream = stderr(terminal=True)
    with activity("compiling", every=0):
        assert stream.written.wait(60)
    first, *_, last = stream.getvalue().split("\r")
    assert first == last == ""
    assert "\rcompiling" in stream.getvalue()
    assert "\n" not in stream.getvalue()


def test_of_an_activity_in_another_the_inner_one_is_reported(stderr):
    stream = stderr(lines=2)
    with activity("outer", every=0), activity("inner", every=0):
        assert stream.written.wait(60)
        assert "outer" not in stream.getvalue()
    stream = stderr()
    with activity("outer", every=0):
        with activity("inner", every=1000):
            pass
        assert stream.written.wait(60)
    assert "outer" in stream.getvalue()


def test_an_error_ends_an_activity(stderr):
    before = threading.active_count()
    with pytest.raises(ValueError, match="wrong"), activity("compiling", every=1000):
        raise ValueError("wrong")
    assert threading.active_count() == before


def test_the_stages_of_a_training_are_reported(stderr, monkeypatch):
    monkeypatch.setattr("training.activity.SECONDS", 0.0)
    stages = Stages()
    for begin, text in (
        (stages.on_train_begin, "compiling the training step"),
        (stages.on_test_begin, "validation"),
        (lambda: stages.on_epoch_end(0), "saving and logging"),
    ):
        stream = stderr()
        begin()
        assert stream.written.wait(60)
        stages.on_train_batch_end(0)
        assert stream.getvalue().startswith(text)
    before = threading.active_count()
    with stages.current:
        stages.on_train_begin()
    assert threading.active_count() == before
