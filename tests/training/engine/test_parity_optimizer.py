"""Parity of optimizers, schedules and layer decay with PyTorch and timm.

Needs `pip install -e ".[parity]"` (`make parity`); skipped without.
"""

import dataclasses
import importlib.util

import keras
import numpy as np
import pytest

from training.engine.optimizer import learning_rate_factors, make_optimizer
from training.engine.schedule import make_schedule
from training.recipe import DataConfig, OptimizerConfig, Recipe, ScheduleConfig

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(
        importlib.util.find_spec("timm") is None, reason="timm is not installed"
    ),
]


@pytest.fixture
def torch():
    import torch

    return torch


STEPS = 12


@pytest.fixture
def model(tiny_vit):
    return tiny_vit(depth=3)


@pytest.fixture
def gradients(model):
    """[STEPS][weights], of very different sizes."""
    random = np.random.default_rng(5)
    scales = 10.0 ** random.uniform(-1, 1, len(model.trainable_variables))
    return [
        [
            (scale * random.normal(size=weight.shape)).astype("float32")
            for scale, weight in zip(scales, model.trainable_variables, strict=True)
        ]
        for _ in range(STEPS)
    ]


def ours(model, gradients, optimizer):
    for step in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in step])
    return [weight.numpy() for weight in model.trainable_variables]


def theirs(torch, start, gradients, optimizer_of, rates):
    weights = [torch.nn.Parameter(torch.tensor(w)) for w in start]
    optimizer = optimizer_of(weights)
    bases = [group["lr"] for group in optimizer.param_groups]
    for step, rate in zip(gradients, rates, strict=True):
        for group, base in zip(optimizer.param_groups, bases, strict=True):
            group["lr"] = base * rate
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = torch.tensor(gradient)
        optimizer.step()
    return [weight.detach().numpy() for weight in weights]


def compare(ours, theirs, start):
    for a, b, before in zip(ours, theirs, start, strict=True):
        assert np.abs(a - before).max() > 1e-4  # it moved
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.fixture
def recipe():
    return Recipe(
        data=DataConfig("digits"),
        optimizer=OptimizerConfig(
            "adamw",
            learning_rate=3e-3,
            weight_decay=0.3,
            beta_2=0.98,
            layer_decay=0.7,
            head_multiplier=5.0,
        ),
        schedule=ScheduleConfig("cosine", warmup_steps=4),
    )


def test_adamw_with_layer_decay_and_a_schedule_matches_torch(
    torch, model, gradients, recipe
):
    config = recipe.optimizer
    start = [weight.numpy() for weight in model.trainable_variables]
    paths = [weight.path for weight in model.trainable_variables]
    schedule = make_schedule(recipe, STEPS, 5)
    rates = [float(schedule(step)) for step in range(STEPS)]

    def optimizer_of(weights):
        factors = learning_rate_factors(config, paths, model.depth)
        groups = [
            {
                "params": [weight],
                "lr": factor,
                "weight_decay": 0.3 if path.endswith("kernel") else 0.0,
            }
            for weight, path, factor in zip(weights, paths, factors, strict=True)
        ]
        return torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-8)

    expected = theirs(torch, start, gradients, optimizer_of, rates)
    compare(
        ours(model, gradients, make_optimizer(config, schedule, model)), expected, start
    )


def test_adamw_with_tiny_gradients_matches_torch(torch, model, gradients):
    """As large as epsilon, whose position makes a difference of 1e-3 here."""
    random = np.random.default_rng(6)
    tiny = [
        [gradient * np.float32(10.0 ** random.uniform(-9, -6)) for gradient in step]
        for step in gradients
    ]
    config = OptimizerConfig(weight_decay=0.3)
    start = [weight.numpy() for weight in model.trainable_variables]
    kernels = [w.path.endswith("kernel") for w in model.trainable_variables]

    def optimizer_of(weights):
        groups = [
            {"params": [weight], "weight_decay": 0.3 * kernel}
            for weight, kernel in zip(weights, kernels, strict=True)
        ]
        return torch.optim.AdamW(groups, lr=3e-3)

    expected = theirs(torch, start, tiny, optimizer_of, np.ones(STEPS))
    moved = ours(model, tiny, make_optimizer(config, 3e-3, model))
    for mine, other in zip(moved, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-6)


def test_the_moving_average_matches_torch(torch, model, gradients):
    config = OptimizerConfig("sgd", learning_rate=0.01, momentum=0.0, ema=0.9)
    optimizer = make_optimizer(config, 0.01, model)
    start = [weight.numpy() for weight in model.trainable_variables]
    weights = torch.nn.ParameterList([torch.tensor(w) for w in start])
    averaged = torch.optim.swa_utils.AveragedModel(
        weights, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    averaged.update_parameters(weights)  # the first one copies
    for step in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in step])
        for weight, value in zip(weights, model.trainable_variables, strict=True):
            weight.data = torch.tensor(value.numpy())
        averaged.update_parameters(weights)
    expected = [average.detach().numpy() for average in averaged.module]
    compare([average.numpy() for average in optimizer.averages], expected, start)


@pytest.mark.parametrize(("name", "end"), [("cosine", 2e-4), ("linear", 1e-5)])
def test_schedules_match_torch(torch, recipe, name, end):
    config = ScheduleConfig(name, warmup_steps=0, end_learning_rate=end)
    schedule = make_schedule(dataclasses.replace(recipe, schedule=config), 20, 5)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-3)
    schedules = torch.optim.lr_scheduler
    theirs = {
        "cosine": lambda: schedules.CosineAnnealingLR(optimizer, 20, end),
        "linear": lambda: schedules.LinearLR(optimizer, 1.0, end / 3e-3, 20),
    }[name]()
    for step in range(20):
        expected = optimizer.param_groups[0]["lr"]
        assert float(schedule(step)) == pytest.approx(expected, rel=1e-4)
        optimizer.step()
        theirs.step()


# Without the last LayerNorm: timm counts it to the last block, BEiT and MAE do not.
TIMMS_NAMES = {
    "embedding": "patch_embed",
    "class_token": "cls_token",
    "position_embedding": "pos_embed",
    "encoder_block_0": "blocks.0.",
    "encoder_block_11": "blocks.11.",
    "head": "head.",
}


@pytest.mark.parametrize(("part", "name"), TIMMS_NAMES.items())
def test_layer_wise_decay_matches_timm(part, name):
    import timm.optim

    theirs = timm.create_model("vit_tiny_patch16_224")
    groups = timm.optim.param_groups_layer_decay(theirs, layer_decay=0.65)
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    expected = {
        scale[id(p)] for n, p in theirs.named_parameters() if n.startswith(name)
    }
    paths = [f"encoder_block_{i}/norm1/gamma" for i in range(12)] + [f"{part}/kernel"]
    ours = learning_rate_factors(OptimizerConfig(layer_decay=0.65), paths, 12)[-1]
    assert len(expected) == 1
    assert ours == pytest.approx(expected.pop())
