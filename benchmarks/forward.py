"""How fast is a forward pass on CPU, beside keras-hub's ViT in the same process?

    python -m benchmarks.forward [--variant B/16] [--output FILE.json]

CPU seconds of one thread, which hold still on a shared machine where wall time does
not; the models take turns, and the best of the rounds counts. Needs keras-hub:
`pip install -e ".[parity]"`.
"""

import argparse
import json
import os
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import keras_vit
from keras_vit.costs import model_costs

GELUS = ("tanh", "exact")
DTYPES = ("float32", "mixed_bfloat16")
BATCHES = (1, 8)


def keras_hub_model(spec: keras_vit.ViTSpec, patch_size: int, dtype: str):
    """keras-hub's classifier of the same size (its GELU is the exact one)."""
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(224, 224, 3),
        patch_size=patch_size,
        num_layers=spec.depth,
        num_heads=spec.heads,
        hidden_dim=spec.width,
        mlp_dim=spec.mlp_dim,
        dtype=dtype,
    )
    return keras_hub.models.ViTImageClassifier(
        backbone=backbone, num_classes=1000, preprocessor=None, dtype=dtype
    )


def contestants(variant: str, dtype: str) -> dict[str, Callable]:
    """Map each name to its compiled forward pass, with all weights random."""
    spec, patch_size = keras_vit.parse_variant(variant)
    models = {"keras-hub": keras_hub_model(spec, patch_size, dtype)}
    for gelu in GELUS:
        models[f"keras-vit, {gelu} GELU"] = keras_vit.VisionTransformer.from_variant(
            variant, gelu=gelu, dtype=dtype
        )
    random = np.random.default_rng(0)
    for model in models.values():
        for weight in model.weights:
            # Zero biases would let TensorFlow remove the additions.
            weight.assign(random.normal(scale=0.02, size=weight.shape))
    return {name: compiled(model) for name, model in models.items()}


def compiled(model) -> Callable:
    """The model's inference as one graph."""
    return tf.function(lambda images: model(images, training=False))


def best_seconds(functions: dict[str, Callable], batch: int, rounds: int):
    """Least CPU seconds of each function over rounds in which they take turns."""
    images = tf.random.normal((batch, 224, 224, 3))
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds + 1):  # the first round traces
        for name, function in functions.items():
            start = time.process_time()
            function(images)
            best[name] = min(best[name], time.process_time() - start)
    return best


def main() -> None:
    """Measures, prints the table, and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="B/16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default="benchmarks/forward.json")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    gflops = model_costs(*keras_vit.parse_variant(arguments.variant)).flops / 1e9

    table = Table(title=f"ViT-{arguments.variant} at 224 pixels, one thread")
    for heading in ("dtype", "batch", "model", "GFLOP/s", "images per keras-hub image"):
        table.add_column(heading)
    rows = []
    for dtype in DTYPES:
        functions = contestants(arguments.variant, dtype)
        for batch in BATCHES:
            seconds = best_seconds(functions, batch, arguments.rounds)
            for name, value in seconds.items():
                ratio = seconds["keras-hub"] / value
                rate = gflops * batch / value
                rows.append(
                    {
                        "dtype": dtype,
                        "batch": batch,
                        "model": name,
                        "gflop_per_second": round(rate, 1),
                        "ratio_to_keras_hub": round(ratio, 3),
                    }
                )
                table.add_row(dtype, str(batch), name, f"{rate:.0f}", f"{ratio:.2f}")
    Console().print(table)
    with open(arguments.output, "w", encoding="utf-8") as file:
        json.dump({"variant": arguments.variant, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
