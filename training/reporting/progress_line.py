"""Console output of `fit`: one line of figures for each epoch."""

import sys
import time

import keras

# Names as in history.csv, headings, formats. A loss has at most 9 characters, as in
# 1.234e-05, so that a line with all columns has 75.
COLUMNS = (
    ("loss", "     loss", "#9.4g"),
    ("accuracy", "accuracy", "8.4f"),
    ("val_loss", " val_loss", "#9.4g"),
    ("val_accuracy", "val_accuracy", "12.4f"),
    ("images_per_second", "images/s", "8.1f"),
)


class EpochLines(keras.callbacks.Callback):
    """Callback that prints a heading, and a line of at most 80 columns for each epoch.

    Keras's progress bar is wider than most terminals with our figures, and then starts
    a new line at each redraw. On a terminal the line shows the current step.
    """

    def __init__(self):
        super().__init__()
        self.headed = False
        self.name = ""
        self.began = self.shown = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        """Start the clock."""
        self.name = f"{epoch + 1}/{self.params['epochs']}".rjust(9)
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        """Show the step on a terminal, at most once in a second."""
        now = time.perf_counter()
        if sys.stdout.isatty() and now - self.shown >= 1:
            self.shown = now
            step = f"step {batch + 1}/{self.params['steps']}"
            print(f"\r{self.name}  {step:<30}", end="", flush=True)

    def on_epoch_end(self, epoch, logs=None):
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
        print(f"{start}{line:<45}", flush=True)
