"""A run's images in the size of its model, for the int8 export.

`keras-vit export --quantize` runs it in a process of its own, where no GPU is full of
the exported model: `keras-vit run-images best.keras images.npz`.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_vit.common.command_line import Parser
from keras_vit.typing import Arrays

from ..architectures.model_reading import read_classifier
from ..data.pipeline import evaluation_images
from ..data.splits import load_splits
from ..engine import run_folder
from ..engine.forward_pass import preprocessing_of

NUMBER = 512  # of each split


def read_images(model_file: Path) -> Arrays:
    """Read a random choice of the images of a run, the same each time.

    Returns:
        uint8 [n, H, W, C] as evaluation feeds them to the model, at most `NUMBER` of
        each split: `train`, `test` and, where the run has one, `validation`.

    Raises:
        TrainingError: The model, the recipe or the source cannot be read.
    """
    model = read_classifier(model_file)
    config = run_folder.read_recipe(model_file.parent).data
    splits = load_splits(config, model.channels)
    preprocessing = preprocessing_of(model)
    images = {}
    for name in ("train", "validation", "test"):
        if (split := getattr(splits, name)) is not None:
            chosen = np.random.default_rng(0).permutation(len(split))[:NUMBER]
            images[name] = evaluation_images(split.subset(chosen), preprocessing)
    return images


def main(arguments: Sequence[str]) -> None:
    """Write the images of the run of MODEL to FILE, a .npz."""
    parser = Parser(prog="keras-vit run-images", description="For `export`.")
    parser.add_argument("model", type=Path, help="best.keras in the folder of a run")
    parser.add_argument("file", type=Path, help="a .npz")
    asked = parser.parse_args(arguments)
    np.savez(asked.file, **read_images(asked.model))  # type: ignore[arg-type]
