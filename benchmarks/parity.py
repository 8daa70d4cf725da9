"""Do other libraries' models give the same logits through our loader, and back?

    python -m benchmarks.parity            # the published sizes; about five minutes
    python -m benchmarks.parity --small    # the same models in small; what tests run

Every model is built by its own library with all weights random, written by
that library, and read by `from_preset`; then ours is written by `save_checkpoint` and
read by the library. Needs `pip install -e ".[parity]"`.
"""

import argparse
import dataclasses
import json
import pathlib
import tempfile
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.parity_cases import CASES, Case
from benchmarks.parity_libraries import LIBRARIES

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
    parser = argparse.ArgumentParser(description="Logits of other libraries' models.")
    parser.add_argument("--small", action="store_true", help="small copies")
    parser.add_argument("--only", default="", help="titles that contain this")
    arguments = parser.parse_args()
    console = Console()
    table = Table(caption="largest difference of two images' logits, float32")
    for heading in ("model", "library", "parameters", "logits", "read", "back"):
        table.add_column(
            heading, justify="left" if heading in ("model", "library") else "right"
        )
    results = {}
    for case in CASES:
        if arguments.only not in f"{case.library} {case.title}":
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = compare(case, arguments.small, pathlib.Path(folder))
        results[f"{case.library}: {case.title}"] = dataclasses.asdict(result)
        console.print(f"{case.library} {case.title}: {result.read:.1e}")
        table.add_row(
            case.title,
            case.library,
            f"{result.parameters:,}",
            f"{result.logits:.2f}",
            f"{result.read:.1e}",
            "" if result.back is None else f"{result.back:.1e}",
        )
    console.print(table)
    if not (arguments.small or arguments.only):
        path = pathlib.Path(__file__).with_suffix(".json")
        path.write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    worst = max(max(r["read"], r["back"] or 0.0) for r in results.values())
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main())
