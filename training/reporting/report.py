"""report.html: the results of a finished run on one page, and how to repeat it."""

import base64
import io
import math
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import keras
import numpy as np
from etils import epath
from PIL import Image

from keras_vit.common import file_names
from keras_vit.typing import Array

from .. import storage
from ..engine.run_folder import Report
from ..evaluation import attention_pictures as attention
from ..evaluation.evaluate import Evaluation
from ..evaluation.metrics import METRICS
from ..recipe import Recipe

PICTURES = {
    file_names.CURVES: "Curves",
    file_names.CONFUSION_MATRIX: "Confusion matrix",
    file_names.RELIABILITY: "Confidence and accuracy",
    file_names.MISCLASSIFIED: "Misclassified images",
    file_names.EXAMPLES: "Training images",
    file_names.RECONSTRUCTIONS: "What is predicted of masked patches",
}
MOST_CONFUSIONS = 20  # in the table of errors
TINY = 100  # images below this side, in pixels, are enlarged without smoothing


class Mistake(NamedTuple):
    """A misclassified image."""

    name: str  # such as the path of its file
    image: str  # a data URI
    heat: str | None  # the attention map as one; None for a model without
    tiny: bool  # whether it is smaller than `TINY` pixels
    true: str  # its class
    predicted: str  # the model's answer
    confidence: float  # the probability of that answer


def mistakes_of(
    model: keras.Model,
    evaluation: Evaluation,
    shown: Array,
    images: Sequence[Array],
    names: Sequence[str],
) -> list[Mistake]:
    """Misclassified images, uint8 [H, W, C] each, with the model's attention.

    `shown` are their indices; the names are those of all evaluated images.
    """
    maps = None
    if images and attention.has_attention(model):
        maps = attention.attention_maps(model, np.stack(images))
    mistakes = []
    for number, (index, image) in enumerate(zip(shown, images, strict=True)):
        heat = None
        if maps is not None:
            heat = _data_uri(attention.heat_map(maps[number], image.shape[:2]))
        predicted = evaluation.predictions[index]
        mistakes.append(
            Mistake(
                names[index],
                _data_uri(image),
                heat,
                min(image.shape[:2]) < TINY,
                evaluation.class_names[evaluation.labels[index]],
                evaluation.class_names[predicted],
                float(evaluation.probabilities[index, predicted]),
            )
        )
    return mistakes


def _data_uri(image: Array) -> str:
    """An image, uint8 [H, W, C], as a data URI."""
    kind = "png" if min(image.shape[:2]) < TINY else "jpeg"
    buffer = io.BytesIO()
    pixels = image[..., 0] if image.shape[-1] == 1 else image
    Image.fromarray(pixels).save(buffer, kind, quality=88)
    return _as_uri(buffer.getvalue(), kind)


def _as_uri(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def write_report(
    folder: epath.PathLike,
    result: Report,
    recipe: Recipe,
    history: Sequence[Mapping[str, float]],
    evaluation: Evaluation,
    mistakes: Sequence[Mistake] = (),
) -> None:
    """Write report.html with the pictures that are in the folder, in one file.

    `result` is the contents of report.json; `devices`, `device_name`,
    `images_per_second` and `accelerator_hours` may be absent.
    """
    folder = epath.Path(folder)
    names = evaluation.class_names
    write_page(
        folder / file_names.PAGE,
        "report.html",
        recipe.name,
        result["versions"],
        recipe=recipe,
        tiles=_known(_tiles(result)),
        figures=_known(_figures(result, recipe, history)),
        plots={name: picture(folder / name) for name in _existing(folder)},
        confusions=[
            (
                names[true],
                names[other],
                count,
                count / (evaluation.labels == true).sum(),
            )
            for true, other, count in evaluation.confusions(MOST_CONFUSIONS)
        ],
        mistakes=mistakes,
        classes=result["classes"],
        command=_command(folder),
    )


def write_pretraining_report(
    folder: epath.PathLike,
    result: Report,
    recipe: Recipe,
    history: Sequence[Mapping[str, float]],
) -> None:
    """Write report.html of a self-supervised run; see `write_report`."""
    folder = epath.Path(folder)
    best = result["best_epoch"]
    tiles = {
        "task": recipe.self_supervision.task.replace("_", " "),
        "validation loss": _share(best.get("val_loss")),
        "validation accuracy of colors": _share(best.get("val_patch_accuracy")),
        "images per second": _number(result.get("images_per_second")),
    }
    write_page(
        folder / file_names.PAGE,
        "pretraining.html",
        recipe.name,
        result["versions"],
        recipe=recipe,
        tiles=_known(tiles),
        figures=_known(_figures(result, recipe, history)),
        plots={name: picture(folder / name) for name in _existing(folder)},
        command=_command(folder),
    )


def write_page(
    path: epath.PathLike,
    template: str,
    title: str,
    versions: Mapping[str, str],
    **values: Any,
) -> None:
    """Write a page from a file in templates/, which uses the `values`."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = templates.get_template(template).render(
        title=title,
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **values,
    )
    storage.write_text(path, text)


def picture(path: epath.PathLike) -> str:
    """A PNG file as a data URI."""
    return _as_uri(epath.Path(path).read_bytes(), "png")


def _existing(folder: epath.Path) -> list[str]:
    return [name for name in PICTURES if (folder / name).exists()]


def _tiles(result: Report) -> dict[str, str | None]:
    """The figures at the top; None where one is unknown."""
    titles = {name: metric.title for name, metric in METRICS.items()}
    titles["accuracy"] = "test accuracy"  # that of validation is among the figures
    return {
        **{title: _share(result.get(name)) for name, title in titles.items()},
        "test images": _number(result["images"]),
        "images per second": _number(result.get("images_per_second")),
    }


def _figures(
    result: Report, recipe: Recipe, history: Sequence[Mapping[str, float]]
) -> dict[str, str | None]:
    best = result["best_epoch"]
    published = _share(recipe.published_accuracy)
    if recipe.reference and published is not None:
        published += f" ({recipe.reference})"
    return {
        "published accuracy": published,
        "best epoch": f"{best['epoch']:.0f} of {len(history)}",
        "its validation accuracy": _share(best.get("val_accuracy")),
        "training images": _number(result.get("training_images")),
        "invalid images skipped": _number(len(result.get("bad_images", ())) or None),
        "parameters": _number(result["parameters"]),
        "seconds of training and validation": _number(result["seconds"], 1),
        "images per second in the last epoch": _number(
            result.get("images_per_second"), 1
        ),
        **_devices(result),
    }


def _devices(result: Report) -> dict[str, str]:
    hours = result.get("accelerator_hours")
    if "devices" not in result or hours is None or math.isnan(hours):
        return {}
    name = result.get("device_name", "device")
    return {
        "devices": f"{result['devices']} x {name}",
        "accelerator-hours": f"{hours:.4g}",
        "core-days": f"{hours / 24:.4g} of {name} (the paper counts those of TPUv3)",
    }


def _known(figures: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in figures.items() if value is not None}


def _command(folder: epath.Path) -> str:
    config, output = str(folder / file_names.RECIPE), f"{folder}-again"
    return (
        f"keras-vit fit --config {shlex.quote(config)} "
        f"--output_dir {shlex.quote(output)}"
    )


def _share(value: float | None) -> str | None:
    return _number(value, 4)


def _number(value: float | None, digits: int = 0) -> str | None:
    """A number as text; None where it is unknown."""
    return None if value is None or math.isnan(value) else f"{value:,.{digits}f}"
