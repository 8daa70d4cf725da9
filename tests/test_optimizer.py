"""Rules of single weights, and learning rates, against formulas written out here."""

import dataclasses

import keras
import numpy as np
import pytest

from training.errors import RecipeError
from training.optimizer import learning_rate_factors, make_optimizer
from training.recipe import DataConfig, OptimizerConfig, Recipe, ScheduleConfig
from training.schedule import ReciprocalSquareRoot, Warmup, make_schedule

RECIPE = Recipe(
    data=DataConfig("digits"), optimizer=OptimizerConfig(learning_rate=3e-3)
)


@pytest.fixture
def model(tiny_vit):
    return tiny_vit()


def arrays(weights):
    return [keras.ops.convert_to_numpy(weight) for weight in weights]


def apply(optimizer, model, value):
    """One step in which every gradient has this value."""
    weights = model.trainable_variables
    gradients = [keras.ops.full(weight.shape, value) for weight in weights]
    optimizer.apply(gradients, weights)


def test_weight_decay_shrinks_kernels_only(model):
    optimizer = make_optimizer(OptimizerConfig(weight_decay=0.5), 0.1, model)
    before = arrays(model.trainable_variables)
    apply(optimizer, model, 0.0)
    kernels = 0
    for weight, old in zip(model.trainable_variables, before, strict=True):
        kernel = weight.path.endswith("/kernel")
        kernels += kernel
        new = keras.ops.convert_to_numpy(weight)
        np.testing.assert_allclose(new, old * (0.95 if kernel else 1.0), rtol=1e-6)
    assert kernels == 2 + 2 * 6  # patches, head; per block 4 of attention, 2 of the MLP


def test_weight_decay_follows_the_layers_learning_rate(model):
    config = OptimizerConfig(weight_decay=0.5, layer_decay=0.5, head_multiplier=0.1)
    optimizer = make_optimizer(config, 0.1, model)
    before = arrays(model.trainable_variables)
    apply(optimizer, model, 0.0)
    factors = {"embedding": 1 / 8, "encoder_block_1": 1 / 2, "head": 1 / 10}
    seen = set()
    for weight, old in zip(model.trainable_variables, before, strict=True):
        part = weight.path.split("/")[0]
        if part in factors and weight.path.endswith("/kernel"):
            seen.add(part)
            new = keras.ops.convert_to_numpy(weight)
            np.testing.assert_allclose(new, old * (1 - 0.05 * factors[part]), rtol=1e-6)
    assert seen == set(factors)


def test_frozen_weights_stay(model):
    config = OptimizerConfig("sgd", frozen=("^embedding/", r"encoder_block_\d+/mlp/"))
    optimizer = make_optimizer(config, 0.1, model)
    before = {
        weight.path: keras.ops.convert_to_numpy(weight) for weight in model.weights
    }
    apply(optimizer, model, 1.0)
    for weight in model.weights:
        frozen = weight.path.startswith("embedding/") or "/mlp/" in weight.path
        moved = keras.ops.convert_to_numpy(weight) - before[weight.path]
        np.testing.assert_allclose(moved, 0.0 if frozen else -0.1, atol=1e-6)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [(("nothing_like_this",), "must find weights"), (("",), "must leave weights")],
)
def test_patterns_without_sense_are_errors(model, patterns, message):
    with pytest.raises(RecipeError, match=message):
        make_optimizer(OptimizerConfig(frozen=patterns), 0.1, model)


def test_a_pattern_that_is_none_is_an_error():
    with pytest.raises(RecipeError, match="regular expressions"):
        OptimizerConfig(frozen=("(",))


def test_averages_follow_the_weights(model):
    optimizer = make_optimizer(
        OptimizerConfig("sgd", momentum=0.0, ema=0.75), 0.1, model
    )
    start = arrays(model.trainable_variables)
    average, weight = np.zeros(()), np.zeros(())
    for gradient in (1.0, -3.0, 2.0):
        apply(optimizer, model, gradient)
        weight = weight - 0.1 * gradient
        average = 0.75 * average + 0.25 * weight
    for ours, old in zip(arrays(optimizer.averages), start, strict=True):
        np.testing.assert_allclose(ours - old, average, atol=1e-6)


def test_layer_decay_needs_blocks():
    with pytest.raises(RecipeError, match="layer_decay"):
        learning_rate_factors(OptimizerConfig(layer_decay=0.5), ["conv/kernel"])


SHAPES = {
    "cosine": lambda share: 1e-4 + (3e-3 - 1e-4) * (1 + np.cos(np.pi * share)) / 2,
    "linear": lambda share: 3e-3 + (1e-4 - 3e-3) * share,
    "constant": lambda share: np.full(len(share), 3e-3),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_learning_rate_follows_the_schedule(name):
    config = ScheduleConfig(
        name, warmup_epochs=1.5, start_learning_rate=1e-3, end_learning_rate=1e-4
    )
    schedule = make_schedule(
        dataclasses.replace(RECIPE, schedule=config), total_steps=20, steps_per_epoch=4
    )
    rising = 1e-3 + 2e-3 * np.arange(1, 7) / 6
    expected = np.concatenate([rising, SHAPES[name]((np.arange(6, 20) - 6) / 14)])
    rates = [float(schedule(step)) for step in range(20)]
    np.testing.assert_allclose(rates, expected, rtol=1e-4, atol=1e-9)


def test_rsqrt_falls_with_the_root_and_cools_down():
    config = ScheduleConfig("rsqrt", warmup_steps=2, timescale=10, cooldown_steps=5)
    schedule = make_schedule(dataclasses.replace(RECIPE, schedule=config), 22, 4)
    after = np.arange(20)
    falling = 3e-3 / np.sqrt(1 + after / 10) * np.clip((20 - after) / 5, 0, 1)
    expected = np.concatenate([[1.5e-3, 3e-3], falling])
    rates = [float(schedule(step)) for step in range(22)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


def test_warm_up_in_steps_wins_over_epochs():
    config = ScheduleConfig("constant", warmup_epochs=2.0, warmup_steps=3)
    schedule = make_schedule(dataclasses.replace(RECIPE, schedule=config), 20, 4)
    assert float(schedule(1)) == pytest.approx(2e-3)
    assert float(schedule(3)) == pytest.approx(3e-3)


def test_a_constant_rate_needs_no_schedule():
    recipe = dataclasses.replace(RECIPE, schedule=ScheduleConfig("constant"))
    assert make_schedule(recipe, total_steps=20, steps_per_epoch=4) == 3e-3


@pytest.mark.parametrize(
    "schedule",
    [Warmup(0.1, 0.5, 4, ReciprocalSquareRoot(0.5, 9, 3, 2))],
)
def test_a_schedule_survives_its_config(schedule):
    again = type(schedule).from_config(schedule.get_config())
    assert [float(again(s)) for s in (1, 7)] == [float(schedule(s)) for s in (1, 7)]
