"""Console output of `fit`: a line of figures for each epoch, and what it waits for."""

import contextlib
import sys
import time
from collections.abc import Sequence
from datetime import timedelta

import keras

from keras_vit.common.activity import activity, silence, spoken

from ..engine.progress import Logs
from ..engine.recorder import best_epoch

# Names as in history.csv, headings, formats. A loss has at most 9 characters, as in
# 1.234e-05, so that a line with all columns and BEST has 80.
COLUMNS = (
    ("loss", "     loss", "#9.4g"),
    ("accuracy", "accuracy", "8.4f"),
    ("patch_accuracy", "accuracy", "8.4f"),
    ("val_loss", " val_loss", "#9.4g"),
    ("val_accuracy", "val_accuracy", "12.4f"),
    ("val_patch_accuracy", "val_accuracy", "12.4f"),
    ("images_per_second", "images/s", "8.1f"),
)
FEW_SHOT = "val_fewshot_"  # in front of the number of shots
BEST = " best"  # after the figures of the best epoch so far


class Stages(keras.callbacks.Callback):
    """Callback, the first of all, that reports what takes long beside the steps.

    Args:
        current: What closes a report. A `with` of it ends one when training fails.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = contextlib.ExitStack()
        self.compiled = False

    def _begin(self, text: str) -> None:
        self.current.close()
        self.current.enter_context(activity(text))

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Report the first step, which compiles."""
        self._begin("compiling the training step")

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Report a step; the first one is already."""
        if self.compiled:
            self._begin(f"step {batch + 1}/{self.params['steps']}")

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """End the report."""
        self.compiled = True
        self.current.close()

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Report the validation, which compiles the first time."""
        self._begin("validation")

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Report what the other callbacks do, until the next step."""
        self._begin("saving and logging")

    def on_train_end(self, logs: Logs | None = None) -> None:
        """The same of the end of the run."""
        self._begin("saving and logging")


class EpochLines(keras.callbacks.Callback):
    """Callback that prints a heading, and a line of at most 80 columns for each epoch.

    Keras's progress bar is wider than most terminals with our figures, and then starts
    a new line at each redraw. On a terminal the line shows the current step and the
    time until the end of the run; a log has lines of their own for these, a few seconds
    apart in the first ten minutes, and a minute apart later.
    """

    def __init__(self, history: Sequence[Logs] = ()) -> None:
        super().__init__()
        self.history = history
        self.headed = False
        self.name = ""
        self.began = self.shown = 0.0
        # Steps of the run that were done when its first step, which compiles, ended
        # here, and when that was.
        self.first: tuple[int, float] | None = None
        self.steps_before = 0

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Start the clock."""
        self.name = f"{epoch + 1}/{self.params['epochs']}".rjust(9)
        self.steps_before = epoch * self.params["steps"]
        self.began = time.perf_counter()
        if not sys.stdout.isatty():
            self.shown = self.shown or self.began

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Show the step, on a terminal at most once in a second."""
        terminal = sys.stdout.isatty()
        now = time.perf_counter()
        done = self.steps_before + batch + 1
        if self.first is None:
            self.first = done, now
        steps, seconds = done - self.first[0], now - self.first[1]
        if now - self.shown >= (1.0 if terminal else silence(seconds)):
            self.shown = now
            left = self._time_left(steps, seconds, done)
            text = f"step {batch + 1}/{self.params['steps']}{left}"
            start, end = ("\r", "") if terminal else ("", "\n")
            text = f"{text:<60}" if terminal else text
            print(f"{start}{self.name}  {text}", end=end, flush=True)
            spoken()

    def _time_left(self, steps: int, seconds: float, done: int) -> str:
        """The time until the last step, validation included, as text."""
        if steps < 1:
            return ""
        left = self.params["epochs"] * self.params["steps"] - done
        return f", ETA {timedelta(seconds=round(left * seconds / steps))}"

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Print the epoch's line."""
        seconds = time.perf_counter() - self.began
        start = "\r" if sys.stdout.isatty() else ""
        columns = [column for column in COLUMNS if column[0] in logs]
        if not self.headed:
            self.headed = True
            names = (heading for _, heading, _ in columns)
            print(start + "  ".join(["    epoch", *names, " seconds"]))
        figures = (f"{float(logs[name]):{form}}" for name, _, form in columns)
        line = "  ".join([self.name, *figures, f"{seconds:8.1f}"])
        if "val_loss" in logs and best_epoch([*self.history, logs]) is logs:
            line += BEST
        print(f"{start}{line:<71}" if start else line, flush=True)
        spoken()
        self.shown = 0.0 if start else time.perf_counter()
        few_shot = [
            f"{name.removeprefix(FEW_SHOT)}-shot {float(value):.4f}"
            for name, value in logs.items()
            if name.startswith(FEW_SHOT)
        ]
        if few_shot:
            print(" " * 9 + "  frozen features: " + ", ".join(few_shot), flush=True)
