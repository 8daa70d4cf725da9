"""How fast is frozen evaluation: features, few-shot, nearest neighbors?

    python -m benchmarks.probe [--variant S/16] [--output FILE.json]

Features beside `model.predict` of the same images, in turns, the best of the rounds;
few-shot of 25 shots x 1,000 classes x 3 seeds on random features of width 1,024; the
nearest of 200 neighbors among random features. NumPy's linear algebra uses all cores.
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
from training.data.labeled_images import Split
from training.data.pipeline import evaluation_batches
from training.probe import knn
from training.probe.features import FeatureExtractor
from training.probe.fewshot import RidgeClassifier

WIDTH, CLASSES, SHOTS, SEEDS = 1024, 1000, 25, 3
TEST_IMAGES = 5000
BATCH = 16


def images(count: int) -> Split:
    """Random images of 224 pixels, in memory."""
    pixels = tf.constant(np.random.default_rng(0).integers(0, 256, (64, 224, 224, 3)))
    pixels = tf.cast(pixels, tf.uint8)
    names = [str(number) for number in range(count)]
    labels = np.zeros(count, np.int64)
    return Split(labels, 2, lambda index: pixels[index % 64], names, fitted=True)


def best_seconds(functions: dict[str, Callable], rounds: int) -> dict[str, float]:
    """Least seconds of each function; they take turns, and the first round traces."""
    best = dict.fromkeys(functions, float("inf"))
    for number in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if number:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def features(variant: str, count: int, rounds: int) -> dict[str, float]:
    """Images/s of the extraction and of `model.predict`, and their ratio."""
    model = keras_vit.VisionTransformer.from_variant(
        variant, preprocessing=keras_vit.ImagePreprocessing(224)
    )
    split, extractor = images(count), FeatureExtractor(model, batch_size=BATCH)

    def predict():
        batches = evaluation_batches(split, BATCH, model.preprocessing)
        model.predict(batches, verbose=0)

    seconds = best_seconds(
        {"features": lambda: extractor(split), "predict": predict}, rounds
    )
    return {
        "features_images_per_second": count / seconds["features"],
        "predict_images_per_second": count / seconds["predict"],
        "ratio": seconds["predict"] / seconds["features"],
    }


def few_shot() -> dict[str, float]:
    """Seconds of the closed form for all seeds, and of further values of l2."""
    random = np.random.default_rng(0)
    train = random.normal(size=(SHOTS * CLASSES, WIDTH)).astype("float32")
    test = random.normal(size=(TEST_IMAGES, WIDTH)).astype("float32")
    labels = np.repeat(np.arange(CLASSES), SHOTS)
    first = further = 0.0
    for _ in range(SEEDS):
        start = time.perf_counter()
        classifier = RidgeClassifier(train, labels, CLASSES)
        classifier.predict(test, 1024.0)
        first += time.perf_counter() - start
        start = time.perf_counter()
        classifier.predict(test, 1.0)
        further += time.perf_counter() - start
    return {"seconds": first, "seconds_of_another_l2": further}


def neighbors(count: int) -> dict[str, float]:
    """Seconds of 200 neighbors, and the comparisons of two images in a second."""
    random = np.random.default_rng(0)
    train = random.normal(size=(count, WIDTH)).astype("float32")
    test = random.normal(size=(TEST_IMAGES, WIDTH)).astype("float32")
    labels = random.integers(0, CLASSES, count)
    start = time.perf_counter()
    knn.knn_predictions(train, labels, test, CLASSES)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "pairs_per_second": count * TEST_IMAGES / seconds}


def main() -> None:
    """Measures, prints the table, and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="S/16")
    parser.add_argument("--images", type=int, default=192)
    parser.add_argument("--neighbors", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default="benchmarks/probe.json")
    arguments = parser.parse_args()
    results = {
        "features": features(arguments.variant, arguments.images, arguments.rounds),
        "fewshot": few_shot(),
        "knn": neighbors(arguments.neighbors),
    }
    titles = {
        "features": f"ViT-{arguments.variant}, {arguments.images} images",
        "fewshot": f"{SHOTS} shots x {CLASSES} classes x {SEEDS} seeds, {TEST_IMAGES} "
        f"test images, width {WIDTH}",
        "knn": f"{arguments.neighbors} training and {TEST_IMAGES} test images, width "
        f"{WIDTH}, k up to {max(knn.K)}",
    }
    table = Table(title=f"Frozen evaluation on {os.cpu_count()} cores")
    for heading in ("what", "of", "figure", "value"):
        table.add_column(heading)
    for name, figures in results.items():
        for figure, value in figures.items():
            words = figure.replace("_", " ")
            table.add_row(name, titles[name], words, f"{value:,.4g}")
    Console().print(table)
    document = {"cores": os.cpu_count(), "variant": arguments.variant, **results}
    with open(arguments.output, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)


if __name__ == "__main__":
    main()
