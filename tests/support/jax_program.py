"""The training step on JAX as XLA compiles it: collectives, memory, precision."""

import contextlib
import math
import re
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from training.architectures.compiling import compile_trainer
from training.architectures.recipe_model import build_model
from training.engine.jax_strategy import make_jax_strategy
from training.recipe import Recipe

CLASS_NAMES = tuple("0123456789")  # their number does not matter


def inspect_recipe(recipe: Recipe) -> dict[str, Any]:
    """Run one training step of a recipe with random weights, and inspect it."""
    strategy = make_jax_strategy(recipe)
    with strategy.scope():
        model = build_model(recipe.model, CLASS_NAMES, recipe.precision)
        trainer = compile_trainer(model, recipe, total_steps=1000, steps_per_epoch=1000)
    size = recipe.batch_size
    images = np.zeros((size, *model.preprocessing.image_size, model.channels), "uint8")
    labels = np.eye(len(CLASS_NAMES), dtype="float32")[np.zeros(size, int)]
    steps: list = []
    with recorded_step(steps):
        trainer.fit(images, labels, batch_size=size, verbose=0)
    [(lowered, compiled)] = steps
    hlo = compiled.as_text()
    weights = model.trainable_variables
    return {
        "collectives": collectives(hlo),
        "state_arrays": len(trainer.state()),
        "donated": donated(hlo),
        "gradient_bytes": sum(math.prod(w.shape) * 4 for w in weights),
        **program_findings(lowered.as_text()),
    }


class _Lowered(Exception):
    pass


def lowered_step(fit: Callable[[], object]) -> Any:
    """The training step of a function that calls `fit`, which ends before it."""
    steps: list = []
    with contextlib.suppress(_Lowered), recorded_step(steps, run=False):
        fit()
    [(lowered, _)] = steps
    return lowered


@contextlib.contextmanager
def recorded_step(programs: list[tuple[Any, Any]], run: bool = True) -> Iterator[None]:
    """Context in which `fit` leaves its training step, lowered and compiled, in a list.

    Keras keeps the compiled function to itself, so that its `jit` is replaced.

    Args:
        programs: The list.
        run: Whether to compile the step and to go on.
    """
    from keras.src.backend.jax import trainer as keras_trainer

    def recording_jit(function, **options):
        jitted = jax.jit(function, **options)

        def step(*arguments):
            if not programs:
                lowered = jitted.lower(*arguments)
                programs.append((lowered, lowered.compile() if run else None))
            if not run:
                raise _Lowered
            return programs[0][1](*arguments)

        return step

    with unittest.mock.patch.object(keras_trainer, "jit", recording_jit):
        yield


COLLECTIVE = re.compile(
    r"= (.+?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
    r"(?:-start)?\("
)
ARRAY = re.compile(r"\b([a-z]+)(\d+)\[([\d,]*)\]")


def collectives(hlo: str) -> list[tuple[str, int, bool]]:
    """Kind, bytes and whether it is in a loop, of each collective in compiled HLO."""
    found, in_loop = [], True
    for line in hlo.splitlines():
        if line.startswith(("ENTRY", "%")):
            in_loop = not line.startswith("ENTRY")
        if match := COLLECTIVE.search(line):
            found.append((match[2], _bytes(match[1]), in_loop))
    return found


def _bytes(types: str) -> int:
    """Bytes of arrays such as `(f32[24,40]{1,0}, bf16[])`."""
    return sum(
        int(bits) // 8 * math.prod(int(n) for n in shape.split(",") if n)
        for _, bits, shape in ARRAY.findall(types)
    )


def donated(hlo: str) -> int:
    """Number of inputs whose memory an output takes, in compiled HLO."""
    header = hlo.partition("\n")[0]
    return len(re.findall(r"\{[\d, ]*\}: \(\d+, \{[\d, ]*\}, m\w+-alias\)", header))


PRODUCT = re.compile(r"stablehlo\.(?:dot_general|convolution)[ (].*? : (\(.*)")
TRANSPOSE = re.compile(r"stablehlo\.transpose (%\w+),.* : \((.*?)\)")
CONVERT = re.compile(r"(%\w+) = stablehlo\.convert (%\w+) ")
ARGUMENT = re.compile(r"%(?:arg|iterArg)")


def program_findings(stablehlo: str) -> dict[str, Any]:
    """What is in a program before optimization, as text."""
    products = PRODUCT.findall(stablehlo)
    transposed = []
    for function in stablehlo.split("func.func")[1:]:
        sources = dict(CONVERT.findall(function))
        transposed += [
            operand
            for name, operand in TRANSPOSE.findall(function)
            if ARGUMENT.match(sources.get(name, name))
        ]
    return {
        "products": len(products),
        "float32_products": [types for types in products if "xf32>" in types],
        "transposed_weights": transposed,
        "barriers": stablehlo.count("stablehlo.optimization_barrier"),
    }
