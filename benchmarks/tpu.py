"""What does a training step need on a TPU, by XLA's own compiler, without a TPU?

    KERAS_BACKEND=jax python -m benchmarks.tpu [--models B/16 L/16 H/14 ...]

JAX's step of `keras-vit fit` with AdamW and mixed precision, compiled for all chips of
a topology. One model of each architecture; at 512 pixels a Vision Transformer has 1,025
tokens, and splash attention. `--strategy fsdp` divides the weights, and the large ones
rematerialize their blocks. State is what the weights, the optimizer and the images take
on each chip, temporary what gradients and activations do, both of the compiled program.
The least time is what the operations take at the chip's full rate, those of the
second forward pass included. Needs libtpu: `pip install "jax[tpu]"`.
"""

import sys
from typing import Any, Literal, NamedTuple

from benchmarks.report import machine, make_parser, show, write
from training.model_config import ModelConfig
from training.recipe import DataConfig, OptimizerConfig, Recipe
from training.tpu.tpu_check import Target, make_trainer
from training.tpu.tpu_program import compile_train_step, lower_train_step, teraflop


class Case(NamedTuple):
    """A model whose step is compiled."""

    images: int  # on each chip
    strategy: Literal["auto", "fsdp"]
    variant: str
    image_size: int = 224
    rematerialize: bool = True
    architecture: Literal["vit", "bit", "resnet"] = "vit"


MODELS = {
    "B/16": Case(64, "auto", "B/16", rematerialize=False),
    "L/16": Case(32, "auto", "L/16"),
    "H/14": Case(16, "fsdp", "H/14"),
    "g/14": Case(8, "fsdp", "g/14"),
    "B/16 at 512": Case(16, "auto", "B/16", 512),
    "L/16 at 512": Case(8, "fsdp", "L/16", 512),
    "R50+B/16": Case(32, "auto", "R50+B/16"),
    "R50x1": Case(32, "fsdp", "R50x1", 224, False, "bit"),
    "ResNet50": Case(32, "auto", "ResNet50", 224, False, "resnet"),
}
TOPOLOGIES = ("v5e:2x4", "v6e:2x4")


def row_of(name: str, target: Target) -> dict[str, Any]:
    """Compile a step, and return its figures on one chip."""
    case, chips = MODELS[name], len(target.devices)
    recipe = Recipe(
        strategy=case.strategy,
        precision="mixed_bfloat16",
        batch_size=case.images * chips,
        model=ModelConfig(
            architecture=case.architecture,
            variant=case.variant,
            image_size=case.image_size,
            rematerialize=case.rematerialize,
        ),
        optimizer=OptimizerConfig(weight_decay=0.1, clip_norm=1.0),
        data=DataConfig("digits"),
    )
    lowered = lower_train_step(recipe, make_trainer, target.devices, "tpu")
    program = compile_train_step(lowered)
    operations = teraflop(recipe, make_trainer) / chips
    return {
        "model": name,
        "tpu": target.topology,
        "strategy": case.strategy,
        "images_per_chip": case.images,
        **target.figures(program, operations),
    }


def main() -> None:
    """Compiles, prints the table, and writes the JSON file."""
    parser = make_parser(__doc__, "tpu")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    targets = [Target(topology) for topology in TOPOLOGIES]
    rows = []
    for name in options.models:
        for target in targets:
            rows.append(row_of(name, target))
            print(rows[-1], file=sys.stderr)
            write({**machine(("jax", "libtpu")), "rows": rows}, options.output)
    show(rows, "A train step")


if __name__ == "__main__":
    main()
