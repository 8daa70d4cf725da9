"""Optimizers and schedules against formulas written out here."""

import dataclasses

import keras
import numpy as np
import pytest
import python_process
from long_cases import long_after

import keras_vit
from training.engine.optimizer import is_head, learning_rate_factors, make_optimizer
from training.engine.schedule import ReciprocalSquareRoot, Warmup, make_schedule
from training.errors import RecipeError
from training.recipe import DataConfig, OptimizerConfig, Recipe, ScheduleConfig
from training.recipes import named_recipe

RECIPE = Recipe(
    data=DataConfig("digits"), optimizer=OptimizerConfig(learning_rate=3e-3)
)


@pytest.fixture
def model(tiny_vit):
    return tiny_vit()


def arrays(weights):
    return [keras.ops.convert_to_numpy(weight) for weight in weights]


def apply(optimizer, model, value):
    """Apply one step in which every gradient has this value."""
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


def test_frozen_weights_do_not_change(model):
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
    [(("nothing_like_this",), "must match weights"), (("",), "must leave weights")],
)
def test_frozen_patterns_that_match_none_or_all_weights_are_errors(
    model, patterns, message
):
    with pytest.raises(RecipeError, match=message):
        make_optimizer(OptimizerConfig(frozen=patterns), 0.1, model)


def test_an_invalid_regular_expression_is_an_error():
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
        learning_rate_factors(OptimizerConfig(layer_decay=0.5), ["conv/kernel"], 0)


def factors_by_path(model, *frozen):
    config = OptimizerConfig(layer_decay=0.5, head_multiplier=3.0, frozen=frozen)
    optimizer = make_optimizer(config, 0.1, model)
    paths = [weight.path for weight in model.trainable_variables]
    return dict(zip(paths, optimizer.factors, strict=True))


@pytest.mark.parametrize(
    "frozen", long_after(1, ["^embedding/", "encoder_block_[12]/", "block_"])
)
def test_frozen_weights_do_not_change_the_factors_of_others(tiny_vit, frozen):
    every = factors_by_path(tiny_vit(depth=3))
    assert len(set(every.values())) == 3 + 3  # embeddings, blocks, last norm, head
    rest = factors_by_path(tiny_vit(depth=3), frozen)
    assert 0 < len(rest) < len(every)
    assert rest == {path: every[path] for path in rest}


def test_everything_below_a_hybrids_blocks_is_layer_0():
    model = keras_vit.VisionTransformer(
        image_size=32, patch_size=1, width=8, depth=2, mlp_dim=8, heads=2, classes=3,
        resnet_blocks=(1, 1), pooling="map", register_tokens=2, patch_norm=True,
        embedding_norm=True, rotary="mixed",
    )  # fmt: skip
    above = ("encoder_block", "encoder_norm", "attention_pooling", "head")
    for path, factor in factors_by_path(model).items():
        assert (factor == 0.5**3) == (not path.startswith(above)), path


class FloatAdam:
    """AdamW of arXiv:1412.6980, Algorithm 1, and arXiv:1711.05101 in float64."""

    def __init__(self, weights):
        self.weights = [np.array(weight, "float64") for weight in weights]
        self.first = [np.zeros_like(weight) for weight in self.weights]
        self.second = [np.zeros_like(weight) for weight in self.weights]
        self.steps = 0

    def step(self, gradients, rate, decay, beta_1, beta_2):
        self.steps += 1
        for i, gradient in enumerate(gradients):
            gradient = np.array(gradient, "float64")
            self.first[i] = beta_1 * self.first[i] + (1 - beta_1) * gradient
            self.second[i] = beta_2 * self.second[i] + (1 - beta_2) * gradient**2
            mean = self.first[i] / (1 - beta_1**self.steps)
            square = self.second[i] / (1 - beta_2**self.steps)
            self.weights[i] *= 1 - rate * decay
            self.weights[i] -= rate * mean / (np.sqrt(square) + 1e-8)


@pytest.mark.parametrize(("beta_1", "beta_2"), [(0.9, 0.999), (0.0, 0.95)])
def test_adam_adds_epsilon_after_the_bias_correction(beta_1, beta_2):
    """With gradients about as large as epsilon, where Keras's Adam differs much."""
    random = np.random.default_rng(2)
    model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(11)])
    config = OptimizerConfig(weight_decay=0.3, beta_1=beta_1, beta_2=beta_2)
    optimizer = make_optimizer(config, 3e-3, model)
    kernel, bias = model.trainable_variables
    expected = FloatAdam([arrays([kernel])[0]])
    for _ in range(20):
        scale = 10.0 ** random.uniform(-9, -6)
        gradient = (scale * random.normal(size=kernel.shape)).astype("float32")
        optimizer.apply([keras.ops.array(gradient), keras.ops.zeros(bias.shape)])
        expected.step([gradient], 3e-3, 0.3, beta_1, beta_2)
    np.testing.assert_allclose(arrays([kernel])[0], expected.weights[0], atol=1e-6)
    assert not arrays([bias])[0].any()


