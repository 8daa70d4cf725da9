"""What does a training step cost, beside stock Keras's `fit` of the same model?

    python -m benchmarks.train_step [--output FILE.json]

CPU seconds of one thread, which hold still on a shared machine where wall time does
not; the trainers take turns in one process, and the best of the rounds counts. It is
also why XLA is off on CPUs where a recipe says `jit_compile: auto`.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import keras_vit
from training.engine.optimizer import make_optimizer
from training.engine.tensorflow_trainer import TensorFlowTrainer
from training.recipe import OptimizerConfig

# Name, arguments of the model, batch, steps between two looks at the clock.
MODELS: dict[str, tuple[dict[str, Any], int, int]] = {
    "digits (17 tokens, width 64)": (
        {"image_size": 8, "patch_size": 2, "width": 64, "depth": 4}
        | {"mlp_dim": 128, "heads": 4, "channels": 1, "classes": 10},
        128,
        20,
    ),
    "S/16 at 224": (
        {"image_size": 224, "patch_size": 16, "width": 384, "depth": 12}
        | {"mlp_dim": 1536, "heads": 6, "classes": 1000},
        16,
        1,
    ),
}
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, clip_norm=1.0)
TRAINERS: dict[str, dict[str, Any]] = {
    "stock Keras": {},
    "keras-vit": {},
    "keras-vit, moving average": {"ema": 0.9999},
    "keras-vit, 4 micro-batches": {"accumulation": 4},
    "keras-vit, XLA": {"jit_compile": True},
    "keras-vit, mixed_bfloat16": {"dtype": "mixed_bfloat16"},
}


def stock_trainer(model: keras.Model) -> keras.Model:
    """Keras's own `compile`, with the same update."""
    optimizer = keras.optimizers.AdamW(
        OPTIMIZER.learning_rate, OPTIMIZER.weight_decay, global_clipnorm=1.0
    )
    optimizer.exclude_from_weight_decay(
        [w for w in model.trainable_weights if not w.path.endswith("/kernel")]
    )
    model.compile(
        optimizer,
        keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    return model


def our_trainer(model, ema=None, accumulation=1, jit_compile=False) -> keras.Model:
    """The trainer of `keras-vit fit`."""
    config = OptimizerConfig(
        learning_rate=OPTIMIZER.learning_rate,
        weight_decay=OPTIMIZER.weight_decay,
        ema=ema,
    )
    trainer = TensorFlowTrainer(
        model, accumulation=accumulation, clip_norm=OPTIMIZER.clip_norm
    )
    trainer.compile(
        make_optimizer(config, config.learning_rate, model), jit_compile=jit_compile
    )
    return trainer


def runner(name: str, model_name: str) -> Callable[[], None]:
    """A function that trains for the model's number of steps."""
    arguments, batch, steps = MODELS[model_name]
    options = dict(TRAINERS[name])
    model = keras_vit.VisionTransformer(
        **arguments, dtype=options.pop("dtype", "float32")
    )
    trainer = (
        stock_trainer(model) if name == "stock Keras" else our_trainer(model, **options)
    )
    random = np.random.default_rng(0)
    images = random.normal(size=(batch, *model.input_shape[1:])).astype("float32")
    labels = np.eye(arguments["classes"], dtype="float32")[:batch]
    if batch > len(labels):
        labels = np.resize(labels, (batch, arguments["classes"]))
    data = tf.data.Dataset.from_tensors((images, labels)).repeat()
    return lambda: trainer.fit(data, steps_per_epoch=steps, epochs=1, verbose=0)


def best_seconds(model_name: str, rounds: int) -> dict[str, float]:
    """Least CPU seconds of a step of each trainer, which take turns."""
    runners = {name: runner(name, model_name) for name in TRAINERS}
    best = dict.fromkeys(runners, float("inf"))
    for turn in range(rounds + 1):
        for name, run in runners.items():
            start = time.process_time()
            run()
            if turn:  # the first round compiles
                best[name] = min(best[name], time.process_time() - start)
    return {name: seconds / MODELS[model_name][2] for name, seconds in best.items()}


def main() -> None:
    """Measures, prints the table, and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--output", default="benchmarks/train_step.json")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    table = Table("model", "trainer", "ms per step", "stock Keras = 1")
    rows = []
    for model_name in MODELS:
        seconds = best_seconds(model_name, arguments.rounds)
        for name, value in seconds.items():
            ratio = value / seconds["stock Keras"]
            rows.append(
                {
                    "model": model_name,
                    "trainer": name,
                    "milliseconds": round(1000 * value, 1),
                    "ratio_to_stock_keras": round(ratio, 3),
                }
            )
            table.add_row(model_name, name, f"{1000 * value:.0f}", f"{ratio:.2f}")
    Console().print(table)
    with open(arguments.output, "w", encoding="utf-8") as file:
        json.dump({"rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
