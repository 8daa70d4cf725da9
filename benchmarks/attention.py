"""What do long sequences cost, in time and in memory, beside timm's flash attention?

    python -m benchmarks.attention [--quick] [--rounds 3]

B/16 with one image in a forward pass, S/16 with two in a training step, at 224 to 1,024
pixels (197 to 4,097 tokens). timm calls PyTorch's `scaled_dot_product_attention`. CPU
time of one thread; the libraries take turns, each in a process of its own. `time to
ours` above 1 means that keras-vit is faster. Memory is what the process grew by at its
peak after its imports. Needs timm: `pip install -e ".[parity]"`.
"""

from benchmarks.peer_models import Case
from benchmarks.turns import compare

LIBRARIES = ("keras-vit", "timm")
SIZES = (224, 384, 512, 768, 1024)


def contests(quick: bool) -> list[tuple[Case, tuple[str, ...]]]:
    """What is measured, and by whom."""
    return [
        (Case(training, variant, size, batch, dtype, threads=1), LIBRARIES)
        for training, variant, batch in ((False, "B/16", 1), (True, "S/16", 2))
        for dtype in ("float32", "bfloat16")
        for size in (SIZES[:3] if quick else SIZES)
    ]


if __name__ == "__main__":
    compare(__doc__, "attention", 3, "up to 512 pixels", contests)
