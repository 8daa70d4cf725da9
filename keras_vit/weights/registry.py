"""The published files: where each is, how large, for what, and how good."""

import csv
import dataclasses
import functools
import importlib.resources

UNITS = {"B": 1, "MiB": 2**20, "GiB": 2**30}


@dataclasses.dataclass(frozen=True, repr=False)
class PublishedWeights:
    """One published file; `published.tsv` has one row for each, with the sources.

    Args:
        variant: The model, such as `"B/16"`, `"R50+L/32"` or `"R50x1"`.
        name: What `weights=` takes. It is timm's tag where timm has the file, with
            `@384` and the like where the images are not 224 pixels wide (the ResNets
            of BiT take any size and have that only where there are two files).
            `augreg_recommended_...` is the official recommendation where timm chose
            another file.
        family: Whose names the arrays have.
        classes: Number of classes, `None` without a classifier.
        image_size: Side of the images in pixels, of the best result in a ResNet.
        parameters: Number of weights of the model in the file.
        head: `"valid"`, `"zeros"` (emptied by the authors: for features only),
            `"unknown"` or `"none"`.
        size: Size of the file as it was published, such as `"393.69 MiB"`, or empty.
        top1: Published accuracy on ImageNet-1k's validation images in percent.
        source: Who measured it.
        url: Where the file is; `hf://owner/name` is a repository of Hugging Face.
    """

    variant: str
    name: str
    family: str
    classes: int | None
    image_size: int
    parameters: int
    head: str
    size: str
    top1: float | None
    source: str
    url: str

    def __repr__(self) -> str:
        result = "" if self.top1 is None else f", top-1 {self.top1} % ({self.source})"
        return (
            f"<{self.variant} {self.name!r}: {self.classes or 'no'} classes, "
            f"{self.image_size} px, {self.bytes / 2**20:.0f} MiB{result}>"
        )

    @property
    def bytes(self) -> int:
        """Size of the file: as published, else that of its float32 weights."""
        if not self.size:
            return 4 * self.parameters
        number, unit = self.size.split()
        return round(float(number) * UNITS[unit])

    def has_size(self, size: int) -> bool:
        """Whether a file of so many bytes can be this one."""
        if not self.size:  # names and headers of arrays come on top
            return 0 <= size - self.bytes <= 0.01 * self.bytes + 2**17
        number, unit = self.size.split()
        last_digit = UNITS[unit] / 10 ** len(number.partition(".")[2])
        return abs(size - self.bytes) <= max(last_digit, 0.001 * self.bytes)


@functools.cache
def _rows() -> tuple[PublishedWeights, ...]:
    file = importlib.resources.files(__package__).joinpath("published.tsv")
    lines = file.read_text("utf-8").splitlines()
    table = [line for line in lines if not line.startswith("#")]
    return tuple(map(_row, csv.DictReader(table, delimiter="\t")))


def _row(cells: dict[str, str]) -> PublishedWeights:
    return PublishedWeights(
        variant=cells["variant"],
        name=cells["name"],
        family=cells["family"],
        classes=int(cells["classes"]) if cells["classes"] else None,
        image_size=int(cells["image_size"]),
        parameters=int(cells["parameters"]),
        head=cells["head"],
        size=cells["size"],
        top1=float(cells["top1"]) if cells["top1"] else None,
        source=cells["source"],
        url=cells["url"],
    )


def list_weights(variant: str | None = None) -> list[PublishedWeights]:
    """The published files of one model, or of all.

    Args:
        variant: Such as `"B/16"`, `"R50+L/32"` or `"R50x1"`; all when absent.

    Raises:
        ValueError: Nothing is published for such a model.
    """
    rows = [row for row in _rows() if variant in (None, row.variant)]
    if not rows:
        variants = dict.fromkeys(repr(row.variant) for row in _rows())
        raise ValueError(
            f"`variant` must be one of {', '.join(variants)} for published weights. "
            f"Received: variant={variant!r}"
        )
    return rows


def find_weights(variant: str, name: str) -> PublishedWeights:
    """The published file of this name for a model.

    Args:
        variant: Such as `"B/16"`.
        name: Such as `"augreg_in21k_ft_in1k@384"`.

    Raises:
        ValueError: There is no such file for this model, or none at all.
    """
    rows = {row.name: row for row in list_weights(variant)}
    if name not in rows:
        raise ValueError(
            f"`weights` must be one of {', '.join(map(repr, rows))} for {variant}, "
            f"or a path. Received: weights={name!r}"
        )
    return rows[name]
