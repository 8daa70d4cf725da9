"""What does training on several workers cost, and do the bytes explain it?

    python -m benchmarks.workers [--variant Ti/16] [--batch 4] [--workers 2 4]

Runs the trainer in processes of this machine, each with one thread and `--batch`
images: side by side without exchanging anything, and as the workers of one run. On
paper a step takes as long as alone, and then the time of a ring all-reduce: each worker
sends 2 (N - 1) / N times the bytes of the gradients. The rate is that which the same
all-reduce reaches without a model, in the same processes.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.turns import machine
from training.engine.launch import environments

STEPS, WARM_UP = 10, 3
HEADINGS = (
    *("workers", "s alone", "all-reduce, MB/s", "s on paper", "s measured"),
    "efficiency",
)


def work(variant: str, batch: int, together: bool) -> dict[str, Any]:
    """Train in this process, and measure its all-reduce.

    Args:
        variant: Size of the model.
        batch: Images of this worker.
        together: Whether this is one of several workers, as `TF_CONFIG` says.

    Returns:
        Seconds of a step and of an all-reduce of the gradients, medians, and their
        bytes.
    """
    import keras
    import tensorflow as tf

    from training.engine.strategy import make_strategy, worker_count
    from training.model import build_model, compile_trainer
    from training.recipe import DataConfig, ModelConfig, Recipe

    if not together:
        del os.environ["TF_CONFIG"]
    recipe = Recipe(
        strategy="auto", model=ModelConfig(variant=variant), data=DataConfig("digits")
    )
    strategy: Any = make_strategy(recipe)
    with strategy.scope():
        model = build_model(recipe.model, tuple(map(str, range(1000))))
        trainer = compile_trainer(model, recipe, STEPS, STEPS)
    images = tf.zeros((batch, *model.input_shape[1:]), tf.uint8)
    labels = tf.one_hot(tf.range(batch), 1000)
    data = tf.data.Dataset.from_tensors((images, labels)).repeat()
    ends: list[float] = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
    )
    trainer.fit(
        strategy.distribute_datasets_from_function(lambda _: data),
        steps_per_epoch=WARM_UP + STEPS,
        callbacks=[clock],
        verbose=0,
    )
    steps = [after - before for before, after in itertools.pairwise(ends)]
    gradients = [tf.zeros(v.shape) for v in model.trainable_variables]

    @tf.function(autograph=False)
    def reduce():
        def own():
            replica = tf.distribute.get_replica_context()
            return replica.all_reduce("sum", gradients)[0]

        return strategy.run(own)

    reductions = []
    for _ in range(WARM_UP + STEPS if worker_count(strategy) > 1 else 0):
        began = time.perf_counter()
        reduce()
        reductions.append(time.perf_counter() - began)
    return {
        "step": statistics.median(steps[WARM_UP:]),
        "reduction": statistics.median(reductions[WARM_UP:]) if reductions else 0.0,
        "bytes": 4 * model.count_params(),
    }


def measure(workers: int, variant: str, batch: int, together: bool) -> dict[str, Any]:
    """Run `work` in so many processes at once; the figures of the first."""
    command = [sys.executable, "-m", "benchmarks.workers", "--variant", variant]
    command += ["--batch", str(batch), "--work", "together" if together else "alone"]
    one_thread = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    processes = [
        subprocess.Popen(
            command,
            env=os.environ | variables | one_thread,
            stdout=subprocess.PIPE,
            text=True,
        )
        for variables in environments(workers)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError("a worker failed; its output is above")
    return json.loads(outputs[0].splitlines()[-1])


def main() -> None:
    """Measures, prints the table, and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="Ti/16")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--output", default="benchmarks/workers.json")
    parser.add_argument("--work", choices=("alone", "together"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        together = options.work == "together"
        print(json.dumps(work(options.variant, options.batch, together)))
        return
    table = Table(*HEADINGS, title=f"{options.variant}, {options.batch} images each")
    rows = []
    for workers in options.workers:
        alone = measure(workers, options.variant, options.batch, together=False)
        found = measure(workers, options.variant, options.batch, together=True)
        sent = 2 * (workers - 1) / workers * found["bytes"]
        row = {
            "workers": workers,
            "alone": alone["step"],
            "megabytes_per_second": sent / found["reduction"] / 1e6,
            "on_paper": alone["step"] + found["reduction"],
            "measured": found["step"],
            "efficiency": alone["step"] / found["step"],
        }
        rows.append(row)
        table.add_row(str(workers), *(f"{v:.3g}" for v in list(row.values())[1:]))
    Console().print(table)
    said = {"machine": machine(), "variant": options.variant, "batch": options.batch}
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump(said | {"rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
