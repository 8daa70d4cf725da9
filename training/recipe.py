"""The typed recipe: everything that decides what a training run computes.

A recipe is a tree of frozen dataclasses, written as YAML. The YAML files of this
project lie in `training/recipes/`, one per recipe.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import yaml
from jsonargparse import ArgumentError

from .errors import RecipeError

RECIPES = Path(__file__).parent / "recipes"


def require(ok: bool, argument: str, wanted: str, received: Any) -> None:
    """Raises RecipeError unless `ok`, with the argument, the wish and what came."""
    if not ok:
        raise RecipeError(f"`{argument}` must be {wanted}. Received: {received!r}")


@dataclass(frozen=True)
class ModelConfig:
    """The Vision Transformer; see `keras_vit.VisionTransformer`.

    Args:
        variant: A published size such as B/16, or null where the next five are given;
            where both are, these win.
        patch_size: Side of a patch, in pixels.
        width: Width of the tokens.
        depth: Number of encoder blocks.
        mlp_dim: Width of the hidden layer in each block's MLP.
        heads: Number of attention heads.
        image_size: Side of the input in pixels, or [height, width].
        channels: 1 (gray) or 3 (RGB).
        head: token, gap (mean of the patches) or map (attention pooling).
        class_token: Whether there is a class token.
        dropout: Dropout rate of the paper's appendix B.1.
        stochastic_depth: Drop rate of the last block's residual branches.
        position_stddev: Standard deviation of the initial position embeddings; the
            paper's is 0.02.
        pixel_mean: Subtracted from the pixels (0 to 255) inside the model.
        pixel_std: What they are then divided by.
        interpolation: How images of another size are resized.
        antialias: Whether to filter before shrinking.
        crop_fraction: Share of each side that evaluation keeps, by a centre crop.
    """

    variant: str | None = "S/16"
    patch_size: int | None = None
    width: int | None = None
    depth: int | None = None
    mlp_dim: int | None = None
    heads: int | None = None
    image_size: int | tuple[int, int] = 224
    channels: Literal[1, 3] = 3
    head: Literal["token", "gap", "map"] = "token"
    class_token: bool = True
    dropout: float = 0.0
    stochastic_depth: float = 0.0
    position_stddev: float = 0.02
    pixel_mean: float = 127.5
    pixel_std: float = 127.5
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"] = (
        "bilinear"
    )
    antialias: bool = False
    crop_fraction: float = 1.0

    def __post_init__(self):
        given = [name for name in SIZES if getattr(self, name) is not None]
        missing = [name for name in SIZES if name not in given]
        require(
            self.variant is not None or not missing,
            "model.variant",
            f"given, or else model.{', model.'.join(missing)}",
            self.variant,
        )
        for name in given:
            value = getattr(self, name)
            require(value >= 1, f"model.{name}", "at least 1", value)
        for name in ("dropout", "stochastic_depth"):
            value = getattr(self, name)
            require(0 <= value < 1, f"model.{name}", "in [0, 1)", value)
        for name in ("position_stddev", "pixel_std"):
            value = getattr(self, name)
            require(value > 0, f"model.{name}", "positive", value)
        require(
            0 < self.crop_fraction <= 1,
            "model.crop_fraction",
            "in (0, 1]",
            self.crop_fraction,
        )


SIZES = ("patch_size", "width", "depth", "mlp_dim", "heads")


@dataclass(frozen=True)
class DataConfig:
    """Where the images come from and how they are divided.

    Args:
        source: digits, folder:PATH (one sub-folder for each class, with or without
            train/ and test/ above them) or tfds:NAME.
        validation: Share of the training images that is kept for validation; 0 for
            none.
        test: Share of all images that is kept for the test, where the source has no
            test set of its own.
        split_seed: Seed of these two divisions, which does not change with `seed`.
        on_bad_image: error ends with the names of unreadable files, skip leaves them
            out.
        download: Whether tfds: may download the data set.
    """

    source: str
    validation: float = 0.1
    test: float = 0.2
    split_seed: int = 0
    on_bad_image: Literal["error", "skip"] = "error"
    download: bool = False

    def __post_init__(self):
        kind, _, rest = self.source.partition(":")
        require(
            self.source == "digits" or (kind in ("folder", "tfds") and rest != ""),
            "data.source",
            "digits, folder:PATH or tfds:NAME",
            self.source,
        )
        value = self.validation
        require(0 <= value < 1, "data.validation", "in [0, 1)", value)
        require(0 < self.test < 1, "data.test", "in (0, 1)", self.test)
        require(self.split_seed >= 0, "data.split_seed", "at least 0", self.split_seed)


@dataclass(frozen=True)
class AugmentationConfig:
    """Random changes of the training images, new in every epoch.

    Args:
        crop_min_area: Smallest share of the image's area that a random crop (ratio 3/4
            to 4/3) keeps before it is resized; 1 for no crop.
        flip: Whether to mirror every second image left to right.
        shift: Largest shift in pixels of the model's input, in both directions; the
            border is repeated.
    """

    crop_min_area: float = 1.0
    flip: bool = False
    shift: int = 0

    def __post_init__(self):
        value = self.crop_min_area
        require(0 < value <= 1, "augmentation.crop_min_area", "in (0, 1]", value)
        require(self.shift >= 0, "augmentation.shift", "at least 0", self.shift)


@dataclass(frozen=True)
class OptimizerConfig:
    """How gradients change the weights.

    Args:
        name: adamw, adam or sgd.
        learning_rate: The highest one; see `schedule`.
        weight_decay: For adamw: the share by which each step shrinks the kernels,
            times the learning rate. Biases, norms and embeddings do not decay.
        beta_1: For adam and adamw.
        beta_2: For adam and adamw.
        momentum: For sgd.
    """

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    beta_1: float = 0.9
    beta_2: float = 0.999
    momentum: float = 0.9

    def __post_init__(self):
        value = self.learning_rate
        require(value > 0, "optimizer.learning_rate", "positive", value)
        for name in ("beta_1", "beta_2", "momentum"):
            value = getattr(self, name)
            require(0 <= value < 1, f"optimizer.{name}", "in [0, 1)", value)
        value = self.weight_decay
        require(value >= 0, "optimizer.weight_decay", "at least 0", value)
        require(
            value == 0 or self.name == "adamw",
            "optimizer.weight_decay",
            f"0 with {self.name}, which has none",
            value,
        )


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over time.

    Args:
        name: cosine or linear (both fall to 0) or constant, after the warm-up.
        warmup_epochs: Epochs, or a part of one, in which it rises linearly.
    """

    name: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_epochs: float = 0.0

    def __post_init__(self):
        value = self.warmup_epochs
        require(value >= 0, "schedule.warmup_epochs", "at least 0", value)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run.

    Args:
        name: Name of the run, and of its folder in runs/.
        description: One line for `python -m training recipes`.
        seed: Decides the initial weights, the order of the images, every random
            change of them, and dropout.
        strategy: auto (mirrored where there are several GPUs), one_device or mirrored.
        epochs: Passes over the training images.
        batch_size: Images in a step, over all replicas.
        label_smoothing: Share of the target that is spread over all classes.
        model: The model.
        data: The images.
        augmentation: The random changes of the training images.
        optimizer: The optimizer.
        schedule: The learning rate over time.
    """

    name: str = "run"
    description: str = ""
    seed: int = 0
    strategy: Literal["auto", "one_device", "mirrored"] = "auto"
    epochs: int = 10
    batch_size: int = 64
    label_smoothing: float = 0.0
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)

    def __post_init__(self):
        plain = self.name not in ("", ".", "..") and Path(self.name).name == self.name
        require(plain, "name", "a name for a folder, without slashes", self.name)
        require(0 <= self.seed < 2**31, "seed", "in [0, 2**31)", self.seed)
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            require(value >= 1, name, "at least 1", value)
        value = self.label_smoothing
        require(0 <= value < 1, "label_smoothing", "in [0, 1)", value)
        value = self.schedule.warmup_epochs
        wanted = f"less than `epochs` ({self.epochs})"
        require(value < self.epochs, "schedule.warmup_epochs", wanted, value)

    def to_yaml(self) -> str:
        """The recipe as YAML, every value written out."""
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False)


def recipe_path(name: str) -> Path:
    """The file of a recipe of this project.

    Raises:
        RecipeError: There is none of this name; the message lists those that exist.
    """
    names = [path.stem for path in recipe_files()]
    require(name in names, "--recipe", f"one of {', '.join(names)}", name)
    return RECIPES / f"{name}.yaml"


def recipe_files() -> list[Path]:
    """The files of all recipes of this project, sorted by name."""
    return sorted(RECIPES.glob("*.yaml"))


def load_recipe(path: Path) -> Recipe:
    """Reads a recipe file.

    Raises:
        RecipeError: It cannot be read, or says something that a recipe cannot say.
    """
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Recipe)
    try:
        return Recipe(**vars(parser.instantiate(parser.parse_path(path))))
    except (ArgumentError, TypeError) as error:
        raise RecipeError(f"{path}: {' '.join(str(error).split())}") from None
