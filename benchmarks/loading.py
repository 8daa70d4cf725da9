"""How long does loading a model take, and how much memory, beside timm and NumPy?

    python -m benchmarks.loading [--size L/16] [--rounds 5] [--output FILE.json]

One file of random float32 weights as an .npz with Google's names and one as a
.safetensors with timm's, in a temporary folder, both in the operating system's cache.
Each load runs in a fresh process, after its model is built; the readers take turns, and
the best of the rounds counts. NumPy only reads the arrays as they are in the file, by
`numpy.load` and `safetensors.numpy.load_file`; into our model every matrix of timm's
goes transposed.

Memory is the highest anonymous memory (RssAnon) while loading, over what the process
had when the model was built. Pages of the mapped file do not count: the system takes
them back whenever it needs them. timm needs `pip install -e ".[parity]"`.
"""

import importlib.util
import multiprocessing
import os
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from benchmarks.peer_models import TIMM
from benchmarks.report import make_parser, show, write

SPAWN = multiprocessing.get_context("spawn")


def prepare(size: str, folder: pathlib.Path) -> None:
    """Writes both files, and the size of the largest array."""
    import keras_vit

    model = keras_vit.VisionTransformer.from_variant(size)
    random = np.random.default_rng(0)
    for weight in model.weights:
        numbers = random.standard_normal(tuple(weight.shape), dtype="float32")
        weight.assign(np.float32(0.02) * numbers)
    keras_vit.save_checkpoint(model, folder / "model.npz", "google")
    keras_vit.save_checkpoint(model, folder / "timm", "timm")
    largest = max(4 * int(np.prod(weight.shape)) for weight in model.weights)
    (folder / "largest").write_text(str(largest))


def numpy_loader(size: str, path: pathlib.Path) -> Callable[[], object]:
    """Reads the file's arrays, and nothing else."""
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return lambda: load_file(path)

    def read():
        with np.load(path) as file:
            return [file[name] for name in file.files]

    return read


def keras_vit_loader(size: str, path: pathlib.Path) -> Callable[[], object]:
    """Builds the model; loads the file."""
    import keras_vit

    model = keras_vit.VisionTransformer.from_variant(size)
    return lambda: keras_vit.load_checkpoint(model, path)


def timm_loader(size: str, path: pathlib.Path) -> Callable[[], object]:
    """Builds timm's model; loads the file as timm does."""
    from benchmarks import torch_libraries  # noqa: F401  isort: skip
    import timm
    from safetensors.torch import load_file

    model: Any = timm.create_model(TIMM[size])
    if path.suffix == ".npz":
        return lambda: model.load_pretrained(str(path))
    return lambda: model.load_state_dict(load_file(path))


LOADERS = {"numpy": numpy_loader, "keras_vit": keras_vit_loader, "timm": timm_loader}


def serve(reader: str, size: str, path: pathlib.Path, parent) -> None:
    """The fresh process: builds, says so, loads when told, sends the seconds."""
    load = LOADERS[reader](size, path)
    parent.send("ready")
    parent.recv()
    start = time.perf_counter()
    _kept = load()
    parent.send(time.perf_counter() - start)


def anonymous_bytes(process: int | None) -> int:
    """Memory of a process that no file stands behind."""
    for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise OSError("This system's /proc has no RssAnon")


def measure(reader: str, size: str, path: pathlib.Path) -> tuple[float, int]:
    """Seconds, and bytes at the peak over those before."""
    child, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=serve, args=(reader, size, path, theirs))
    process.start()
    theirs.close()
    child.recv()
    before = peak = anonymous_bytes(process.pid)
    child.send("go")
    while not child.poll(0.0005):
        peak = max(peak, anonymous_bytes(process.pid))
    seconds = child.recv()
    process.join()
    return seconds, peak - before


def rows_of(size: str, rounds: int, folder: pathlib.Path) -> list[dict]:
    """Measures every reader on both files."""
    readers = [r for r in LOADERS if r != "timm" or importlib.util.find_spec("timm")]
    largest = int((folder / "largest").read_text())
    rows = []
    for path in (folder / "model.npz", folder / "timm" / "model.safetensors"):
        found: dict[str, list[tuple[float, int]]] = {reader: [] for reader in readers}
        for _ in range(rounds):
            for reader in readers:
                found[reader].append(measure(reader, size, path))
        numpy_seconds = min(found["numpy"])[0]
        for reader in readers:
            seconds = min(seconds for seconds, _ in found[reader])
            memory = max(memory for _, memory in found[reader])
            rows.append(
                {
                    "file": path.suffix,
                    "reader": reader,
                    "seconds": round(seconds, 3),
                    "ratio_to_numpy": round(seconds / numpy_seconds, 2),
                    "peak_mib": round(memory / 2**20, 1),
                    "peak_to_largest_array": round(memory / largest, 2),
                }
            )
    return rows


def main() -> None:
    """Measures, prints the table, and writes the JSON file."""
    parser = make_parser(__doc__, "loading", rounds=5)
    parser.add_argument("--size", default="L/16", choices=TIMM)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        writer = SPAWN.Process(target=prepare, args=(options.size, folder))
        writer.start()
        writer.join()
        rows = rows_of(options.size, options.rounds, folder)
    show(rows, f"Loading ViT-{options.size}")
    write({"size": options.size, "rows": rows}, options.output)


if __name__ == "__main__":
    main()
