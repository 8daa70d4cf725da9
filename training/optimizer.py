"""The optimizer and the learning rate's schedule of a recipe."""

import keras

from .recipe import OptimizerConfig, Recipe


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly from 0, then follows another schedule.

    Args:
        peak: The learning rate at the end of the warm-up.
        steps: Steps of the warm-up; the first one is taken at peak / steps.
        then: Schedule that follows, from its own step 0; None to stay at the peak.
    """

    def __init__(self, peak, steps, then):
        self.peak = peak
        self.steps = steps
        self.then = then

    def __call__(self, step):
        """The learning rate of a step, counted from 0."""
        step = keras.ops.cast(step, "float32")
        rising = self.peak * (step + 1) / self.steps
        after = self.peak
        if self.then is not None:
            after = self.then(keras.ops.maximum(step - self.steps, 0))
        return keras.ops.where(step < self.steps, rising, after)

    def get_config(self):
        """The constructor's arguments."""
        return {"peak": self.peak, "steps": self.steps, "then": self.then}


def make_schedule(
    recipe: Recipe, steps_per_epoch: int
) -> float | keras.optimizers.schedules.LearningRateSchedule:
    """The learning rate, a function of the step.

    Args:
        recipe: `schedule`, `epochs` and `optimizer.learning_rate` are used.
        steps_per_epoch: Steps in an epoch.

    Returns:
        A schedule, or a number where the rate never changes.
    """
    schedules = keras.optimizers.schedules
    peak = recipe.optimizer.learning_rate
    warmup = round(recipe.schedule.warmup_epochs * steps_per_epoch)
    steps = recipe.epochs * steps_per_epoch - warmup
    then = None
    if recipe.schedule.name == "cosine":
        then = schedules.CosineDecay(peak, steps)
    elif recipe.schedule.name == "linear":
        then = schedules.PolynomialDecay(peak, steps, end_learning_rate=0.0)
    return Warmup(peak, warmup, then) if warmup else then or peak


def make_optimizer(
    config: OptimizerConfig, learning_rate, model: keras.Model
) -> keras.optimizers.Optimizer:
    """The optimizer, built for the model's weights.

    Args:
        config: The recipe's `optimizer`.
        learning_rate: Number or schedule.
        model: The model whose weights it will change.

    Returns:
        The optimizer. Weight decay is for kernels only. Keras forgets that when it
        saves an optimizer, so make one from the recipe instead of loading it.
    """
    if config.name == "sgd":
        optimizer = keras.optimizers.SGD(learning_rate, momentum=config.momentum)
    elif config.name == "adam":
        optimizer = keras.optimizers.Adam(learning_rate, config.beta_1, config.beta_2)
    else:
        optimizer = keras.optimizers.AdamW(
            learning_rate, config.weight_decay, config.beta_1, config.beta_2
        )
        optimizer.exclude_from_weight_decay(
            [w for w in model.trainable_weights if not w.path.endswith("/kernel")]
        )
    optimizer.build(model.trainable_variables)
    return optimizer
