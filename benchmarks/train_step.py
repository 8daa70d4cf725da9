"""What does a training step cost, beside what a user would take instead?

    python -m benchmarks.train_step [--quick] [--output FILE.json]

AdamW with clipped gradients, mixed precision where it says bfloat16. "Stock Keras" is
Keras's own `fit` of keras-vit's model; the options of `keras-vit fit` have rows of
their own, XLA among them: where a recipe says `jit_compile: auto`, it is off on CPUs.
CPU time of one thread; the libraries take turns, each in a process of its own, and the
best of the rounds counts. `time to ours` above 1 means that keras-vit is faster. Memory
is what the process grew by at its peak after its imports. Figures of GFLOP/s are those
of a whole training step, whatever a row computes of it. Needs the peers:
`pip install -e ".[parity]"`.
"""

from benchmarks.peer_models import CACHED_STEPS, Case
from benchmarks.turns import compare

LIBRARIES = ("keras-vit", "timm", "timm, torch.compile", "transformers", "keras-hub")
OPTIONS = (
    "stock Keras",
    "keras-vit, moving average",
    "keras-vit, 4 micro-batches",
    "keras-vit, XLA",
)
FINE_TUNING = (
    "keras-vit, LoRA of rank 8",
    "keras-vit, classifier alone",
    # Of `data.cache_features`: the pass over the images of a step, and steps after it.
    "keras-vit, features, once",
    f"keras-vit, {CACHED_STEPS} steps on features",
)


def contests(quick: bool) -> list[tuple[Case, tuple[str, ...]]]:
    """What is measured, and by whom."""
    found: list[tuple[Case, tuple[str, ...]]] = [
        (Case(True, "S/16", 224, 16, "float32", 1), LIBRARIES + OPTIONS),
        (Case(True, "S/16", 224, 16, "bfloat16", 1), LIBRARIES),
        (Case(True, "B/16", 224, 8, "float32", 1), LIBRARIES),
        (Case(True, "B/16", 224, 8, "bfloat16", 1), LIBRARIES),
        (Case(True, "B/16", 224, 4, "float32", 1), ("keras-vit", *FINE_TUNING)),
        (Case(True, "L/16", 224, 2, "float32", 1), ("keras-vit", *FINE_TUNING)),
    ]
    return [(case, LIBRARIES) for case, _ in found[:2]] if quick else found


if __name__ == "__main__":
    compare(__doc__, "train_step", 4, "S/16, peers", contests)
