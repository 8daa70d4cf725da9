"""Save a model as a checkpoint of Google, timm or Hugging Face."""

import contextlib
import json
import pathlib
import warnings
import zipfile
from typing import Any

import keras
import numpy as np

from keras_vit.base import ImageModel, check_model
from keras_vit.checks import check_choice
from keras_vit.common.atomic_files import replacing
from keras_vit.errors import CheckpointError
from keras_vit.option_rows import rows
from keras_vit.options import REQUIRED
from keras_vit.typing import Array, Arrays, StrPath
from keras_vit.weights.checkpoint import FAMILIES
from keras_vit.weights.families.family import WritableFamily
from keras_vit.weights.families.layouts import ArrayRow, match_ours
from keras_vit.weights.grids import grid_metadata

# The family as which a project's models of each architecture are written.
WRITERS = {
    (family.project, family.model): family
    for family in FAMILIES.values()
    if isinstance(family, WritableFamily)
}
WRITTEN = tuple(dict.fromkeys(project for project, _ in WRITERS))


def incompatibilities(model: ImageModel, project: str) -> list[str]:
    """Reasons why a project's code would compute something else; empty for none.

    An option that the family does not claim to hold must have its default, so that one
    that is new is refused until a family says how it states it.

    Args:
        model: A `VisionTransformer` or a `ResNet`.
        project: `"google"`, `"timm"` or `"hugging_face"`.
    """
    family = WRITERS.get((project, model.architecture))
    if family is None:
        return [f"{project} has no {type(model).__name__}"]
    options = rows(model.options_class)
    needed = {name: getattr(model, name) for name in REQUIRED if name in options}
    usual = model.options_class(**needed, image_size=model.image_size)
    return [
        f"{name} must be {getattr(usual, name)!r}"
        for name, row in options.items()
        if not row.adaptable
        and name not in family.holds
        and getattr(model, name) != getattr(usual, name)
    ] + family.refusals(model)


_FILES = (".npz", ".safetensors", ".h5", ".keras")
_POSITIONS = "position_embedding/embedding"


def save_checkpoint(
    model: ImageModel, path: StrPath, family: str = "google"
) -> list[pathlib.Path]:
    """Save a model in the format of another project.

    Files are written beside their place and renamed when they are complete. What is
    read back by `load_checkpoint` is bit-identical. Warns of preprocessing that the
    family's files cannot state.

    Args:
        model: A `VisionTransformer`, or a `ResNet` (not for Hugging Face).
        path: For `"google"` an `.npz` file. For the others a folder, for
            `model.safetensors` and `config.json`.
        family: Of the projects `"google"`, `"timm"` and `"hugging_face"`.

    Returns:
        The files that were written.

    Raises:
        CheckpointError: The family has no place for a part of the model, or computes
            it in another way. All reasons are listed; nothing is written.
        ValueError: An unknown `family`, or a `path` that does not suit it.
        TypeError: `model` is another kind of model.
    """
    check_model(model)
    check_choice("family", family, WRITTEN)
    path = pathlib.Path(path).expanduser()
    problems = incompatibilities(model, family)
    writer = WRITERS.get((family, model.architecture), WRITERS[family, "vit"])
    if path.suffix != writer.suffix if writer.suffix else path.suffix in _FILES:
        wanted = f"an {writer.suffix} file" if writer.suffix else "a folder"
        raise ValueError(
            f"`path` must be {wanted} for family={family!r}. Received: {str(path)!r}"
        )
    places = {
        weight.path: place
        for weight in model.weights
        if (place := next(match_ours(writer.rows, weight.path), None)) is not None
    }
    if lost := [w.path for w in model.weights if w.path not in places]:
        problems.append(f"there is no place for {', '.join(lost)}")
    if problems:
        raise CheckpointError(
            f"The model must be one that {family} can hold. Received: {model.name!r}"
            + "".join(f"\n- {problem}" for problem in problems)
        )
    layer = model.preprocessing
    if layer is not None and (unsaid := writer.lost_preprocessing(layer)):
        warnings.warn(
            f"{path}: {family} cannot state the preprocessing's {', '.join(unsaid)}",
            stacklevel=2,
        )
    arrays = _their_arrays(model, writer, places)
    metadata = grid_metadata(model.grid) if _POSITIONS in places else {}
    if writer.suffix:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            _write_npz(temporary, arrays, metadata)
        return [path]
    return _write_folder(path, family, arrays, writer.documents(model), metadata)


def _their_arrays(
    model: ImageModel,
    writer: WritableFamily,
    places: dict[str, tuple[ArrayRow, str, int]],
) -> Arrays:
    """The model's weights under the family's names and in its layout."""
    heads = getattr(model, "heads", 1)
    parts: dict[str, dict[int, Array]] = {}
    for weight in model.weights:
        row, name, part = places[weight.path]
        value = np.asarray(keras.ops.convert_to_numpy(weight), "float32")
        if weight.path == _POSITIONS and 0 not in writer.prefix_positions(1):
            value = _with_prefix(value, model)
        name = writer.file_name(name, model)
        parts.setdefault(name, {})[part] = row.layout.write(value, heads)
    # safetensors writes the memory as it lies.
    return {
        name: np.ascontiguousarray(np.concatenate([f[part] for part in sorted(f)]))
        for name, f in parts.items()
    }


def _with_prefix(positions: Array, model: ImageModel) -> Array:
    """Zeros for the class token where the model gives it no position."""
    height, width = model.grid
    absent = model.prefix_tokens + height * width - positions.shape[1]
    return np.pad(positions, ((0, 0), (absent, 0), (0, 0)))


def _write_npz(path: pathlib.Path, arrays: Arrays, metadata: dict[str, str]) -> None:
    # numpy.savez closes over all arrays at once; this holds one at a time.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        # The only place that readers of .npz pass over: an array more, or another
        # member, would be one of the model's to them.
        archive.comment = json.dumps(metadata).encode() if metadata else b""
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _write_folder(
    folder: pathlib.Path,
    family: str,
    arrays: Arrays,
    documents: dict[str, Any],
    metadata: dict[str, str],
) -> list[pathlib.Path]:
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise ImportError(
            f"family={family!r} needs safetensors: "
            'pip install "keras-vit-serving[convert]"'
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        # All are complete before the first is renamed.
        for name, document in documents.items():
            temporary = stack.enter_context(replacing(folder / name))
            temporary.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
        temporary = stack.enter_context(replacing(folder / "model.safetensors"))
        # Not by its save_file, whose file only its owner may read.
        temporary.write_bytes(save(arrays, metadata={"format": "pt", **metadata}))
    return [folder / name for name in ("model.safetensors", *documents)]
