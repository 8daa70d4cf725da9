"""How fast is a GPU, with JAX, beside what a user would take instead?

    python -m benchmarks.gpu [--variants L/16 ...] [--tiny] [--output FILE.json]

Forward pass and training step in bfloat16 on one GPU: keras-vit on JAX; the form of
big_vision's model in Flax and optax, with XLA's attention and with cuDNN's; timm with
`torch.compile`, SDPA, channels last and fused AdamW. Of keras-vit also the training
step on TensorFlow, and on both with deterministic operations, whose cost is the ratio
of two rows. Training is AdamW on clipped gradients with float32 weights. Each library
runs in a process of its own, in batches that double until memory is full (or 4,096),
and its best batch counts: images/s in the best of five rounds; FLOPs in closed form, as
a share of what a product of 8192 x 8192 matrices reaches in the same run (the better of
JAX and PyTorch), and of the data sheet. `time to ours` above 1 means that keras-vit is
faster. Needs `pip install -e ".[parity]" "jax[cuda13]"`; without TensorFlow, or where
it sees no GPU, its rows are left out. `--tiny` runs all of it on any machine; its
figures mean nothing.
"""

import importlib.util
import json
import sys
from typing import Any

from benchmarks.gpu_models import LIBRARIES, Extent
from benchmarks.peer_models import Case
from benchmarks.processes import Process
from benchmarks.report import machine, make_parser, show, write
from benchmarks.turns import flops_of
from training.engine.device_peaks import peak_flops

PACKAGES = ("jax", "keras", "flax", "optax", "torch", "timm")
# Variant, pixels and first batch by name.
MODELS = {
    "S/16": ("S/16", 224, 128),
    "B/16": ("B/16", 224, 64),
    "L/16": ("L/16", 224, 32),
    "B/16@384": ("B/16", 384, 16),
}
TINY = ("Ti/16", 32, 2)
# By library what its process says: its device, then each batch that fits.
Answers = dict[str, list[dict[str, Any]]]
# Everything, and on a machine without a GPU.
FULL, SMALL = Extent(4096, 5, 0.5, 8192), Extent(2, 1, 0.0, 256)


def measure(library: str, case: Case, extent: Extent) -> list[dict[str, Any]]:
    """What a library's process says: its device, then each batch that fits.

    Raises:
        RuntimeError: It failed, or not even the first batch fits.
    """
    values = [json.dumps(value) for value in (case, extent)]
    words = ("benchmarks.gpu_models", library, *values)
    with Process(*words, **LIBRARIES[library].environment) as process:
        answers = list(iter(process.ask, None))
    if len(answers) < 2:
        raise RuntimeError(f"{library} does not fit: {case}")
    print(library, *case, file=sys.stderr)
    return answers


def libraries_of(case: Case, tiny: bool) -> list[str]:
    """The libraries that are measured: TensorFlow's only where it sees a GPU.

    Args:
        case: What is measured; determinism costs something in training alone.
        tiny: Whether figures mean nothing, so that a CPU is as good.
    """
    names = [name for name in LIBRARIES if "TensorFlow" not in name]
    if importlib.util.find_spec("tensorflow") is not None:
        import tensorflow as tf

        if tiny or tf.config.list_physical_devices("GPU"):
            names = list(LIBRARIES)
    return [n for n in names if case.training or not LIBRARIES[n].training_only]


def rows_of(case: Case, answers: Answers, matmul_flops: float) -> list[dict[str, Any]]:
    """A row for each library, keras-vit first.

    Args:
        matmul_flops: FLOP/s of the product of large matrices.
    """
    rows: list[dict[str, Any]] = []
    for library, (first, *batches) in answers.items():
        best = min(batches, key=lambda answer: answer["seconds"] / answer["batch"])
        rate = best["batch"] / best["seconds"]
        if not rows:
            ours = rate
        flops = flops_of(case._replace(batch=1)) * rate
        data_sheet = peak_flops(first["device"], "mixed_bfloat16")
        peak = best["peak_bytes"]
        rows.append(
            {
                "variant": case.variant,
                "pixels": case.image_size,
                "training": case.training,
                "dtype": case.dtype,
                "library": library,
                "device": first["device"],
                "batch": best["batch"],
                "images_per_second": round(rate, 1),
                "time_to_ours": round(ours / rate, 3),
                "share_of_matmul": round(flops / matmul_flops, 4),
                "share_of_data_sheet": data_sheet and round(flops / data_sheet, 4),
                "memory_mb": None if peak is None else peak // 2**20,
                "largest_batch": batches[-1]["batch"],
            }
        )
    return rows


def record_of(answers: dict[Case, Answers]) -> dict[str, Any]:
    """What the JSON file has: device, rate of the product of matrices, rows."""
    firsts = [first for each in answers.values() for first, *_ in each.values()]
    matmul_flops = max(first["matmul_flops"] for first in firsts)
    return {
        "machine": {"device": firsts[0]["device"], **machine(PACKAGES)},
        "matmul_teraflops": round(matmul_flops / 1e12, 2),
        "rows": [
            row
            for case in answers
            for row in rows_of(case, answers[case], matmul_flops)
        ],
    }


def main() -> None:
    """Measures, prints the table, and writes the JSON file."""
    parser = make_parser(__doc__, "gpu")
    parser.add_argument("--variants", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--tiny", action="store_true", help="Ti/16 of 32 pixels")
    arguments = parser.parse_args()
    extent, models = FULL, [MODELS[name] for name in arguments.variants]
    if arguments.tiny:
        extent, models = SMALL, [TINY]
    cases = [
        Case(training, variant, pixels, batch, "bfloat16", threads=0)
        for variant, pixels, batch in models
        for training in (False, True)
    ]
    answers: dict[Case, Answers] = {}
    for case in cases:
        names = libraries_of(case, arguments.tiny)
        answers[case] = {name: measure(name, case, extent) for name in names}
        record = record_of(answers)
        write(record, arguments.output)
    rate = record["matmul_teraflops"]
    show(record["rows"], f"{rate} TFLOP/s in a product of matrices")


if __name__ == "__main__":
    main()
