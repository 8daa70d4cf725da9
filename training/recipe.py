"""The typed recipe: everything that determines what a training run computes.

A recipe is a tree of frozen dataclasses, written as YAML. Those of this project have
names; see `recipes`.
"""

import dataclasses
import functools
import json
import operator
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml

from keras_vit.common.similar_names import did_you_mean

from .augmentation_config import (
    AT_LEAST_0,
    CHANGES_LABELS,
    AugmentationConfig,
    changing_images,
    marked,
    within,
)
from .errors import RecipeError, number_check, require, require_each
from .model_config import ModelConfig
from .typed_values import COMMON, build, place_of, read_file, typed_fields

Strategy = Literal["auto", "one_device", "mirrored", "multi_worker", "fsdp", "tpu"]
Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
AT_LEAST_1 = number_check("at least 1", lambda value: value >= 1)
POSITIVE = number_check("positive", lambda value: value > 0)
BELOW_1 = number_check("in [0, 1)", lambda value: 0 <= value < 1)
INSIDE = number_check("in (0, 1)", lambda value: 0 < value < 1)


@dataclass(frozen=True)
class DataConfig:
    """The data set and its splits.

    Args:
        source: digits, folder:PATH (one sub-folder for each class, with or without
            train/, val/ and test/ above them), tfds:NAME, python:MODULE:FUNCTION (a
            function that returns tf.data.Datasets), vtab:TASK or digits:TASK; see
            `sources`.
        train: The training images, as a slice of the source in TensorFlow Datasets'
            syntax: train, train[:90%], train[:800]+validation[:200].
        validation: Share of the training images to use for validation, where a folder
            or function has no validation images of its own; 0 for none; or a slice.
        test: Share of all images to use for the test, where the source has no test set
            of its own; or a slice. Of test or validation, in a source that has no such
            part, 0.2 of the images are used.
        split_seed: Seed of these splits, independent of `seed`.
        on_bad_image: What to do with unreadable files: error or skip.
        download: Whether tfds: may download the data set.
        cache_features: Whether to train the classifier alone, on what the frozen model
            computes of each image once, as in evaluation, and keeps on the disk. The
            saved model is an ordinary one.
    """

    source: str = field(metadata=COMMON)
    train: str = "train"
    validation: float | str = 0.1
    test: float | str = 0.2
    split_seed: int = 0
    on_bad_image: Literal["error", "skip"] = "error"
    download: bool = False
    cache_features: bool = False

    def __post_init__(self) -> None:
        kind, _, rest = self.source.partition(":")
        if self.source != "digits" and not (kind in SOURCE_KINDS and rest):
            raise RecipeError(
                "`data.source` must be digits, folder:PATH, tfds:NAME, vtab:TASK, "
                f"digits:TASK or python:MODULE:FUNCTION. Received: {self.source!r}."
                f"{_source_meant(self.source)}"
            )
        share = self.validation
        if isinstance(share, float | int):
            require(0 <= share < 1, "data.validation", "in [0, 1) or a slice", share)
        share = self.test
        if isinstance(share, float | int):
            require(0 < share < 1, "data.test", "in (0, 1) or a slice", share)
        require_each("data.", self, AT_LEAST_0, "split_seed")


SOURCE_KINDS = ("folder", "tfds", "python", "vtab", "digits")


