"""Open a model, whatever holds it: a run, a file, a repository, a served version."""

import os
import pathlib
from typing import Any

from keras_vit.applications import PublishedModel
from keras_vit.base import ImageModel, check_is_ours
from keras_vit.classifier import ImageClassifier  # noqa: F401  registered with Keras
from keras_vit.common.file_names import model_file
from keras_vit.errors import WeightsFileError
from keras_vit.resnet import ResNet
from keras_vit.served_versions import is_version, open_version
from keras_vit.typing import StrPath
from keras_vit.vit import VisionTransformer
from keras_vit.weights.building import build_open_checkpoint, rebuild
from keras_vit.weights.checkpoint import open_checkpoint
from keras_vit.weights.families.registry import FAMILIES
from keras_vit.weights.keras_files import is_keras_file, load_keras_file
from keras_vit.weights.presets import check_exists, fetch, find_preset
from keras_vit.weights.stored_arrays import refusing

MODELS: dict[str, type[PublishedModel]] = {"vit": VisionTransformer, "resnet": ResNet}


def open_model(
    source: StrPath,
    resample: str = "google",
    grid: tuple[int, int] | None = None,
    **arguments: Any,
) -> ImageModel:
    """Open a model with its weights.

    Args:
        source: The folder of a run; a `.keras` file; a checkpoint of any family, or its
            folder; published weights, `"VARIANT:NAME"`; `"hf://owner/name"`; or the
            folder of a version that `keras-vit export` wrote.
        resample: How positions are resampled to another grid; see `load_checkpoint`.
        grid: (h, w) of a checkpoint's positions; see `load_checkpoint`.
        **arguments: Arguments of the model that replace the file's, such as
            `image_size` or `classes`.

    Returns:
        A `VisionTransformer` or a `ResNet`; an `ImageClassifier` from its own file.

    Raises:
        WeightsFileError: There is no such thing, or it is damaged or unknown.
        CheckpointError: The weights do not fit what is asked for.
        ValueError: An argument that the weights do not fit or follow.
    """
    name = os.fspath(source)
    path = model_file(pathlib.Path(name).expanduser())
    if not path.exists():
        if (row := find_preset(name)) is not None:
            model_class = MODELS[FAMILIES[row.family].model]
            return model_class.from_preset(
                name, resample=resample, grid=grid, **arguments
            )
        check_exists(name)
        path = fetch(name)
    if _is_ours(path):
        if grid is not None:
            raise ValueError(
                "`grid` must be None for a model of keras_vit, which states its own. "
                f"Received: grid={grid}, {name!r}"
            )
        model = _open_ours(path)
        return rebuild(model, resample, **arguments) if arguments else model
    with open_checkpoint(path) as checkpoint:
        model_class = MODELS[checkpoint.described.model]
        return build_open_checkpoint(model_class, checkpoint, arguments, resample, grid)


def holds_own_model(source: StrPath) -> bool:
    """Whether it is a run, a `.keras` file or a served version, not a checkpoint.

    What lies elsewhere is downloaded: a run that was pushed to the Hub is one, too.
    """
    return _is_ours(model_file(fetch(source)))


def _is_ours(path: pathlib.Path) -> bool:
    return is_keras_file(path) or is_version(path)


def _open_ours(path: pathlib.Path) -> ImageModel:
    if path.is_dir():
        return open_version(path, {cls.__name__: cls for cls in MODELS.values()})
    with refusing(path):
        model: ImageModel = load_keras_file(path)  # as is checked now
    try:
        check_is_ours(model)
    except ValueError as error:
        raise WeightsFileError(f"{path}: {error}") from None
    return model
