"""Which architectures of other libraries open, and how exactly?

    python -m benchmarks.architectures    # all of them; about ten minutes

Every one is made by its library as a narrow copy with random weights, written by that
library in float32, by timm and transformers in bfloat16 too, and opened by
`from_preset`: its outputs are the same, or it is refused with the reason. `make parity`
does the same in pieces. Needs `pip install -e ".[parity]"`.
"""

from benchmarks import torch_libraries  # noqa: F401  isort: skip

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable, Iterator

from benchmarks.narrow_copies import Opened
from benchmarks.narrow_keras_hub import KERAS_HUB, compare_keras_hub
from benchmarks.narrow_meta import META, compare_meta
from benchmarks.narrow_open_clip import OPEN_CLIP, compare_open_clip
from benchmarks.narrow_timm import compare_timm, timm_names
from benchmarks.narrow_transformers import TRANSFORMERS, compare_transformers
from benchmarks.report import make_parser, show, write


def rows(folder: pathlib.Path) -> Iterator[Opened]:
    """All architectures, one after the other."""
    todo: list[Callable[[pathlib.Path], Opened]] = [
        functools.partial(compare_timm, name) for name in timm_names()
    ]
    todo += [functools.partial(compare_transformers, case) for case in TRANSFORMERS]
    todo += [functools.partial(compare_keras_hub, case) for case in KERAS_HUB]
    todo += [functools.partial(compare_open_clip, case) for case in OPEN_CLIP]
    todo += [functools.partial(compare_meta, case) for case in META]
    for number, compare in enumerate(todo):
        place = folder / str(number)
        place.mkdir()
        yield compare(place)


def main() -> None:
    """Print the table, and write it."""
    arguments = make_parser(__doc__ or "", "architectures").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = list(rows(pathlib.Path(folder)))
    show(
        [
            {
                "library": each.library,
                "architecture": each.name,
                **each.difference,
                "back": each.back,
                "refused": each.refused[:90],
            }
            for each in found
        ]
    )
    write([dataclasses.asdict(each) for each in found], arguments.output)


if __name__ == "__main__":
    main()
