"""Does the training step lower for TPUs and GPUs, for every model of the recipes?

    KERAS_BACKEND=jax python -m benchmarks.lowering [--recipes NAME ...]

JAX's step of `keras-vit fit`, in mixed_bfloat16, lowered for 1, 4 and 8 devices of each
platform on this machine's CPU: with all weights on each device, and with `--strategy
fsdp`. One recipe for each model and image size, and some at 512 pixels, where B/16 has
1,025 tokens. A cell has the numbers of devices for which the step lowered, or why not.
Flash is whether the program has kernels of flash attention: splash attention's on TPUs,
cuDNN's on GPUs. Lowering shows what runs, not that it runs
well; of the GPU, cuDNN 9.10 and a capability of at least 8.0 are assumed.
"""

import dataclasses
import os
import re
import sys
from typing import Any, Literal

DEVICES = (1, 4, 8)
if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES[-1]}"
    os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import keras  # noqa: E402

from benchmarks.report import machine, make_parser, show, write  # noqa: E402
from keras_vit.devices import Platform  # noqa: E402
from training.recipe import Recipe  # noqa: E402
from training.recipes import named_recipe, recipe_names  # noqa: E402
from training.tpu.tpu_check import make_trainer  # noqa: E402
from training.tpu.tpu_program import lower_train_step  # noqa: E402

PLATFORMS: tuple[Platform, ...] = ("tpu", "gpu")
STRATEGIES: tuple[Literal["auto", "fsdp"], ...] = ("auto", "fsdp")
# JAX puts cuDNN's into a program for several devices when it divides the program.
KERNELS = {
    "tpu": re.compile("@tpu_custom_call"),
    "gpu": re.compile(r"@__cudnn\$fmha|@CustomSPMDPartitioning"),
}
LARGE = ("finetune_imagenet-B16", "finetune_imagenet-L16", "finetune_imagenet-R50+L32")
LARGE_SIZE = 512


def cases(names: list[str]) -> dict[str, Recipe]:
    """Recipes by name, the first of each model, image size and task."""
    found: dict[Any, tuple[str, Recipe]] = {}
    for name in names:
        recipe = named_recipe(name)
        model, task = recipe.model, recipe.self_supervision.task
        sizes = (model.variant, model.image_size, model.patch_size, model.depth, task)
        found.setdefault((model.architecture, *sizes), (name, recipe))
    chosen = dict(found.values())
    for name in (each for each in LARGE if each in names):
        recipe = named_recipe(name)
        model = dataclasses.replace(recipe.model, image_size=LARGE_SIZE)
        name = f"{name} at {LARGE_SIZE}"
        chosen[name] = dataclasses.replace(recipe, model=model)
    return chosen


def row_of(name: str, recipe: Recipe) -> dict[str, Any]:
    """Lower a recipe's step in every way."""
    row: dict[str, Any] = {"recipe": name, "size": recipe.model.image_size or 224}
    for platform in PLATFORMS:
        for strategy in STRATEGIES:
            row[f"{platform}_{strategy}"], flash = _lowered(recipe, platform, strategy)
        row[f"{platform}_flash"] = flash
    return row


def _lowered(
    recipe: Recipe, platform: Platform, strategy: Literal["auto", "fsdp"]
) -> tuple[str, bool]:
    """`1, 4, 8`, and each other number of devices with the error; whether kernels."""
    fine, failed, flash = [], [], False
    for count in DEVICES:
        changed = dataclasses.replace(
            recipe,
            strategy=strategy,
            precision="mixed_bfloat16",
            batch_size=2 * count * recipe.accumulation * recipe.augmentation.repeats,
        )
        devices = keras.distribution.list_devices()[:count]
        try:
            lowered = lower_train_step(changed, make_trainer, devices, platform)
            flash |= KERNELS[platform].search(lowered.as_text()) is not None
            fine.append(str(count))
        except Exception as error:  # of ours, of Keras or of JAX: the cell says it  # noqa: BLE001
            failed.append(f"{count}: {' '.join(str(error).split())[:200]}")
    return "; ".join([", ".join(fine), *failed] if fine else failed), flash


def assume_cudnn() -> None:
    """Let JAX lower cuDNN's attention without a GPU, whose versions it would ask.

    It lowers everything else for a platform that is not there, but has no public way to
    state the versions of this one.
    """
    from jax._src.cudnn import fused_attention_stablehlo

    fused_attention_stablehlo.check_cudnn_version = lambda: 91000
    fused_attention_stablehlo.check_compute_capability = lambda _: True


def main() -> None:
    """Lowers, prints the table, and writes the JSON file."""
    parser = make_parser(__doc__, "lowering")
    parser.add_argument("--recipes", nargs="+", default=recipe_names())
    options = parser.parse_args()
    assume_cudnn()
    rows: list[dict[str, Any]] = []
    for name, recipe in cases(options.recipes).items():
        rows.append(row_of(name, recipe))
        jax.clear_caches()
        print(rows[-1], file=sys.stderr)
        write({**machine(("jax", "keras")), "rows": rows}, options.output)
    show(rows)


if __name__ == "__main__":
    main()
