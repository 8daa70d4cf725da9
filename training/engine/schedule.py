"""Learning-rate schedules: warm-up, then cosine, linear, rsqrt or a staircase."""

import dataclasses
from typing import TypeAlias

import keras
from keras import ops

from keras_vit.typing import Config, Tensor, TensorLike

from ..recipe import Recipe, ScheduleConfig

Schedule: TypeAlias = keras.optimizers.schedules.LearningRateSchedule


@dataclasses.dataclass(eq=False)
class Warmup(Schedule):
    """Linear warm-up, followed by another schedule.

    Args:
        start: The learning rate before the first step.
        peak: The learning rate at the end of the warm-up.
        steps: Steps of the warm-up; the rate of step i, from 0, is (i + 1) / steps of
            the way from `start` to `peak`.
        then: The schedule that follows, from its own step 0.
    """

    start: float
    peak: float
    steps: int
    then: Schedule

    def __call__(self, step: TensorLike) -> Tensor:
        """The learning rate of a step, counted from 0."""
        step = ops.cast(step, "float32")
        rising = self.start + (self.peak - self.start) * (step + 1) / self.steps
        after = self.then(ops.maximum(step - self.steps, 0))
        return ops.where(step < self.steps, rising, after)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return dict(vars(self))


@dataclasses.dataclass(eq=False)
class ReciprocalSquareRoot(Schedule):
    """Reciprocal square root, with a linear cool-down to 0.

    peak * sqrt(timescale / (step + timescale)), the schedule of "Scaling Vision
    Transformers" (arXiv:2106.04560), with which training can end at any time by a
    cool-down.

    Args:
        peak: The first learning rate.
        steps: Number of all steps.
        timescale: Steps after which the rate has fallen to peak / sqrt(2).
        cooldown: Steps at the end in which it is also multiplied by a factor that falls
            linearly to 0.
    """

    peak: float
    steps: int
    timescale: int
    cooldown: int

    def __call__(self, step: TensorLike) -> Tensor:
        """The learning rate of a step, counted from 0."""
        step = ops.cast(step, "float32")
        rate = self.peak * ops.sqrt(self.timescale / (step + self.timescale))
        if self.cooldown:
            rate *= ops.clip((self.steps - step) / self.cooldown, 0, 1)
        return rate

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return dict(vars(self))


def learning_rate(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    """The learning rate of a step, counted from 0.

    Keras's `optimizer.learning_rate` is that of the next step.
    """
    rate = optimizer._learning_rate  # noqa: SLF001
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        rate = rate(step)
    return float(ops.convert_to_numpy(rate))


def make_schedule(
    recipe: Recipe, total_steps: int, steps_per_epoch: float
) -> float | Schedule:
    """Make the learning-rate schedule of a recipe.

    Returns:
        A schedule, or a number where the rate is constant.
    """
    config, peak = recipe.schedule, recipe.optimizer.learning_rate
    warmup = warmup_steps(recipe, total_steps, steps_per_epoch)
    then = _after_warmup(config, peak, total_steps, warmup)
    if not warmup:
        return peak if config.name == "constant" else then
    return Warmup(config.start_learning_rate, peak, warmup, then)


def requested_warmup(recipe: Recipe, steps_per_epoch: float) -> int:
    """Steps of warm-up that the recipe asks for, apart from a share of the run."""
    config = recipe.schedule
    if config.warmup_steps is not None:
        return config.warmup_steps
    return round(config.warmup_epochs * steps_per_epoch)


def warmup_steps(recipe: Recipe, total_steps: int, steps_per_epoch: float) -> int:
    """Steps of warm-up; a tenth of a run that would end within the requested ones."""
    requested = requested_warmup(recipe, steps_per_epoch)
    requested = requested or round(recipe.schedule.warmup_share * total_steps)
    return requested if requested < total_steps else total_steps // 10


def _after_warmup(
    config: ScheduleConfig, peak: float, total_steps: int, warmup: int
) -> Schedule:
    schedules = keras.optimizers.schedules
    steps, end = total_steps - warmup, config.end_learning_rate
    match config.name:
        case "cosine":
            return schedules.CosineDecay(peak, steps, alpha=end / peak)
        case "linear":
            return schedules.PolynomialDecay(peak, steps, end_learning_rate=end)
        case "rsqrt":
            return ReciprocalSquareRoot(
                peak, steps, config.timescale, config.cooldown_steps
            )
        case "staircase":
            # A boundary is the last step of the higher rate, as in BiT's get_lr.
            boundaries = [round(s * total_steps) - warmup for s in config.decay_at]
            rates = [peak * config.decay_factor**n for n in range(len(boundaries) + 1)]
            return schedules.PiecewiseConstantDecay(boundaries, rates)
    return schedules.PolynomialDecay(peak, steps, end_learning_rate=peak)
