"""The training step on JAX, as XLA compiles it: collectives, memory, precision."""

import json

import jax
import pytest
import python_process
from jax_program import donated, program_findings
from tiny_recipe import TINY_RECIPE, changed

DEVICES, DEPTH = 4, 2

RECIPE = changed(
    TINY_RECIPE,
    batch_size=24,
    precision="mixed_bfloat16",
    model={"depth": DEPTH},
    optimizer={"weight_decay": 0.1, "clip_norm": 0.1, "ema": 0.9},
)
RECIPES = {
    "plain": RECIPE,
    "micro-batches": changed(RECIPE, accumulation=3),
    "rematerialized": changed(RECIPE, model={"rematerialize": True}),
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
    recipes = [recipe.to_yaml() for recipe in RECIPES.values()]
    variables = python_process.on("jax", DEVICES, optimized=True)
    lines = python_process.run("-c", INSPECT, *recipes, **variables).splitlines()
    return dict(zip(RECIPES, map(json.loads, lines), strict=True))


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
    """Only XLA for GPUs and TPUs moves that of micro-batches out of their loop."""
    for name, findings in found.items():
        kinds, sizes, in_loop = zip(*findings["collectives"], strict=True)
        assert set(kinds) == {"all-reduce"}
        assert name == "micro-batches" or not any(in_loop)
        scalars = sum(sizes) - findings["gradient_bytes"]
        assert 0 < scalars <= 5 * 4  # loss, accuracy, their weights


@pytest.mark.slow
def test_the_new_state_takes_the_memory_of_the_old_one_and_no_weight_is_transposed(
    found,
):
    for findings in found.values():
        assert findings["donated"] == findings["state_arrays"] > 4 * DEPTH * 16
        assert findings["transposed_weights"] == []


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
def test_rematerialized_blocks_are_computed_again(found):
    plain, rematerialized = found["plain"], found["rematerialized"]
    assert (plain["barriers"], rematerialized["barriers"]) == (0, DEPTH)
    # The eight products of a block but the MLP's second, whose result is not needed.
    assert rematerialized["products"] - plain["products"] == 7 * DEPTH
