"""Reports of what takes long, on a stream that says when it was written to."""

import io
import threading
import time

import pytest

from keras_vit.common.activity import activity, silence
from training.commands.command import Command
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


def test_an_activity_may_be_followed_by_another_in_its_place(stderr):
    stream = stderr(terminal=True)
    with activity("reading", every=0) as become:
        assert stream.written.wait(60)
        stream = stderr(terminal=True, lines=2)  # the old one is cleared first
        become("writing")
        assert stream.written.wait(60)
        assert "\rwriting" in stream.getvalue()
    assert "reading" not in stream.getvalue()


def test_an_error_ends_an_activity(stderr):
    with pytest.raises(ValueError, match="wrong"), activity("compiling", every=0):
        raise ValueError("wrong")
    stream = stderr()
    time.sleep(0.3)
    assert stream.getvalue() == ""
    assert "activity" not in {thread.name for thread in threading.enumerate()}


def test_a_line_among_those_of_others_is_not_cleared(stderr):
    stream = stderr(terminal=True)
    with activity("running", every=0, redraw=False):
        assert stream.written.wait(60)
    assert "\r" not in stream.getvalue()
    assert stream.getvalue().startswith("running\n")


def test_what_takes_long_is_reported_less_often(monkeypatch):
    monkeypatch.setattr("keras_vit.common.activity.SECONDS", 3.0)
    assert silence(599) == 3
    assert silence(601) == 60


def test_the_stages_of_a_training_are_reported(stderr, monkeypatch):
    monkeypatch.setattr("keras_vit.common.activity.SECONDS", 0.0)
    stages = Stages()
    stages.set_params({"steps": 7})
    for begin, text in (
        (stages.on_train_begin, "compiling the training step"),
        (lambda: stages.on_train_batch_begin(0), ""),
        (lambda: stages.on_train_batch_begin(1), "step 2/7"),
        (stages.on_test_begin, "validation"),
        (lambda: stages.on_epoch_end(0), "saving and logging"),
    ):
        stream = stderr()
        begin()
        assert not text or stream.written.wait(60)
        stages.on_train_batch_end(0)
        assert stream.getvalue().startswith(text)
    stream = stderr()
    with stages.current:
        stages.on_train_begin()
    time.sleep(0.3)
    assert stream.getvalue() == ""


def test_what_a_command_does_is_reported(stderr, monkeypatch):
    """Also between activities of its own, which are not the whole of it."""
    monkeypatch.setattr("keras_vit.common.activity.SECONDS", 0.0)
    stream = stderr()
    wait = Command(
        "recipes", lambda _: None, lambda _: stream.written.wait(60), needs_keras=False
    )
    wait([])
    assert stream.getvalue().startswith("keras-vit recipes\n")
