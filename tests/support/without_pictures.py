"""Runs that draw nothing: pictures take a third of the time of a tiny run.

`python without_pictures.py fit ...` is `keras-vit fit ...` without them.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from keras_vit.analysis import figures
from training.evaluation import attention_pictures as attention
from training.reporting import pictures


def leave_out_pictures(replace=setattr) -> None:
    """Replace what draws in `training.reporting`.

    Args:
        replace: `setattr`, for the rest of the process, or that of a MonkeyPatch.
    """
    for name in dir(pictures):
        if name.startswith("draw_"):
            replace(pictures, name, lambda *_: None)
    for name in ("confusion_figure", "example_figure", "save"):
        replace(pictures, name, lambda *_: None)
    replace(figures, "pixels", lambda _: np.zeros((1, 1, 3), "uint8"))
    replace(attention, "has_attention", lambda _: False)


if __name__ == "__main__":
    from training_commands import main

    leave_out_pictures()
    sys.exit(main(sys.argv[1:]))