JAX_STEPS = """
import sys, jax, keras, numpy as np
from test_optimizer import FloatAdam
from training.engine.optimizer import make_optimizer
from training.recipe import OptimizerConfig

model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(11, use_bias=False)])
config = OptimizerConfig(weight_decay=0.3, ema=0.9)
optimizer = make_optimizer(config, 3e-3, model)
weights = [v.value for v in model.trainable_variables]
slots = [v.value for v in optimizer.variables]
expected = FloatAdam(weights)
average = expected.weights[0].copy()
random = np.random.default_rng(2)
apply = jax.jit(optimizer.stateless_apply)
for _ in range(20):
    scale = 10.0 ** random.uniform(-9, -6)
    gradient = (scale * random.normal(size=(7, 11))).astype("float32")
    weights, slots = apply(slots, [gradient], weights)
    expected.step([gradient], 3e-3, 0.3, 0.9, 0.999)
    average = 0.9 * average + 0.1 * expected.weights[0]
np.testing.assert_allclose(weights[0], expected.weights[0], atol=1e-6)
place = [v.path for v in optimizer.variables].index(optimizer.averages[0].path)
np.testing.assert_allclose(slots[place], average, atol=1e-6)
"""


@pytest.mark.slow
def test_adam_is_the_same_on_jax():
    pytest.importorskip("jax")
    python_process.run("-c", JAX_STEPS, beside=__file__, **python_process.on("jax"))


SHAPES = {
    "cosine": lambda share: 1e-4 + (3e-3 - 1e-4) * (1 + np.cos(np.pi * share)) / 2,
    "linear": lambda share: 3e-3 + (1e-4 - 3e-3) * share,
    "constant": lambda share: np.full(len(share), 3e-3),
}


def schedule_of(*names, steps=20, **values):
    """A schedule of epochs of four steps."""
    config = ScheduleConfig(*names, **values)
    return make_schedule(dataclasses.replace(RECIPE, schedule=config), steps, 4)


@pytest.mark.parametrize("name", SHAPES)
def test_the_learning_rate_follows_the_schedule(name):
    schedule = schedule_of(
        name, warmup_epochs=1.5, start_learning_rate=1e-3, end_learning_rate=1e-4
    )
    rising = 1e-3 + 2e-3 * np.arange(1, 7) / 6
    expected = np.concatenate([rising, SHAPES[name]((np.arange(6, 20) - 6) / 14)])
    rates = [float(schedule(step)) for step in range(20)]
    np.testing.assert_allclose(rates, expected, rtol=1e-4, atol=1e-9)


def test_rsqrt_decays_and_cools_down():
    values = {"warmup_steps": 2, "timescale": 10, "cooldown_steps": 5}
    schedule = schedule_of("rsqrt", steps=22, **values)
    after = np.arange(20)
    falling = 3e-3 / np.sqrt(1 + after / 10) * np.clip((20 - after) / 5, 0, 1)
    expected = np.concatenate([[1.5e-3, 3e-3], falling])
    rates = [float(schedule(step)) for step in range(22)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


# BiT-HyperRule's schedules: the end of the warm-up, three decays, the end of the run.
SUPPORTS = {
    "small": (100, 200, 300, 400, 500),
    "medium": (500, 3000, 6000, 9000, 10_000),
    "large": (500, 6000, 12_000, 18_000, 20_000),
}


def bit_rate(step, supports):
    """A step's rate as big_transfer's bit_hyperrule.py has it; it warms up from 0."""
    if step < supports[0]:
        return 0.003 * step / supports[0]
    return 0.003 * 0.1 ** sum(decay < step for decay in supports[1:-1])


@pytest.mark.parametrize("regime", SUPPORTS)
def test_the_staircase_is_that_of_bit_hyperrule(regime):
    supports, recipe = SUPPORTS[regime], named_recipe(f"bit_hyperrule-{regime}")
    schedule = make_schedule(recipe, recipe.steps, 7)
    # Our warm-up's first step is not lost: its rate is that of their second one.
    steps = np.array([0, 1, *(s + d for s in supports for d in (-2, -1, 0, 1))][:-2])
    expected = [bit_rate(s + (s < supports[0]), supports) for s in steps]
    np.testing.assert_allclose(schedule(steps), expected, rtol=1e-5)


def test_warmup_steps_take_precedence_over_epochs():
    schedule = schedule_of("constant", warmup_epochs=2.0, warmup_steps=3)
    assert float(schedule(1)) == pytest.approx(2e-3)
    assert float(schedule(3)) == pytest.approx(3e-3)


def test_a_constant_rate_needs_no_schedule():
    assert schedule_of("constant") == 3e-3


def test_a_schedule_round_trips_through_its_config():
    schedule = Warmup(0.1, 0.5, 4, ReciprocalSquareRoot(0.5, 9, 3, 2))
    again = type(schedule).from_config(schedule.get_config())
    assert [float(again(s)) for s in (1, 7)] == [float(schedule(s)) for s in (1, 7)]


@pytest.mark.parametrize("name", long_after(1, ["adamw", "sgd"]))
def test_at_first_the_classifier_alone_is_trained(model, name):
    decay = 0.1 if name == "adamw" else 0.0
    config = OptimizerConfig(name, weight_decay=decay, head_first=0.3)
    optimizer = make_optimizer(config, 0.1, model, total_steps=10)
    start = arrays(model.trainable_variables)
    heads = [is_head(weight.path) for weight in model.trainable_variables]
    assert 0 < sum(heads) < len(heads)
    for step in range(5):
        apply(optimizer, model, 1.0)
        now = arrays(model.trainable_variables)
        moved = [not np.array_equal(*pair) for pair in zip(now, start, strict=True)]
        assert moved == [head or step >= 3 for head in heads]
