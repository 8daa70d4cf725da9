"""Which architectures of other libraries open, from `benchmarks/architectures.json`."""

import json
import pathlib
import re

from markdown_table import table

RECORD = pathlib.Path(__file__).parents[1] / "benchmarks/architectures.json"
TITLES = {
    "timm": "timm",
    "transformers": "Hugging Face transformers",
    "keras_hub": "keras-hub",
    "open_clip": "OpenCLIP",
    "meta": "Meta's own files of DINOv2 and DINOv3",
}
HEADER = ["architecture", "differs by", "written back"]
REFUSED = ["architecture", "why it is refused"]


def page() -> str:
    """For each library those that open, then those that are refused."""
    record = json.loads(RECORD.read_text("utf-8"))
    libraries = dict.fromkeys(row["library"] for row in record)
    parts = []
    for library in libraries:
        rows = [row for row in record if row["library"] == library]
        opened = [row for row in rows if not row["refused"]]
        refused = [row for row in rows if row["refused"]]
        worst = max(max(row["difference"].values()) for row in opened)
        parts += [
            f"## {TITLES[library]}",
            f"{len(opened)} of {len(rows)} open; their outputs differ by at most "
            f"{worst:.1e} of the largest.",
            table(HEADER, map(_opened, opened)),
        ]
        if refused:
            parts.append(table(REFUSED, map(_refused, refused)))
    return "\n\n".join(parts) + "\n"


def _opened(row) -> list[str]:
    back = "no" if row["back"] is None else f"{row['back']:.0e}"
    difference = max(row["difference"].values())
    named = row["example"] and row["library"] != "timm"
    example = f": `{row['example']}`" if named else ""
    return [row["name"] + example, f"{difference:.0e}", back]


def _refused(row) -> list[str]:
    """The reason, without the path of the file that was tried."""
    reason = re.sub(r"'/[^']*'", "the file", row["refused"])
    _, _, received = reason.partition("Received: ")
    rule = reason.partition(". Received")[0]
    named = received.partition("whose config names ")[2]
    told = rule.startswith(("`path`", "`pooling`"))
    reason = named or received if told else rule
    return [row["name"], reason.replace("|", "\\|")]
