"""The optimizer of a recipe: layer-wise learning rates, weight decay, averaging."""

import math
import re
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.nested_layers import all_layers
from keras_vit.typing import Tensor

from ..errors import RecipeError
from ..recipe import OptimizerConfig
from .schedule import Schedule


class _WeightRules(keras.optimizers.Optimizer):
    """Mixin with learning-rate factor, weight decay and moving average by weight.

    A weight that waits has the learning rate 0 for so many steps.

    All of it happens in `update_step`, which Keras calls for one weight at a time, on
    every device and every backend. The decay is multiplied by the learning rate
    (section 3.3 of arXiv:2106.10270).
    """

    def __init__(
        self,
        *args: Any,
        factors: Sequence[float],
        decays: Sequence[float],
        ema: float | None,
        waits: Sequence[int],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.factors = list(factors)
        self.waits = list(waits)
        self.decays = list(decays)
        self.ema = ema
        self.averages: list[keras.Variable] = []

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Create the slots; the averages start as the weights."""
        if self.built:
            return
        super().build(variables)
        if self.ema is not None:
            self.averages = self.add_optimizer_variables(variables, "average")
            for average, variable in zip(self.averages, variables, strict=True):
                average.assign(ops.copy(variable))  # JAX would share the memory

    def update_step(
        self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        """Decay, update and average one weight."""
        index = self._get_variable_index(variable)
        rate = ops.cast(learning_rate, variable.dtype) * self.factors[index]
        if self.waits[index]:
            rate *= ops.cast(self.iterations >= self.waits[index], variable.dtype)
        if self.decays[index]:
            self.assign_sub(variable, variable * (rate * self.decays[index]))
        super().update_step(gradient, variable, rate)
        if self.ema is not None:
            average = self.averages[index]
            self.assign_add(average, (variable - average) * (1 - self.ema))


class _PublishedAdam(keras.optimizers.Adam):
    """Adam as in Algorithm 1 of arXiv:1412.6980, and in Flax, optax and PyTorch.

    They add epsilon after the bias correction, Keras before it: with beta_2 0.999,
    Keras's 1e-8 acts like 3e-7 in the first step. TensorFlow's kernel takes half the
    time of separate operations.
    """

    def update_step(
        self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        """Update one weight."""
        index = self._get_variable_index(variable)
        mean, square = self._momentums[index], self._velocities[index]
        step = ops.cast(self.iterations + 1, variable.dtype)
        of_mean = _bias_correction(self.beta_1, step)
        of_square = _bias_correction(self.beta_2, step)
        if keras.backend.backend() != "tensorflow":
            self.assign_add(mean, (gradient - mean) * (1 - self.beta_1))
            self.assign_add(square, (ops.square(gradient) - square) * (1 - self.beta_2))
            change = mean / of_mean / (ops.sqrt(square / of_square) + self.epsilon)
            self.assign_sub(variable, learning_rate * change)
            return
        import tensorflow as tf

        root = ops.sqrt(of_square)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=mean.value.handle,
            v=square.value.handle,
            grad=gradient,
            beta1=self.beta_1,
            beta2=self.beta_2,
            beta1_power=0.0,  # the kernel would correct the bias with fewer digits
            beta2_power=0.0,
            lr=learning_rate * root / of_mean,
            epsilon=self.epsilon * root,  # the kernel adds it before the correction
        )


def _bias_correction(beta: float, step: Tensor) -> Tensor:
    """1 - beta^step, without float32's loss of four digits at beta 0.999."""
    return -ops.expm1(step * (math.log(beta) if beta else -math.inf))


class RuledAdam(_WeightRules, _PublishedAdam):
    """Adam or AdamW with `_WeightRules`."""


class RuledSGD(_WeightRules, keras.optimizers.SGD):
    """SGD with momentum and `_WeightRules`."""


def make_optimizer(
    config: OptimizerConfig,
    learning_rate: float | Schedule,
    model: keras.Model,
    total_steps: int = 0,
) -> keras.optimizers.Optimizer:
    """Make the optimizer of a recipe, built for the model's trainable weights.

    Args:
        config: The recipe's `optimizer`. The trainer applies `clip_norm`.
        learning_rate: Number or schedule.
        model: The model to train. Weights that match a pattern of `config.frozen` are
            marked as not trainable.
        total_steps: Steps of the run, of which `config.head_first` is a share.

    Returns:
        The optimizer; `averages` are the moving averages of the trainable weights, in
        their order. It is not saved, but made from the recipe again.

    Raises:
        RecipeError: A pattern of `frozen` matches no weight, or all of them;
            `layer_decay` is set for a model without encoder blocks.
    """
    freeze(model, config.frozen)
    weights = model.trainable_variables
    rules: dict[str, Any] = {
        "factors": learning_rate_factors(
            config, [w.path for w in weights], _depth(model)
        ),
        "decays": [config.weight_decay * w.path.endswith("/kernel") for w in weights],
        "ema": config.ema,
        "waits": [
            0 if is_head(w.path) else round(config.head_first * total_steps)
            for w in weights
        ],
    }
    if config.name == "sgd":
        optimizer = RuledSGD(learning_rate, momentum=config.momentum, **rules)
    else:
        optimizer = RuledAdam(
            learning_rate, config.beta_1, config.beta_2, epsilon=EPSILON, **rules
        )
    optimizer.build(weights)
    return optimizer


# The default of Flax's Adam (the ViT paper), optax (big_vision) and PyTorch (timm with
# DeiT and MAE, transformers); no recipe's code has another one. Keras has 1e-7.
EPSILON = 1e-8


def is_head(path: str) -> bool:
    """Whether a weight is the classifier's."""
    return path.startswith(("head/", "head_dist/"))


def freeze(model: keras.Model, patterns: Sequence[str]) -> None:
    """Mark the weights whose path matches a pattern as not trainable."""
    for pattern in patterns:
        found = [w for w in model.weights if re.search(pattern, w.path)]
        if not found:
            raise RecipeError(
                "`optimizer.frozen` must match weights, such as "
                f"{model.weights[0].path}. Received: {pattern!r}"
            )
        for weight in found:
            weight.trainable = False
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            # Else it would use the batch's statistics, and update its moving averages.
            layer.trainable = layer.trainable and bool(layer.trainable_variables)
    if not model.trainable_variables:
        raise RecipeError(
            "`optimizer.frozen` must leave weights to train. "
            f"Received: {', '.join(map(repr, patterns))}"
        )


def learning_rate_factors(
    config: OptimizerConfig, paths: Sequence[str], depth: int
) -> list[float]:
    """The learning-rate factor of each weight (layer-wise decay).

    Layers are counted as in BEiT and MAE: the embeddings are layer 0, encoder block i
    (from 0) is layer i + 1, everything after is the last layer, whose factor is 1.

    Raises:
        RecipeError: `layer_decay` is set for a model without encoder blocks.
    """
    if config.layer_decay != 1 and not depth:
        raise RecipeError(
            "`optimizer.layer_decay` must be 1 for a model without encoder blocks. "
            f"Received: {config.layer_decay}"
        )
    last = depth + 1

    def factor(path: str) -> float:
        head = config.head_multiplier if is_head(path) else 1.0
        return head * config.layer_decay ** (last - _layer(path, last))

    return [factor(path) for path in paths]


BLOCK = re.compile(r"(?:^|/)encoder_block_(\d+)/")
EMBEDDINGS = re.compile(
    r"^(embedding|stem|stage|class_token|register_tokens|position_|patch_norm|rotary)"
)


def _depth(model: keras.Model) -> int:
    """Number of encoder blocks, frozen ones included."""
    return len({match[1] for w in model.weights if (match := BLOCK.search(w.path))})


def _layer(path: str, last: int) -> int:
    if match := BLOCK.search(path):
        return int(match[1]) + 1
    return 0 if EMBEDDINGS.match(path) else last


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Raise ValueError for options that the trainer would ignore or apply twice."""
    for name in UNSUPPORTED:
        value = getattr(optimizer, name, None)
        if value:
            raise ValueError(
                f"`optimizer` must not have `{name}`: the trainer has clip_norm and "
                "accumulation, `optimizer.make_optimizer` has ema and weight_decay. "
                f"Received: {name}={value}"
            )
    kind, base = type(optimizer), keras.optimizers.Optimizer
    names = ("apply", "_backend_update_step")  # of loss scaling, of Nadam
    if any(getattr(kind, name) is not getattr(base, name) for name in names):
        raise ValueError(
            "`optimizer` must update one weight at a time, without loss scaling, which "
            f"the trainer does. Received: {optimizer.name}"
        )


# Options that Keras applies outside `update_step`, all that the trainer calls.
UNSUPPORTED = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "weight_decay",
    "gradient_accumulation_steps",
    "loss_scale_factor",
)
