"""What does the attention distance of many images cost, beside a forward pass of them?

    python -m benchmarks.attention_distance [--variant B/16] [--images 128]

CPU seconds of all threads (seconds where there is a GPU): `model.predict`, then
`analysis.attention_distance`, which computes the attention weights of every block a
second time and reduces them inside the graph. Beside it the way without a reduction:
`attention_weights_model`, whose weights of all blocks leave the graph, and NumPy. They
take turns, and the best of the rounds counts. Memory is what the process holds at its
peak, above what it held before; each way has a process of its own for it.
"""

import argparse
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import keras_vit
from keras_vit.analysis.distance import patch_distances

BATCH = 8
MEMORY_IMAGES = 24  # of which the memory is measured: that of every batch is freed


def ways(model) -> dict[str, Callable[[np.ndarray], object]]:
    """By name: the forward pass, and two ways to its attention distance."""
    weights = model.attention_weights_model()
    distances = patch_distances(model.grid, model.image_size)

    def mean_distance(block: np.ndarray) -> np.ndarray:
        patches = block[:, :, model.prefix_tokens :, model.prefix_tokens :]
        return ((patches * distances).sum(-1) / patches.sum(-1)).mean((0, 2))

    def outside(images):
        batches = [images[i : i + BATCH] for i in range(0, len(images), BATCH)]
        found = (weights.predict(batch, BATCH, verbose=0) for batch in batches)
        return np.mean([[mean_distance(b) for b in blocks] for blocks in found], axis=0)

    return {
        "forward pass": lambda images: model.predict(images, BATCH, verbose=0),
        "attention_distance": lambda images: keras_vit.analysis.attention_distance(
            model, images, BATCH
        ),
        "weights to NumPy": outside,
    }


def made(variant: str, count: int):
    """A model with random weights, and random images."""
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer.from_variant(variant)
    shape = (count, *model.image_size, model.channels)
    return model, np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")


def best_seconds(variant: str, count: int, rounds: int) -> dict[str, float]:
    """Least seconds of each way."""
    clock = time.perf_counter if tf.config.list_physical_devices("GPU") else None
    clock = clock or time.process_time
    model, images = made(variant, count)
    functions = ways(model)
    for function in functions.values():
        function(images[:BATCH])  # traces
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            start = clock()
            function(images)
            best[name] = min(best[name], clock() - start)
    return best


def peak_mib(variant: str, name: str) -> float:
    """Memory of one way at its peak above the model's, in MiB."""
    model, images = made(variant, MEMORY_IMAGES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ways(model)[name](images)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    """Measures, prints the table, and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="B/16")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--output", default="benchmarks/attention_distance.json")
    arguments = parser.parse_args()
    variant, images = arguments.variant, arguments.images
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        seconds = pool.apply(best_seconds, (variant, images, arguments.rounds))
        memory = {name: pool.apply(peak_mib, (variant, name)) for name in seconds}
    table = Table(title=f"ViT-{variant}, {images} images")
    for heading in ("", "seconds", "ratio to the forward pass", "peak MiB"):
        table.add_column(heading)
    rows = []
    for name, value in seconds.items():
        ratio = value / seconds["forward pass"]
        rows.append(
            {
                "way": name,
                "seconds": round(value, 2),
                "ratio_to_forward_pass": round(ratio, 3),
                "peak_mib": round(memory[name]),
            }
        )
        table.add_row(name, f"{value:.1f}", f"{ratio:.2f}", f"{memory[name]:.0f}")
    Console().print(table)
    result = {"variant": variant, "images": images, "rows": rows}
    with open(arguments.output, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
