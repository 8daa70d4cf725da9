"""Narrow copies of other libraries' models: random weights, outputs beside ours.

`benchmarks.architectures` makes them.
"""

from benchmarks import torch_libraries  # noqa: F401  isort: skip

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from keras_vit.typing import Array

Model: TypeAlias = Any  # of another library, or its outputs

TOLERANCE = 2e-5  # timm's ResNet stems have other epsilons than ours
DTYPES = ("float32", "bfloat16")
HEAD_WIDTH = 16  # K
GRID = 4  # patches on each side of their images
CLASSES = 7


@dataclasses.dataclass
class Opened:
    """What became of one architecture.

    Args:
        library: `"timm"`, `"transformers"`, `"keras_hub"`, `"open_clip"` or
            `"meta"`.
        name: The architecture, or the model and its variant.
        example: Published weights of it, as `open_model` takes them.
        refused: The reason; "" where it opens.
        difference: Largest difference of the outputs, relative to the largest output,
            by the dtype of the file.
        back: The same for the library's model in what we write; None where we do not.
        kept: Why we do not write it.
    """

    library: str
    name: str
    example: str = ""
    refused: str = ""
    difference: dict[str, float] = dataclasses.field(default_factory=dict)
    back: float | None = None
    kept: str = ""


def randomize(model: Model) -> Model:
    """Random numbers everywhere that keep the size of a signal."""
    import torch

    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            matrix = parameter.ndim > 1 and parameter.shape[-1] > 1
            fan_in = max(parameter[0].numel(), 1) if matrix else 25
            parameter.copy_((0 if matrix else parameter) + noise * fan_in**-0.5)
    return model.eval()


def write_back(
    result: Opened, ours: Model, folder: pathlib.Path, project: str
) -> pathlib.Path | None:
    """Where our model was written as the project's; None if it has no place for it."""
    import keras_vit

    back = folder / "back"
    try:
        keras_vit.save_checkpoint(ours, back, project)
    except ValueError as error:
        result.kept = str(error)
        return None
    return back


def difference(
    ours: Model, outputs: Callable[[Array], Array], size: tuple[int, int]
) -> float:
    """Of our outputs and theirs, relative to the largest of theirs."""
    pixels = np.random.default_rng(3).normal(size=(2, *size, 3)).astype("float32")
    theirs = outputs(pixels)
    height, width = ours.image_size
    # A convolution leaves out what is less than a patch at the border.
    found = np.asarray(ours(pixels[:, :height, :width]))
    largest = max(float(np.abs(theirs).max()), 1e-3)
    return float(np.abs(found - theirs).max()) / largest


def compare(
    result: Opened,
    folder: pathlib.Path,
    dtype: str,
    outputs: Callable[[Model, Array], Array],
    model: Model,
    size: tuple[int, int],
    **arguments: Model,
) -> Model:
    """Open a folder, and note the reason of a refusal or the difference."""
    import keras_vit

    try:
        ours = keras_vit.open_model(folder, **arguments)
    except ValueError as error:
        result.refused = str(error)
        return None
    theirs = functools.partial(outputs, model)
    result.difference[dtype] = difference(ours, theirs, size)
    return ours
