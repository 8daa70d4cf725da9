"""What the runs of a study cost, before they run: parameters, FLOPs, hours.

The FLOPs of training are three forward passes (see `throughput.utilization_factor`) of
every image that is seen; the hours are those at a share of a device's peak.
"""

import dataclasses
import functools
from collections.abc import Container, Sequence
from dataclasses import dataclass

import keras
import numpy as np
from rich.box import SIMPLE
from rich.console import Console, JustifyMethod
from rich.table import Table

from keras_vit.costs import Costs, model_costs, resnet_costs
from keras_vit.nested_layers import all_layers
from keras_vit.options import REQUIRED
from keras_vit.specs import ViTSpec, parse_resnet, parse_variant

from ..architectures.recipe_model import build_model
from ..data.splits import load_splits
from ..engine.device_peaks import peak_flops
from ..engine.run_length import run_length
from ..errors import DataError, RecipeError
from ..model_config import IMAGE_SIZE, ModelConfig
from ..recipe import DataConfig, Recipe
from .study import Run, Study, StudyRow

CLASSES = 1000  # of a source that is not at hand; the classifier is a small part
HOUR = 3600


@dataclass(frozen=True)
class Estimate:
    """The cost of one run; None is unknown."""

    parameters: int | None  # with one learned position for each token
    flops: int | None  # of a forward pass of one image
    images: int | None  # seen in training, over all epochs and candidates

    @property
    def training_flops(self) -> float | None:
        """Floating-point operations of the whole training."""
        if self.flops is None or self.images is None:
            return None
        return 3.0 * self.flops * self.images


def estimate(row: StudyRow) -> Estimate:
    """The cost of one run of a row, with that of its candidates."""
    images, classes = row.images, row.classes or CLASSES
    if images is None and row.recipe.steps is None:
        images, found = _count(row.recipe.data, row.recipe.model.channels)
        classes = row.classes or found
    costs = model_config_costs(row.recipe.model, classes)
    # A masked autoencoder's encoder does not get all tokens.
    partial = row.recipe.self_supervision.task == "mae"
    return Estimate(
        None if costs is None else costs.parameters,
        None if costs is None or partial else costs.flops,
        _all_images_seen(row, images),
    )


def _all_images_seen(row: StudyRow, training_images: int | None) -> int | None:
    """Those of a run and of its trials; the longest candidate's where one is chosen."""
    candidates = list(row.candidates.values())
    trials = [images_seen(each.trial, training_images) for each in candidates]
    finals = [each.final for each in candidates] or [row.recipe]
    last = [images_seen(recipe, training_images) for recipe in finals]
    if None in trials or None in last:
        return None
    return sum(filter(None, trials)) + max(filter(None, last))


