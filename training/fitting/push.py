"""A finished run as a repository of Hugging Face: model files, card, pictures."""

import dataclasses
import json
import re
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import keras

import keras_vit
from keras_vit.common.atomic_files import replacing
from keras_vit.common.file_names import BEST_MODEL
from keras_vit.weights.saving import incompatibilities

from ..architectures.model_reading import read_classifier
from ..engine import run_folder
from ..engine.early_checks import check_finished_run
from ..errors import RecipeError, RunError, TrainingError
from ..recipe import Recipe, load_recipe
from ..reporting.report import PICTURES

MODEL = "model.keras"
# Both write model.safetensors and config.json; timm's code computes more of our models.
OTHER_LIBRARIES = ("timm", "hugging_face")
TOKEN = (
    " A token is needed that may write: `hf auth login`, or the environment variable "
    "HF_TOKEN"
)
METRICS = {"accuracy": "accuracy", "top_5": "top-5 accuracy", "macro_f1": "macro F1"}


def push(
    run: Path,
    target: str,
    private: bool = False,
    license_id: str | None = None,
    dry_run: Path | None = None,
) -> None:
    """Upload a finished run, or write the folder that would be uploaded.

    Raises:
        TrainingError: The run is not finished, the target is not a repository, the
            folder exists, or the Hub refuses.
    """
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)", target)
    if match is None:
        raise RecipeError(f"push: must be hf://owner/name. Received: {target}")
    hub = _hub()
    if dry_run is not None:
        if dry_run.exists():
            raise RunError(f"{dry_run}: --dry_run needs a new folder")
        dry_run.parent.mkdir(parents=True, exist_ok=True)
        with replacing(dry_run) as written:
            write_repository(run, written, match[1], license_id)
        print(f"{dry_run}: what would be uploaded to {target}")
        return
    with tempfile.TemporaryDirectory() as temporary:
        write_repository(run, Path(temporary), match[1], license_id)
        try:
            api = hub.HfApi(library_name="keras-vit")
            api.create_repo(match[1], private=private, exist_ok=True)
            api.upload_folder(
                repo_id=match[1],
                folder_path=temporary,
                commit_message=f"Upload {run.name} with keras-vit",
            )
        except Exception as error:  # of the hub, of its HTTP client
            reason = " ".join(str(error).split()).rstrip(".")
            status = getattr(getattr(error, "response", None), "status_code", None)
            hint = TOKEN if status in (401, 403) else ""
            raise TrainingError(
                f"{target}: {hub.constants.ENDPOINT} takes no upload: {reason}.{hint}"
            ) from None
    print(f'from_preset("{target}") loads it')


def _hub() -> Any:
    try:
        import huggingface_hub
        import safetensors  # noqa: F401
    except ImportError:
        raise TrainingError(
            "push needs huggingface_hub and safetensors: "
            'pip install "keras-vit-serving[convert]"'
        ) from None
    return huggingface_hub