def _source_meant(source: str) -> str:
    """A question about the source that was probably meant, or an empty text."""
    if Path(source).is_dir():
        return f" Did you mean folder:{source}?"
    _, colon, rest = source.partition(":")
    kinds = [f"{each}{colon}{rest}" for each in SOURCE_KINDS if rest]
    return did_you_mean(source, [*kinds, "digits"])


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer.

    Args:
        name: adamw, adam or sgd.
        learning_rate: The peak learning rate; see `schedule`.
        weight_decay: For adamw: decoupled weight decay of the kernels, multiplied by
            the learning rate. Biases, norms and embeddings do not decay.
        beta_1: For adamw and adam: decay of the gradient's moving average.
        beta_2: For adamw and adam: decay of the squared gradient's moving average.
        momentum: For sgd.
        clip_norm: Largest global norm of the whole batch's gradient, or null.
        layer_decay: Factor of the learning rate from each block to the one below it;
            the head has the factor 1, the embeddings the smallest.
        head_multiplier: Factor of the classifier's learning rate.
        head_first: Share of the run, at its start, in which the classifier alone is
            trained.
        frozen: Regular expressions; weights whose path matches one are not trained.
        ema: Decay of the exponential moving average of the weights, which evaluation
            and export use (Polyak averaging; the paper's is 0.9999), or null.
    """

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    learning_rate: float = field(default=1e-3, metadata=COMMON)
    weight_decay: float = 0.0
    beta_1: float = 0.9
    beta_2: float = 0.999
    momentum: float = 0.9
    clip_norm: float | None = None
    layer_decay: float = 1.0
    head_multiplier: float = 1.0
    head_first: float = 0.0
    frozen: tuple[str, ...] = ()
    ema: float | None = None

    def __post_init__(self) -> None:
        check = functools.partial(require_each, "optimizer.", self)
        check(POSITIVE, "learning_rate", "clip_norm")
        check(BELOW_1, "beta_1", "beta_2", "momentum", "ema", "head_first")
        check(within(0, 1, above=True), "layer_decay")
        check(AT_LEAST_0, "weight_decay", "head_multiplier")
        require(
            self.weight_decay == 0 or self.name == "adamw",
            "optimizer.weight_decay",
            f"0 with {self.name}: decay is applied beside the gradient, as AdamW does "
            "(`optimizer.name` adamw)",
            self.weight_decay,
        )
        for pattern in self.frozen:
            try:
                re.compile(pattern)
            except re.error:
                require(False, "optimizer.frozen", "regular expressions", pattern)


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning-rate schedule.

    Args:
        name: After the warm-up: cosine or linear (both fall to `end_learning_rate`),
            rsqrt (falls with the square root of the step), staircase (falls by
            `decay_factor` at each share in `decay_at`) or constant.
        warmup_epochs: Epochs of linear warm-up, not necessarily whole ones. A run that
            would end within the warm-up has one of a tenth of its steps.
        warmup_steps: Steps of linear warm-up; takes precedence over `warmup_epochs`.
        warmup_share: Share of the run that is warm-up, where the other two are not set.
        start_learning_rate: Learning rate at the start of the warm-up.
        end_learning_rate: Learning rate at the end of cosine and linear.
        timescale: For rsqrt: the number of steps after which it starts to fall.
        cooldown_steps: For rsqrt: steps at the end in which it falls linearly to 0.
        decay_at: For staircase: shares of the run, rising.
        decay_factor: For staircase: what the learning rate is multiplied by at each.
    """

    name: Literal["cosine", "linear", "rsqrt", "staircase", "constant"] = "cosine"
    warmup_epochs: float = 0.0
    warmup_steps: int | None = None
    warmup_share: float = 0.0
    start_learning_rate: float = 0.0
    end_learning_rate: float = 0.0
    timescale: int = 10_000
    cooldown_steps: int = 0
    decay_at: tuple[float, ...] = ()
    decay_factor: float = 0.1

    def __post_init__(self) -> None:
        check = functools.partial(require_each, "schedule.", self)
        check(AT_LEAST_0, "warmup_epochs", "warmup_steps", "cooldown_steps")
        check(AT_LEAST_0, "start_learning_rate", "end_learning_rate")
        check(BELOW_1, "warmup_share")
        check(AT_LEAST_1, "timescale")
        check(INSIDE, "decay_factor")
        shares = tuple(self.decay_at)
        require(
            shares == tuple(sorted(set(shares))) and all(0 < s < 1 for s in shares),
            "schedule.decay_at",
            "rising shares of the run, in (0, 1)",
            shares,
        )
        require(
            bool(shares) or self.name != "staircase",
            "schedule.decay_at",
            "given for staircase, such as [0.3, 0.6, 0.9]",
            shares,
        )


@dataclass(frozen=True)
class SelfSupervisionConfig:
    """Self-supervised pre-training: the model predicts what is masked of its patches.

    The run's `.keras` file holds the encoder without classes, with which another run
    can begin: `--model.weights runs/NAME/best.keras`.

    Args:
        task: none (the labels are learned), masked_patches (the paper's masked patch
            prediction, appendix B.1.2), mae (masked autoencoder, arXiv:2111.06377) or
            simmim (arXiv:2111.09886).
        mask_share: Share of the patches that is masked; null for the task's own: 0.5
            of masked_patches, 0.75 of mae, 0.6 of simmim.
        target: What masked_patches predicts of a patch: mean_color (of 3 bits in each
            channel: 512 classes), colors_4x4 (16 such colors of its parts) or pixels.
        decoder_width: Width of the tokens in mae's decoder.
        decoder_depth: Number of its encoder blocks.
        decoder_heads: Number of its attention heads.
        normalize_pixels: Whether mae predicts pixels that are normalized in each patch.
    """

    task: Literal["none", "masked_patches", "mae", "simmim"] = "none"
    mask_share: float | None = None
    target: Literal["mean_color", "colors_4x4", "pixels"] = "mean_color"
    decoder_width: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    normalize_pixels: bool = True

    def __post_init__(self) -> None:
        check = functools.partial(require_each, "self_supervision.", self)
        check(INSIDE, "mask_share")
        check(AT_LEAST_1, "decoder_width", "decoder_depth", "decoder_heads")
        value, heads = self.decoder_width, self.decoder_heads
        require(
            value % heads == 0 and value % 4 == 0,
            "self_supervision.decoder_width",
            f"a multiple of decoder_heads ({heads}) and of 4",
            value,
        )

    @property
    def share(self) -> float:
        """Share of the patches that is masked."""
        own = {"masked_patches": 0.5, "mae": 0.75, "simmim": 0.6}
        return own[self.task] if self.mask_share is None else self.mask_share

    @property
    def predicts_colors(self) -> bool:
        """Whether colors are predicted, not pixels."""
        return self.task == "masked_patches" and self.target != "pixels"


@dataclass(frozen=True)
class ReportConfig:
    """What a run writes into TensorBoard beside its curves.

    Args:
        attention_every: Epochs between two sets of pictures of filters, position
            embeddings, attention distance and attention maps; 0 for none.
        fewshot_every: Epochs between two few-shot accuracies of the frozen features
            (shots of the training images, tested on the validation images); 0 for none.
    """

    attention_every: int = 0
    fewshot_every: int = 0

    def __post_init__(self) -> None:
        require_each("report.", self, AT_LEAST_0, "attention_every", "fewshot_every")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training run.

    Args:
        name: Name of the run, and of its folder in runs/.
        description: One line for `keras-vit recipes`.
        reference: Where the values come from: paper, table, file.
        published_accuracy: The test accuracy in the reference, 0 to 1, or null where
            there is none.
        seed: Seed of the initial weights, the order of the images, their augmentation,
            and dropout.
        strategy: auto (mirrored where there are several GPUs; on JAX all devices of
            all processes that were started together), one_device, mirrored,
            multi_worker (one process for each worker in `TF_CONFIG`), tpu, or on JAX
            fsdp (all devices, of which each keeps a part of the weights).
        tpu: Name of the Cloud TPU, or local on a TPU VM.
        communication: How TensorFlow's workers sum their gradients: nccl, ring (over
            gRPC), or auto, which is nccl where they have GPUs.
        precision: float32, mixed_bfloat16 or mixed_float16 (with loss scaling).
        jit_compile: Whether XLA compiles forward and backward pass: auto, on or off.
        deterministic: Whether the same run gives the same bits, repeated or resumed;
            false allows faster kernels on GPUs. docs/devices.md says what holds on
            which device.
        steps_per_execution: Steps between two returns to Python.
        epochs: Passes over the training images.
        steps: Steps of the whole training; takes precedence over `epochs`.
        min_steps: Least number of steps, where `epochs` passes over few images are
            fewer.
        max_steps: Largest number of steps, where `epochs` passes over many images are
            more.
        batch_size: Images in a step, over all replicas.
        accumulation: Micro-batches into which each replica divides its images of a
            step, to save memory (gradient accumulation).
        loss: softmax, or sigmoid (summed over the classes).
        label_smoothing: Share of the target that is spread over all classes.
        logit_adjustment: Factor of the logarithm of each class's share of the training
            images, which the loss adds to its logit; 1 makes rare classes count as much
            as frequent ones (arXiv:2007.07314).
        callbacks: Your own Keras callbacks, MODULE:FUNCTION or a list of such: each
            function gets the recipe, and returns a callback or a list.
        model: The model.
        data: The data set and its splits.
        augmentation: Augmentation of the training images.
        optimizer: The optimizer.
        schedule: The learning-rate schedule.
        self_supervision: Pre-training without labels.
        report: What the run writes into TensorBoard beside its curves.
    """

    name: str = "run"
    description: str = ""
    reference: str = ""
    published_accuracy: float | None = None
    seed: int = 0
    strategy: Strategy = field(default="auto", metadata=COMMON)
    tpu: str | None = None
    communication: Literal["auto", "nccl", "ring"] = "auto"
    precision: Precision = field(default="float32", metadata=COMMON)
    jit_compile: Literal["auto", "on", "off"] = "auto"
    deterministic: bool = True
    steps_per_execution: int = 1
    epochs: int = field(default=10, metadata=COMMON)
    steps: int | None = None
    min_steps: int | None = None
    max_steps: int | None = None
    batch_size: int = field(default=64, metadata=COMMON)
    accumulation: int = 1
    loss: Literal["softmax", "sigmoid"] = "softmax"
    label_smoothing: float = 0.0
    logit_adjustment: float = 0.0
    callbacks: tuple[str, ...] | str | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    self_supervision: SelfSupervisionConfig = field(
        default_factory=SelfSupervisionConfig
    )
    report: ReportConfig = field(default_factory=ReportConfig)

    def __post_init__(self) -> None:
        plain = self.name not in ("", ".", "..") and Path(self.name).name == self.name
        require(plain, "name", "a name for a folder, without slashes", self.name)
        require(0 <= self.seed < 2**31, "seed", "in [0, 2**31)", self.seed)
        check = functools.partial(require_each, "", self)
        check(AT_LEAST_1, "epochs", "steps", "min_steps", "max_steps", "batch_size")
        check(AT_LEAST_1, "accumulation", "steps_per_execution")
        check(BELOW_1, "label_smoothing")
        check(AT_LEAST_0, "logit_adjustment")
        require(
            (self.min_steps or 1) <= (self.max_steps or self.min_steps or 1),
            "max_steps",
            f"at least min_steps ({self.min_steps})",
            self.max_steps,
        )
        value = self.published_accuracy
        wanted = "in [0, 1] or null"
        require(value is None or 0 <= value <= 1, "published_accuracy", wanted, value)
        repeats, batch_size = self.augmentation.repeats, self.batch_size
        require(
            batch_size % repeats == 0,
            "batch_size",
            f"a multiple of augmentation.repeats ({repeats})",
            batch_size,
        )
        if not self.supervised:
            self._require_no_labels()
        if self.data.cache_features:
            self._require_fixed_features()

    def _require_no_labels(self) -> None:
        """Refuse what only a run that learns labels has."""
        values = {
            "label_smoothing": self.label_smoothing,
            "logit_adjustment": self.logit_adjustment,
            **{
                f"augmentation.{name}": getattr(self.augmentation, name)
                for name in marked(CHANGES_LABELS, self.augmentation)
            },
            "optimizer.head_first": self.optimizer.head_first,
        }
        task = self.self_supervision.task
        for name, value in values.items():
            require(value == 0, name, f"0 with self_supervision.task {task}", value)
        require(
            self.model.architecture == "vit",
            "model.architecture",
            f"vit with self_supervision.task {task}",
            self.model.architecture,
        )
        rank = self.model.lora_rank
        wanted = f"null with self_supervision.task {task}"
        require(rank is None, "model.lora_rank", wanted, rank)

    def _require_fixed_features(self) -> None:
        """Refuse what has no effect on a classifier of features computed once."""
        flags = []
        defaults = {path: default for path, _, default in typed_fields(Recipe)}
        for path in OF_CHANGING_FEATURES:
            default = defaults[path]
            if operator.attrgetter(path)(self) != default:
                word = json.dumps(default).strip('"')
                flags.append(f"--{path} {word}")
        require(
            not flags,
            "data.cache_features",
            "false, unless the classifier alone is trained and an image has the same "
            f"features in every epoch, as with {' '.join(flags)}",
            True,
        )
        require(
            self.strategy in ("auto", "one_device", "mirrored"),
            "strategy",
            "auto, one_device or mirrored with data.cache_features",
            self.strategy,
        )

    @property
    def supervised(self) -> bool:
        """Whether the run learns labels, not a task of `self_supervision`."""
        return self.self_supervision.task == "none"

    def to_yaml(self) -> str:
        """The recipe as YAML, every value written out."""
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False)


# What `data.cache_features` needs at its default.
OF_CHANGING_FEATURES = (
    *(f"augmentation.{name}" for name in changing_images()),
    *("model.dropout", "model.attention_dropout"),
    *("model.stochastic_depth", "model.patch_dropout"),
    *("model.rotary_shift", "model.rotary_jitter", "model.rotary_rescale"),
    *(
        "model.distilled",
        "model.projection",
        "model.representation_size",
        "model.lora_rank",
    ),
    *("optimizer.layer_decay", "optimizer.head_first", "optimizer.frozen"),
    *("self_supervision.task", "report.attention_every", "report.fewshot_every"),
)


def changed_values(old: Recipe, new: Recipe) -> list[str]:
    """Each value in which two recipes differ: its path, the old one, the new one."""
    return [
        f"`{path}` is {value(old)!r} there and {value(new)!r} here"
        for path, _, _ in typed_fields(Recipe)
        if (value := operator.attrgetter(path))(old) != value(new)
    ]


def load_recipe(path: Path) -> Recipe:
    """Read a recipe file.

    Raises:
        RecipeError: It cannot be read, or is not a valid recipe.
    """
    return parse_recipe(read_recipe_text(path), str(path))


def read_recipe_text(path: Path) -> str:
    """Read a recipe file's text; RecipeError where it cannot be read."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: {error}") from None


def parse_recipe(text: str, origin: str) -> Recipe:
    """Parse a recipe from YAML; errors name its origin and the line."""
    read = read_file(text, origin, Recipe)
    try:
        if "data.source" not in read:
            raise RecipeError("`data.source` must be given, such as folder:PATH")
        return build(Recipe, {path: each.value for path, each in read.items()})
    except RecipeError as error:
        place = place_of(str(error), read) or origin
        raise RecipeError(f"{place}: {error}") from None
