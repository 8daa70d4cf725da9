"""The metrics of an evaluation, a row each: all that show a metric read them here."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .evaluate import Evaluation


class Metric(NamedTuple):
    """One number for all images of an evaluation.

    Attributes:
        title: As reports, tables and model cards call it.
        value: From 0 to 1; None where it says nothing, and is left out.
        hub_name: Its identifier on the Hugging Face Hub. Those that have one are
            printed after an evaluation, and on model cards.
    """

    title: str
    value: Callable[["Evaluation"], float | None]
    hub_name: str | None = None


METRICS = {
    "accuracy": Metric("accuracy", lambda scores: scores.accuracy, "accuracy"),
    "top_5": Metric(
        "top-5 accuracy",
        lambda scores: scores.top(5) if len(scores.class_names) > 5 else None,
        "accuracy",
    ),
    "macro_f1": Metric(
        "macro F1", lambda scores: float(np.mean(scores.of_classes.f1)), "f1"
    ),
    "calibration_error": Metric(
        "calibration error", lambda scores: scores.calibration_error
    ),
}
