"""How long does a folder of many images take to open?

    python -m benchmarks.opening [--files 100000] [--output FILE.json]

Small JPEG files in 100 class folders, each opening in a process of its own. Memory is
what the process takes more than before the opening. Keras's function lists the files
and checks none; "all decoded" is an opening with `on_bad_image="skip"`, as often as the
files change.
"""

import io
import pathlib
import resource
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.processes import Process, answer
from benchmarks.report import make_parser, show, write

CLASSES = 100
# Each has the name of a function of this file, and follows the one above.
OPENINGS = {
    "Keras, names alone": "keras_names",
    "ours, first": "ours",
    "ours, second": "ours",
    "ours, all decoded, first": "ours_decoded",
    "ours, all decoded, second": "ours_decoded",
}


def make_folder(root: pathlib.Path, files: int) -> None:
    """Write JPEG files of 64x48 pixels, all with other contents."""
    random = np.random.default_rng(0)
    for number in range(files):
        pixels = random.integers(0, 256, (8, 8, 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).resize((64, 48)).save(buffer, "JPEG", quality=80)
        folder = root / f"class_{number % CLASSES:03}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"image_{number:07}.jpg").write_bytes(buffer.getvalue())


def openers() -> dict[str, Callable[[str], Any]]:
    """The functions that open a folder, with TensorFlow imported and used once."""
    import keras
    import tensorflow as tf

    from training.data.folder import open_folder

    tf.constant(["warm"])
    return {
        "keras_names": lambda root: keras.utils.image_dataset_from_directory(
            root, verbose=False
        ),
        "ours": open_folder,
        "ours_decoded": lambda root: open_folder(root, on_bad_image="skip"),
    }


def measured(opener: str, root: str) -> dict[str, float]:
    """Seconds and megabytes of one opening."""
    function = openers()[opener]
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    function(root)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": _cpu(after) - _cpu(before),
        "memory_mb": (after.ru_maxrss - before.ru_maxrss) / 1024,
    }


def _cpu(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measures, prints the table, and writes the JSON file."""
    parser = make_parser(__doc__, "opening")
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--answer", action="store_true")
    options = parser.parse_args()
    if options.answer:
        answer(measured)
        return
    rows = []
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place, "images")
        make_folder(root, options.files)
        for name, opener in OPENINGS.items():
            environment = {"KERAS_HOME": f"{place}/{opener}"}
            with Process("benchmarks.opening", "--answer", **environment) as process:
                figures = process.ask(opener, str(root))
            rows.append({"opening": name, "files": options.files, **figures})
            show(rows[-1:])
    show(rows)
    write(rows, options.output)


if __name__ == "__main__":
    main()
