"""The tables of published weights, from the registry that the code uses."""

import itertools

from markdown_table import table

from keras_vit.weights import list_weights

HEADER = ["name", "classes", "pixels", "parameters", "size", "top-1 %", "source"]


def page() -> str:
    """One table per model, in the registry's order."""
    rows = list_weights()
    parts = [f"{len(rows)} files of {len({row.variant for row in rows})} models."]
    for variant, files in itertools.groupby(rows, key=lambda row: row.variant):
        parts += [f"## {variant}", table(HEADER, map(_cells, files))]
    return "\n\n".join(parts) + "\n"


def _cells(row) -> list[str]:
    top1 = "" if row.top1 is None else f"{row.top1:.2f}"
    return [
        f"`{row.name}`",
        f"{row.classes:,}" if row.classes else "none",
        str(row.image_size),
        f"{row.parameters / 1e6:.1f} M",
        f"{row.bytes / 2**20:,.0f} MiB",
        top1,
        row.source,
    ]
