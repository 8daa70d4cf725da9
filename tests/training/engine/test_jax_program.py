"""The training step on JAX, as XLA compiles it: collectives, memory, precision."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import pytest
from jax_program import donated, program_findings
from tiny_recipe import TINY_RECIPE

from training.recipe import OptimizerConfig

ROOT = pathlib.Path(__file__).parents[3]
DEVICES, DEPTH = 4, 2

RECIPE = dataclasses.replace(
    TINY_RECIPE,
    batch_size=24,
    precision="mixed_bfloat16",
    model=dataclasses.replace(TINY_RECIPE.model, depth=DEPTH),
    optimizer=OptimizerConfig(weight_decay=0.1, clip_norm=0.1, ema=0.9),
)
RECIPES = {
    "plain": RECIPE,
    "micro-batches": dataclasses.replace(RECIPE, accumulation=3),
    "rematerialized": dataclasses.replace(
        RECIPE, model=dataclasses.replace(RECIPE.model, rematerialize=True)
    ),
}
INSPECT = """
import json, sys
from jax_program import inspect_recipe
from training.recipe import parse_recipe
for text in sys.argv[1:]:
    print(json.dumps(inspect_recipe(parse_recipe(text, "here"))))
"""


@pytest.fixture(scope="module")
def found():
    """The findings of each recipe; Keras chooses its backend once for a process."""
    result = subprocess.run(
        [sys.executable, "-c", INSPECT, *(r.to_yaml() for r in RECIPES.values())],
        cwd=ROOT,
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT / "tests" / "support"),
            "KERAS_BACKEND": "jax",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    findings = map(json.loads, result.stdout.splitlines())
    return dict(zip(RECIPES, findings, strict=True))


@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_the_inspection_finds_what_it_looks_for():
    """In a step that does all of it wrong."""

    def step(weights, images):
        return weights - (images @ weights.T).sum()

    weights, images = (jax.ShapeDtypeStruct(s, "float32") for s in ((5, 3), (7, 3)))
    lowered = jax.jit(step, donate_argnums=1).lower(weights, images)
    assert program_findings(lowered.as_text()) == {
        "products": 1,
        "float32_products": ["(tensor<7x3xf32>, tensor<3x5xf32>) -> tensor<7x5xf32>"],
        "transposed_weights": ["tensor<5x3xf32>"],
        "barriers": 0,
    }
    assert donated(lowered.compile().as_text()) == 0


@pytest.mark.slow
def test_the_devices_sum_the_gradients_once_and_exchange_nothing_else(found):
    for name in ("plain", "rematerialized"):
        kinds, sizes, in_loop = zip(*found[name]["collectives"], strict=True)
        assert set(kinds) == {"all-reduce"}
        assert not any(in_loop)
        scalars = sum(sizes) - found[name]["gradient_bytes"]
        assert 0 < scalars <= 5 * 4  # loss, accuracy, their weights


@pytest.mark.slow
def test_micro_batches_do_not_gather_logits(found):
    """Only XLA for GPUs and TPUs moves the all-reduce out of the loop."""
    kinds, sizes, _ = zip(*found["micro-batches"]["collectives"], strict=True)
    assert set(kinds) == {"all-reduce"}
    assert 0 < sum(sizes) - found["micro-batches"]["gradient_bytes"] <= 5 * 4


@pytest.mark.slow
def test_the_new_state_takes_the_memory_of_the_old_one(found):
    for findings in found.values():
        assert findings["donated"] == findings["state_arrays"] > 4 * DEPTH * 16


@pytest.mark.slow
def test_only_the_classifier_multiplies_in_float32(found):
    for name, findings in found.items():
        size = RECIPE.batch_size // RECIPES[name].accumulation
        classes, width = 10, RECIPE.model.width
        logits, features = f"{size}x{classes}xf32", f"{size}x{width}xf32"
        kernel = f"{width}x{classes}xf32"
        assert findings["float32_products"] == [
            f"(tensor<{features}>, tensor<{kernel}>) -> tensor<{logits}>",
            f"(tensor<{logits}>, tensor<{features}>) -> tensor<{classes}x{width}xf32>",
            f"(tensor<{logits}>, tensor<{kernel}>) -> tensor<{features}>",
        ]


@pytest.mark.slow
def test_no_weight_is_transposed(found):
    for findings in found.values():
        assert findings["transposed_weights"] == []


@pytest.mark.slow
def test_rematerialized_blocks_are_computed_again(found):
    plain, rematerialized = found["plain"], found["rematerialized"]
    assert (plain["barriers"], rematerialized["barriers"]) == (0, DEPTH)
    # The eight products of a block but the MLP's second, whose result is not needed.
    assert rematerialized["products"] - plain["products"] == 7 * DEPTH
