"""What does a training step need on a TPU, by XLA's own compiler, without a TPU?

    KERAS_BACKEND=jax python -m benchmarks.tpu [--models B/16 L/16 H/14 g/14]

JAX's step of `keras-vit fit` with AdamW and mixed precision, compiled for all chips of
a topology. From H/14 on, `--strategy fsdp` divides the weights; all but B/16
rematerialize their blocks. State is what the weights, the optimizer and the images take
on each chip, temporary what gradients and activations do, both of the compiled program;
on paper the state is 12 bytes for each weight, divided by the chips where the weights
are. The least time is what the operations take at the chip's full rate, those of the
second forward pass included. Needs libtpu: `pip install "jax[tpu]"`.
"""

import argparse
import importlib.metadata
import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from keras_vit.costs import variant_costs
from training.engine.tpu_check import CLASS_NAMES, Target, make_trainer
from training.engine.tpu_program import compile_train_step, lower_train_step, teraflop
from training.recipe import DataConfig, ModelConfig, OptimizerConfig, Recipe

# Images on each chip, and whether the weights are divided.
MODELS = {"B/16": (64, False), "L/16": (32, False), "H/14": (16, True)}
MODELS |= {"g/14": (8, True)}
TOPOLOGIES = ("v5e:2x4", "v6e:2x4")


def recipe_of(variant: str, chips: int) -> Recipe:
    """The recipe whose step is compiled."""
    images, divided = MODELS[variant]
    return Recipe(
        strategy="fsdp" if divided else "auto",
        precision="mixed_bfloat16",
        batch_size=images * chips,
        model=ModelConfig(variant=variant, rematerialize=variant != "B/16"),
        optimizer=OptimizerConfig(weight_decay=0.1, clip_norm=1.0),
        data=DataConfig("digits"),
    )


def row_of(variant: str, target: Target) -> dict[str, Any]:
    """Compile a step, and return its figures on one chip."""
    chips = len(target.devices)
    recipe = recipe_of(variant, chips)
    lowered = lower_train_step(recipe, make_trainer, target.devices, "tpu")
    program = compile_train_step(lowered)
    operations = teraflop(recipe, make_trainer) / chips
    parameters = variant_costs(variant, classes=len(CLASS_NAMES)).parameters
    return {
        "model": variant,
        "tpu": target.topology,
        "strategy": recipe.strategy,
        "images_per_chip": MODELS[variant][0],
        "state_on_paper_mib": round(
            12 * parameters / (chips if recipe.strategy == "fsdp" else 1) / 2**20
        ),
        "state_mib": round(program.state / 2**20),
        "temporary_mib": round(program.temporary / 2**20),
        "of_memory": round(
            (program.state + program.temporary) / 2**30 / target.chip.memory, 2
        ),
        "teraflop": round(operations, 2),
        "least_milliseconds": round(1e3 * operations / target.chip.teraflops, 1),
        "compiled_seconds": round(program.compiling),
    }


def main() -> None:
    """Compiles, prints the table, and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--output", default="benchmarks/tpu.json")
    options = parser.parse_args()
    targets = [Target(topology) for topology in options.topologies]
    rows = []
    for variant in options.models:
        for target in targets:
            rows.append(row_of(variant, target))
            print(rows[-1], file=sys.stderr)
            write(rows, options.output)
    table = Table(*(name.replace("_", " ") for name in rows[0]), title="A train step")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=160).print(table)


def write(rows: list[dict[str, Any]], output: str) -> None:
    """Write what is compiled so far."""
    versions = {name: importlib.metadata.version(name) for name in ("jax", "libtpu")}
    with open(output, "w", encoding="utf-8") as file:
        json.dump({"versions": str(versions), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