def images_seen(recipe: Recipe, training_images: int | None) -> int | None:
    """Number of images that all steps of a run take; None where that is unknown."""
    if recipe.steps is not None:
        return recipe.steps * recipe.batch_size
    if training_images is None:
        return None
    steps_per_pass = max(1, training_images // recipe.batch_size)
    return run_length(recipe, steps_per_pass).steps * recipe.batch_size


@functools.cache
def _count(data: DataConfig, channels: int) -> tuple[int | None, int]:
    try:
        splits = load_splits(data, channels)
    except DataError:
        return None, CLASSES
    return len(splits.train), len(splits.class_names)


def model_config_costs(config: ModelConfig, classes: int | None) -> Costs | None:
    """The cost of the model that a recipe describes, for one image.

    Returns:
        The `Costs` in closed form; of keras.applications' ResNets and the small CNN
        with parameters and MACs counted in the built model. None where the size is
        that of a file.

    Raises:
        RecipeError: The sizes do not fit each other.
    """
    try:
        if config.architecture == "bit":
            return _bit_costs(config, classes)
        if config.architecture == "vit":
            return _vit_costs(config, classes)
    except ValueError as error:
        raise RecipeError(f"model: {error}") from None
    return _counted(config, classes)


def _bit_costs(config: ModelConfig, classes: int | None) -> Costs | None:
    if config.resnet_blocks is not None:
        blocks, factor = config.resnet_blocks, config.resnet_width_factor
    elif config.variant is None:
        return None
    else:
        blocks, factor = parse_resnet(config.variant)
    size = config.image_size or IMAGE_SIZE
    return resnet_costs(blocks, factor, size, config.channels, classes)


def _vit_costs(config: ModelConfig, classes: int | None) -> Costs | None:
    sizes = {name: getattr(config, name) for name in REQUIRED}
    given = {name: value for name, value in sizes.items() if value is not None}
    if len(given) < len(REQUIRED):
        if config.variant is None:
            return None
        spec, patch_size = parse_variant(config.variant)
        given = {**dataclasses.asdict(spec), "patch_size": patch_size, **given}
    if config.resnet_blocks is not None:
        given["resnet_blocks"] = config.resnet_blocks
    patch_size = given.pop("patch_size")
    costs = model_costs(
        ViTSpec(**given),
        patch_size,
        config.image_size or IMAGE_SIZE,
        config.channels,
        classes,
        config.class_token,
        config.attention,
    )
    hidden = config.representation_size
    if hidden is None:
        return costs
    # A hidden layer of the head, between the encoder and the classifier.
    width = given["width"]
    macs = width * hidden + (hidden - width) * classes
    parameters = costs.parameters + macs + hidden
    return dataclasses.replace(costs, macs=costs.macs + macs, parameters=parameters)


@functools.cache
def _counted(config: ModelConfig, classes: int) -> Costs:
    names = tuple(map(str, range(classes)))
    model = build_model(dataclasses.replace(config, weights=None), names)
    macs = 0
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.Conv2D):
            macs += np.prod(layer.kernel.shape) * np.prod(layer.output.shape[1:3])
        elif isinstance(layer, keras.layers.Dense):
            macs += np.prod(layer.kernel.shape)
    return Costs(0, model.count_params(), int(macs), 0, 0)


def hours(
    row: StudyRow, cost: Estimate, device: str, utilization: float
) -> float | None:
    """Hours of a run on one device, or None where they are unknown."""
    peak = peak_flops(device, row.recipe.precision)
    if peak is None or cost.training_flops is None:
        return None
    return cost.training_flops / (peak * utilization * HOUR)


def print_estimates(
    study: Study,
    runs: Sequence[Run],
    finished: Container[Run],
    device: str,
    utilization: float,
) -> None:
    """Print every run with its cost, and the sums.

    Raises:
        RecipeError: The device has no known peak, or a model's sizes do not fit.
    """
    if all(peak_flops(device, run.row.recipe.precision) is None for run in runs):
        raise RecipeError(
            "`--device` must be a GPU or TPU with a known peak in this precision, such "
            f"as H100, A100, V100 or 'TPU v3'. Received: {device!r}"
        )
    table = Table(title=study.heading, box=SIMPLE, padding=(0, 1))
    for title in ("run", "weights", "GFLOPs", "images", "exaFLOPs", "hours"):
        side: JustifyMethod = "left" if title == "run" else "right"
        table.add_column(title, justify=side, no_wrap=True)
    total, total_hours, unknown = 0.0, 0.0, 0
    for run in runs:
        cost = estimate(run.row)
        time = hours(run.row, cost, device, utilization)
        done = " (finished)" if run in finished else ""
        table.add_row(
            run.name + done,
            _cell(cost.parameters, 1e6, ".2f", "M"),
            _cell(cost.flops, 1e9),
            _cell(cost.images, 1),
            _cell(cost.training_flops, 1e18),
            _cell(time, 1),
        )
        total += cost.training_flops or 0.0
        total_hours += time or 0.0
        unknown += cost.training_flops is None
    console = Console()
    console.print(table)
    console.print(
        f"{len(runs)} runs, {total / 1e18:.4g} exaFLOPs (3 forward passes of each "
        f"image seen), {total_hours:.4g} hours on one {device} at "
        f"{utilization:.0%} of its peak"
        + (f"; without {unknown} runs of unknown cost" if unknown else ""),
        highlight=False,
    )


def _cell(value: float | None, unit: float, form: str = ".3g", letter: str = "") -> str:
    return "-" if value is None else f"{value / unit:{form}}{letter}"
