"""A finished run as a repository of Hugging Face: model files, card, pictures."""

import dataclasses
import json
import re
import shutil
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

import keras

import keras_vit
from keras_vit.common.atomic_files import replacing
from keras_vit.common.file_names import BEST_MODEL, RECIPE, REPORT
from keras_vit.weights.saving import incompatibilities

from ..architectures.model_reading import read_classifier
from ..engine import run_folder
from ..engine.early_checks import check_finished_run
from ..errors import RecipeError, RunError, TrainingError
from ..recipe import Recipe, load_recipe
from ..reporting.report import PICTURES
from .model_card import MODEL, ModelCard

# Both write model.safetensors and config.json; timm's code computes more of our models.
OTHER_LIBRARIES = ("timm", "hugging_face")
TOKEN = (
    " A token is needed that may write: `hf auth login`, or the environment variable "  # noqa: S105
    "HF_TOKEN"
)


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
        except Exception as error:  # of the hub, of its HTTP client  # noqa: BLE001
            reason = " ".join(str(error).split()).rstrip(".")
            status = getattr(getattr(error, "response", None), "status_code", None)
            hint = TOKEN if status in (401, 403) else ""
            raise TrainingError(
                f"{target}: {hub.constants.ENDPOINT} takes no upload: {reason}.{hint}"
            ) from None
    print(f'from_preset("{target}") loads it')


def _hub() -> ModuleType:
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
    recipe = _without_paths(load_recipe(run / RECIPE))
    report = json.loads((run / REPORT).read_text("utf-8"))
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
    (folder / RECIPE).write_text(recipe.to_yaml(), "utf-8")
    run_folder.write_report(folder / REPORT, report)
    card = ModelCard(name, model, recipe, report, library, license_id, pictures, notes)
    (folder / "README.md").write_text(card.readme(), "utf-8")


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
