"""Do other libraries' models give the same logits through our loader, and back?

    python -m benchmarks.parity            # the published sizes; about five minutes
    python -m benchmarks.parity --small    # the same models in small; what tests run

Every model is built by its own library with all weights random, written by
that library, and read by `from_preset`; then ours is written by `save_checkpoint` and
read by the library. Needs `pip install -e ".[parity]"`.
"""

import dataclasses
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np

from benchmarks.parity_cases import CASES, Case
from benchmarks.parity_libraries import LIBRARIES
from benchmarks.report import make_parser, show, write

TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class Result:
    """What one case gave.

    Args:
        parameters: Of our model.
        logits: The largest of the library's logits, without sign.
        read: Largest difference of our logits from the library's.
        back: The same where the library reads what we wrote; None if it does not.
    """

    parameters: int
    logits: float
    read: float
    back: float | None


def compare(case: Case, small: bool, folder: pathlib.Path) -> Result:
    """Runs one case in both directions."""
    import keras_vit

    library = LIBRARIES[case.library]
    arguments = {**case.model, **(case.small if small else {})}
    image_size = case.small_image_size if small else case.image_size
    twin = library.build(arguments, image_size, 7 if small else 1000)
    random = np.random.default_rng(6)
    pixels = random.uniform(-1, 1, (2, *image_size, 3)).astype("float32")
    path = library.write(twin, folder / "theirs")
    expected = library.run(twin, pixels)
    del twin
    bit = case.title.startswith("BiT")
    model_class: Any = keras_vit.ResNet if bit else keras_vit.VisionTransformer
    model = model_class.from_preset(path, image_size=image_size)
    ours = np.asarray(model(pixels))
    back = None
    if case.back and library.read is not None:
        family = library.package.replace("transformers", "hugging_face")
        keras_vit.save_checkpoint(model, folder / "ours", family)
        twin = library.read(folder / "ours")
        back = float(np.abs(library.run(twin, pixels) - ours).max())
    return Result(
        model.count_params(),
        float(np.abs(expected).max()),
        float(np.abs(ours - expected).max()),
        back,
    )


def main() -> int:
    """Prints the table and writes `benchmarks/parity.json`."""
    parser = make_parser(__doc__, "parity")
    parser.add_argument("--small", action="store_true", help="small copies; no file")
    parser.add_argument("--only", default="", help="titles that contain this; no file")
    options = parser.parse_args()
    results = {}
    for case in CASES:
        name = f"{case.library}: {case.title}"
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = compare(case, options.small, pathlib.Path(folder))
        results[name] = dataclasses.asdict(result)
        print(f"{name}: {result.read:.1e}", file=sys.stderr)
    show([{"model": name, **row} for name, row in results.items()])
    if not (options.small or options.only):
        write(results, options.output)
    worst = max(max(r["read"], r["back"] or 0.0) for r in results.values())
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main())
