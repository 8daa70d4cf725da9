"""How much faster is an exported model in bfloat16, and how do its outputs change?

    python -m benchmarks.precision [--variant B/16] [--digits runs/digits/best.keras]

Speed: CPU seconds of one thread (with more threads wall seconds), the exports taking
turns, the best of the rounds counts; beside them what Keras's own `export` writes.
Agreement: a linear classifier is fitted to what a random backbone makes of crops of
three photographs, then the exports judge other crops; the digits' model judges the
digits that it was not trained with.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.linear_model import LogisticRegression

import keras_vit
from benchmarks import crops
from serving.export.options import ExportOptions
from serving.export.signatures import save
from training.data.splits import load_splits
from training.recipes import named_recipe

EXPORTS = {
    "float32": ExportOptions(batching="none"),
    "bfloat16": ExportOptions(batching="none", precision="bfloat16"),
}
FITTED, JUDGED = 100, 70  # crops of each photograph
BATCHES = (1, 8)

Function = Callable[[np.ndarray], np.ndarray]


def loaded(folder: str) -> Function:
    """The logits of a SavedModel that `serving` exported."""
    signature = tf.saved_model.load(folder).signatures["serve_pixels"]
    return lambda pixels: signature(pixel_values=tf.constant(pixels))["logits"]


def exports(model: keras_vit.VisionTransformer) -> dict[str, Function]:
    """The model in every form, through the file."""
    functions = {}
    for name, options in track(EXPORTS.items(), "exporting", transient=True):
        with tempfile.TemporaryDirectory() as folder:
            save(model, Path(folder), options)
            functions[name] = loaded(folder)
    return functions


def by_keras(model: keras_vit.VisionTransformer) -> Function:
    """What Keras's own export makes of the model."""
    with tempfile.TemporaryDirectory() as folder:
        model.export(folder, verbose=False)
        served = tf.saved_model.load(folder)
    return lambda pixels: served.serve(tf.constant(pixels))


def best_seconds(functions, pixels, rounds: int, clock) -> dict[str, float]:
    """Least seconds of each function over rounds in which they take turns."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in track(range(rounds + 1), "timing", transient=True):  # the first traces
        for name, function in functions.items():
            start = clock()
            function(pixels)
            best[name] = min(best[name], clock() - start)
    return best


def speed(model, functions, rounds: int, clock) -> list[dict]:
    """Images per second of each export beside those of float32, per batch."""
    rows = []
    for batch in BATCHES:
        shape = (batch, *model.image_size, model.channels)
        pixels = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
        seconds = best_seconds(functions, pixels, rounds, clock)
        for name, value in seconds.items():
            ratio = round(seconds["float32"] / value, 3)
            rows.append({"batch": batch, "export": name, "ratio_to_float32": ratio})
    return rows


def crop_images(part: str, count: int, image_size, seed: int):
    """Pixels [n, H, W, 3] in [-1, 1] of so many crops per photograph, their classes."""
    random = np.random.default_rng(seed)
    images, classes = [], []
    for index, picture in enumerate(crops.photographs().values()):
        cells = crops.cells(picture)[part]
        for number in range(count):
            crop = crops.crop(cells[number % len(cells)], random)
            images.append(np.asarray(crop.resize(image_size[::-1])))
            classes.append(index)
    return np.stack(images) / np.float32(127.5) - 1, np.array(classes)


def judged(function: Function, pixels: np.ndarray) -> np.ndarray:
    """Logits of all images, by eights."""
    starts = track(range(0, len(pixels), 8), "judging", transient=True)
    return np.concatenate([function(pixels[start : start + 8]) for start in starts])


def model_of_crops(variant: str):
    """A random backbone with a classifier fitted to crops, other crops and classes."""
    model = keras_vit.VisionTransformer.from_variant(variant, classes=3)
    head = model.get_layer("head")
    pixels, classes = crop_images("train", FITTED, model.image_size, seed=0)
    embed = tf.function(keras.Model(model.input, head.input))
    fit = LogisticRegression(max_iter=10_000).fit(judged(embed, pixels), classes)
    head.set_weights([fit.coef_.T, fit.intercept_])
    return model, *crop_images("test", JUDGED, model.image_size, seed=1)


def model_of_digits(path: Path):
    """A model of `training fit --recipe digits`, and digits it was not trained with."""
    model = keras.models.load_model(path, compile=False)
    recipe = named_recipe("digits")
    test = load_splits(recipe.data, recipe.model.channels).test
    images = np.stack([test.read(index) for index in range(len(test))])
    pixels = keras.ops.convert_to_numpy(model.preprocessing(images.astype("float32")))
    return model, pixels, test.labels


def agreement(name, functions, pixels, classes) -> list[dict]:
    """How each export's best classes and probabilities are beside those of float32."""
    logits = {name: judged(function, pixels) for name, function in functions.items()}
    scores = {name: tf.nn.softmax(values).numpy() for name, values in logits.items()}
    best = {name: values.argmax(1) for name, values in logits.items()}
    return [
        {
            "model": name,
            "export": export,
            "images": len(pixels),
            "top1_agreement": float(np.mean(best[export] == best["float32"])),
            "accuracy": float(np.mean(best[export] == classes)),
            "max_difference": float(np.abs(scores[export] - scores["float32"]).max()),
        }
        for export in functions
    ]


def show(title: str, rows: list[dict]) -> None:
    """Prints rows of the same keys as a table."""
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(
            *(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values())
        )
    Console().print(table)


def main() -> None:
    """Measures, prints the tables, and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="B/16")
    parser.add_argument("--digits", type=Path, help="a .keras file of that recipe")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", default="benchmarks/precision.json")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    model, pixels, classes = model_of_crops(arguments.variant)
    functions = exports(model)
    title = f"ViT-{arguments.variant} at 224 pixels, {arguments.threads} thread(s)"
    contestants = {**functions, "Keras's export": by_keras(model)}
    timed = speed(model, contestants, arguments.rounds, clock)
    show(title, timed)
    agreed = agreement("crops", functions, pixels, classes)
    if arguments.digits:
        model, pixels, classes = model_of_digits(arguments.digits)
        agreed += agreement("digits", exports(model), pixels, classes)
    show("beside float32", agreed)
    result = {"variant": arguments.variant, "threads": arguments.threads}
    with open(arguments.output, "w", encoding="utf-8") as file:
        json.dump({**result, "speed": timed, "agreement": agreed}, file, indent=1)


if __name__ == "__main__":
    main()
