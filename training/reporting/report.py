"""report.md: the results of a finished run, its pictures, and how to repeat it."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from etils import epath

from .. import storage
from ..recipe import Recipe

MOST_CLASSES = 50  # in the table of classes
NONE = "-"
PICTURES = {
    "curves.png": "Curves",
    "confusion_matrix.png": "Confusion matrix",
    "misclassified.png": "Misclassified images",
    "examples.png": "Training images",
}


def write_markdown(
    folder: epath.PathLike,
    result: Mapping[str, Any],
    recipe: Recipe,
    history: Sequence[Mapping[str, float]],
) -> None:
    """Write report.md, which shows the pictures that are in the folder.

    Args:
        folder: The run's folder.
        result: The contents of report.json. `devices`, `device_name`,
            `images_per_second` and `accelerator_hours` may be absent.
        recipe: The run's recipe.
        history: One row for each epoch.
    """
    folder = epath.Path(folder)
    parts = [
        f"# {_escape(recipe.name)}",
        _escape(recipe.description),
        _table(["figure", "value"], _figures(result, recipe, history)),
        *_pictures(folder),
        _classes(result["classes"]),
        _reproduction(folder, recipe),
        _provenance(result),
    ]
    text = "\n\n".join(part for part in parts if part)
    storage.write_text(folder / "report.md", text + "\n")


def _figures(result, recipe: Recipe, history) -> list[list[str]]:
    """Rows of names and values, without unknown values."""
    best = result["best_epoch"]
    published = _share(recipe.published_accuracy)
    if recipe.reference and published != NONE:
        published += f" ({_escape(recipe.reference)})"
    rows = {
        "test accuracy": _share(result["accuracy"]),
        "published accuracy": published,
        "top-5 accuracy": _share(result.get("top_5")),
        "macro F1": _share(result["macro_f1"]),
        "best epoch": f"{best['epoch']:.0f} of {len(history)}",
        "its validation accuracy": _share(best.get("val_accuracy")),
        "training images": _number(result.get("training_images")),
        "test images": _number(result["images"]),
        "invalid images skipped": _number(len(result.get("bad_images", ())) or None),
        "parameters": _number(result["parameters"]),
        "seconds of training and validation": _number(result["seconds"], 1),
        "images per second (last epoch)": _number(result.get("images_per_second"), 1),
        **_devices(result),
    }
    return [[name, value] for name, value in rows.items() if value != NONE]


def _devices(result) -> dict[str, str]:
    hours = result.get("accelerator_hours")
    if "devices" not in result or _unknown(hours):
        return {}
    name = _escape(result.get("device_name", "device"))
    return {
        "devices": f"{result['devices']} x {name}",
        "accelerator-hours": f"{hours:.4g}",
        "core-days": f"{hours / 24:.4g} of {name} (the paper counts those of TPUv3)",
    }


def _pictures(folder: epath.Path) -> list[str]:
    return [
        f"## {title}\n\n![{title}]({name})"
        for name, title in PICTURES.items()
        if (folder / name).exists()
    ]


def _classes(classes: Mapping[str, Mapping[str, float]]) -> str:
    """The table of classes; of many only those of lowest F1."""
    rows = list(classes.items())
    note = ""
    if len(rows) > MOST_CLASSES:
        # Classes without images last.
        rows.sort(key=lambda row: (row[1]["support"] == 0, row[1]["f1"]))
        rows = rows[:MOST_CLASSES]
        note = f"The {len(rows)} classes of lowest F1, of {len(classes)}.\n\n"
    cells = [
        [
            _escape(name),
            *(_share(scores[key]) for key in ("precision", "recall", "f1")),
            _number(scores["support"]),
        ]
        for name, scores in rows
    ]
    header = ["class", "precision", "recall", "F1", "images"]
    return f"## Classes\n\n{note}{_table(header, cells)}"


def _reproduction(folder: epath.Path, recipe: Recipe) -> str:
    config, output = str(folder / "recipe.yaml"), f"{folder}-again"
    return f"""## Reproduce this run

```
keras-vit fit --config {shlex.quote(config)} --output_dir {shlex.quote(output)}
```

<details><summary>The recipe, every value written out</summary>

```yaml
{recipe.to_yaml()}```

</details>"""


def _provenance(result) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"Written on {now} by {_escape(versions)}."


def _table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; all columns but the first are right-aligned."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _unknown(value: float | None) -> bool:
    return value is None or math.isnan(value)


def _share(value: float | None) -> str:
    return NONE if _unknown(value) else f"{value:.4f}"


def _number(value: float | None, digits: int = 0) -> str:
    return NONE if _unknown(value) else f"{value:,.{digits}f}"


def _escape(text: str) -> str:
    """Escape Markdown's special characters, and join lines."""
    return re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", " ".join(text.split()))
