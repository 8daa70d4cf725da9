"""How fast is a forward pass on CPU, beside what a user would take instead?

    python -m benchmarks.forward [--quick] [--output FILE.json]

GFLOP/s of CPU time with one thread, and of wall time with all cores, where every block
computes all tokens (keras-vit's last one does not); the libraries take turns, each in a
process of its own, and the best of the rounds counts. `time to ours` above 1 means that
keras-vit is faster. Memory is what the process grew by at its peak after its imports
(TensorFlow's take 810 MB, PyTorch's 340); onnxruntime's contains the conversion, and in
int8 the quantization, on random images. All compute the same GELU: the exact one, which
is the peers' default, or its approximation by tanh, which is the paper's (keras-hub has
the exact one alone); in rows without a `gelu`, which are older, each its own default.
With `TF_ENABLE_ONEDNN_OPTS=0` in the environment, TensorFlow does without oneDNN, and
the figures are those of another processor.
Needs the peers: `pip install -e ".[parity,formats]"`.
"""

import itertools
import os
from collections.abc import Iterable

from benchmarks.peer_models import KINDS, Case
from benchmarks.turns import compare

LIBRARIES = ("keras-vit", "timm", "timm, torch.compile", "transformers", "keras-hub")
# Of timm's file, and of ours.
ONNX = ("onnxruntime", "onnxruntime, int8", "keras-vit, ONNX", "keras-vit, ONNX int8")
DTYPES = ("float32", "bfloat16")


def contests(quick: bool) -> Iterable[tuple[Case, tuple[str, ...]]]:
    """What is measured, and by whom."""
    cases = [
        Case(False, variant, 224, batch, dtype, 1, "exact")
        for variant, batch, dtype in itertools.product(
            ("S/16", "B/16"), (8,) if quick else (1, 8, 32), DTYPES
        )
    ]
    cases += [
        Case(False, variant, 224, 8, dtype, 1, "tanh")
        for variant, dtype in itertools.product(("S/16", "B/16"), DTYPES)
    ]
    # Models of other families: all their tokens.
    others = (("DINOv3 B/16", 224), ("DINOv3 B/16", 512), ("CLIP L/14", 224))
    cases += [
        Case(False, variant, pixels, 8 if pixels == 224 else 1, dtype, 1)
        for (variant, pixels), dtype in itertools.product(others, DTYPES)
    ]
    if not quick:
        cores = os.cpu_count() or 1
        cases += [
            Case(False, "B/16", 224, 8, dtype, cores, "exact") for dtype in DTYPES
        ]
    return [(case, _libraries(case)) for case in cases]


def _libraries(case: Case) -> tuple[str, ...]:
    if case.variant in KINDS:
        return LIBRARIES[:-1]
    names = LIBRARIES if case.gelu == "exact" else LIBRARIES[:-1]
    return (*names, *ONNX) if case.dtype == "float32" else names


if __name__ == "__main__":
    compare(__doc__, "forward", 5, "batch 8, one thread", contests)