def write_repository(
    run: Path, folder: Path, name: str, license_id: str | None = None
) -> None:
    """Write a repository's files.

    Raises:
        RunError: The run is not finished.
    """
    check_finished_run(run)
    model = read_classifier(run / BEST_MODEL)
    recipe = _without_paths(load_recipe(run / run_folder.RECIPE))
    report = json.loads((run / run_folder.REPORT).read_text("utf-8"))
    for key in ("recipe", "bad_images"):  # they hold paths of this machine
        report.pop(key, None)
    folder.mkdir(parents=True, exist_ok=True)
    library = _other_library(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if library is not None:
            keras_vit.save_checkpoint(model, folder, library)
    # Of the form "folder: what its files cannot state".
    notes = [str(each.message).removeprefix(f"{folder}: ") for each in caught]
    shutil.copyfile(run / BEST_MODEL, folder / MODEL)
    pictures = [picture for picture in PICTURES if (run / picture).is_file()]
    for picture in pictures:
        shutil.copyfile(run / picture, folder / picture)
    (folder / run_folder.RECIPE).write_text(recipe.to_yaml(), "utf-8")
    run_folder.write_report(folder / run_folder.REPORT, report)
    data = _card_data(name, model, recipe, report, library, license_id)
    text = _card_text(name, model, recipe, report, library, license_id, pictures, notes)
    (folder / "README.md").write_text(f"---\n{data.to_yaml()}\n---\n\n{text}", "utf-8")


def _without_paths(recipe: Recipe) -> Recipe:
    """The recipe with names instead of paths, which may say whose machine it was."""
    source, weights = recipe.data.source, recipe.model.weights
    if source.startswith("folder:"):
        source = f"folder:{Path(source.removeprefix('folder:')).name}"
    if weights is not None and Path(weights).is_absolute():
        weights = Path(weights).name
    return dataclasses.replace(
        recipe,
        data=dataclasses.replace(recipe.data, source=source),
        model=dataclasses.replace(recipe.model, weights=weights),
    )


def _other_library(model: keras.Model) -> str | None:
    """Whose code computes the same, if any: `"timm"` or `"hugging_face"`."""
    if isinstance(model, keras_vit.ImageClassifier):
        return None
    for library in OTHER_LIBRARIES:
        if not incompatibilities(model, library):
            return library
    return None


def _card_data(name, model, recipe: Recipe, report, library, license_id) -> Any:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="image-classification",
            dataset_type=recipe.data.source.partition(":")[0],
            dataset_name=recipe.data.source,
            dataset_split="test",
            metric_type="f1" if metric == "macro_f1" else "accuracy",
            metric_name=title,
            metric_value=report[metric],
        )
        for metric, title in METRICS.items()
        if metric in report
    ]
    others = {"timm": ["timm"], "hugging_face": ["transformers"], None: []}[library]
    return ModelCardData(
        license=license_id,
        library_name="keras",
        pipeline_tag="image-classification",
        tags=["keras-vit", "vision-transformer", "image-classification", *others],
        metrics=["accuracy", "f1"],
        model_name=name.partition("/")[2],
        eval_results=results,
    )


def _card_text(
    name, model, recipe: Recipe, report, library, license_id, pictures, notes
) -> str:
    height, width = model.image_size
    rows = [
        f"| {title} | {report[metric]:.4f} |"
        for metric, title in METRICS.items()
        if metric in report
    ]
    kind = type(model).__name__
    names = ", ".join(model.class_names[:20])
    more = ", ..." if len(model.class_names) > 20 else ""
    parts = [
        f"# {name.partition('/')[2]}",
        recipe.description,
        f"A `keras_vit.{kind}` with {model.count_params():,} parameters, trained by "
        f"[keras-vit](https://pypi.org/project/keras-vit-serving/) on "
        f"`{recipe.data.source}`.",
        f"**Input**: images [B, {height}, {width}, {model.channels}], "
        f"{model.input_pixels}; the model normalizes them itself.\n\n"
        f"**Output**: logits of {model.classes} classes: {names}{more}.",
        "## Metrics",
        f"On {report['images']} test images of `{recipe.data.source}`:",
        "\n".join(["| metric | value |", "|---|---|", *rows]),
        *(f"![{PICTURES[picture]}]({picture})" for picture in pictures),
        "## How to load it",
        _loading(name, kind, library),
        *(f"{note}." for note in notes),
        "## Intended use and limits",
        "Classification of images like those that it was trained on, into the classes "
        "above: every image gets one of them, whatever it shows. The metrics hold for "
        "the test images alone. Check the model on images of your own, for each group "
        "of people or things that it will be used for, before it decides anything.",
        "## License",
        f"`{license_id}`" if license_id else "The author of the model states none.",
        "## Recipe",
        f"```yaml\n{recipe.to_yaml().strip()}\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _loading(name: str, kind: str, library: str | None) -> str:
    if kind == "ImageClassifier":
        lines = [
            "import keras, keras_vit, huggingface_hub",
            "",
            f'path = huggingface_hub.hf_hub_download("{name}", "{MODEL}")',
            "model = keras.models.load_model(path)",
        ]
    else:
        lines = [
            "import keras_vit",
            "",
            f'model = keras_vit.{kind}.from_preset("hf://{name}")',
        ]
    code = "\n".join(lines)
    text = f"```python\n{code}\nscores = model.predict(images)  # 0 to 255\n```"
    other = {
        "timm": f'timm.create_model("hf-hub:{name}", pretrained=True)',
        "hugging_face": f'ViTForImageClassification.from_pretrained("{name}")',
    }
    if library is None:
        return text
    package = {"timm": "timm", "hugging_face": "transformers"}[library]
    return (
        f"{text}\n\nWith {package}, which reads normalized pixels as its configuration "
        f"states:\n\n```python\n{other[library]}\n```"
    )
