"""A model as a checkpoint of another project: Google .npz, timm, Hugging Face."""

import contextlib
import json
import os
import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.base import check_choice
from keras_vit.weights import configs
from keras_vit.weights.checkpoint import FAMILIES
from keras_vit.weights.report import CheckpointError
from keras_vit.weights.tables import Row, match_ours

WRITTEN = ("google", "timm", "hugging_face")
_POSITIONS = "position_embedding/embedding"


def save_checkpoint(
    model, path: str | os.PathLike[str], family: str = "google"
) -> list[pathlib.Path]:
    """Writes a model so that another project's code loads it.

    Files are written beside their place and renamed when they are complete. What is
    read back by `load_checkpoint` is bit-identical.

    Args:
        model: A `VisionTransformer`, or a `ResNet` (not for Hugging Face).
        path: For `"google"` an `.npz` file. For the others a folder, for
            `model.safetensors` and `config.json`.
        family: `"google"`, `"timm"` or `"hugging_face"`.

    Returns:
        The files that were written.

    Raises:
        CheckpointError: The family has no place for a part of the model, or computes
            it in another way. All reasons are listed; nothing is written.
        ValueError: `family` is none of the three, or `path` does not suit it.
    """
    check_choice("family", family, WRITTEN)
    path = pathlib.Path(path).expanduser()
    if (path.suffix == ".npz") != (family == "google"):
        wanted = "an .npz file" if family == "google" else "a folder"
        raise ValueError(
            f"`path` must be {wanted} for family={family!r}. Received: {str(path)!r}"
        )
    if problems := configs.problems(model, family):
        raise CheckpointError(
            f"The model must be one that {family} can hold. Received: {model.name!r}"
            + "".join(f"\n- {problem}" for problem in problems)
        )
    arrays = _their_arrays(model, family)
    if family == "google":
        with _replacing(path) as temporary:
            _write_npz(temporary, arrays)
        return [path]
    documents = configs.documents(model, family)
    return _write_folder(path, family, arrays, documents)


def _rows(model, family: str) -> tuple[Row, ...]:
    resnet = {"google": "bit", "timm": "timm_bit"}
    key = resnet[family] if hasattr(model, "blocks") else family
    return FAMILIES[key].rows


def _their_arrays(model, family: str) -> dict[str, np.ndarray]:
    """The model's weights under their names and in their layout."""
    heads = getattr(model, "heads", 1)
    parts: dict[str, dict[int, np.ndarray]] = {}
    for weight in model.weights:
        match = next(match_ours(_rows(model, family), weight.path), None)
        if match is None:
            raise CheckpointError(
                f"`family` must have a place for every weight. Received: "
                f"family={family!r}, which has none for {weight.path}"
            )
        row, name, part = match
        value = np.asarray(keras.ops.convert_to_numpy(weight), "float32")
        if weight.path == _POSITIONS and family != "timm":
            value = _with_prefix(value, model)
        name = configs.file_name(name, model, family)
        parts.setdefault(name, {})[part] = row.layout.write(value, heads)
    # safetensors writes the memory as it lies.
    return {
        name: np.ascontiguousarray(np.concatenate([f[part] for part in sorted(f)]))
        for name, f in parts.items()
    }


def _with_prefix(positions: np.ndarray, model) -> np.ndarray:
    """Zeros for the class token where the model gives it no position."""
    height, width = model.grid
    absent = model.prefix_tokens + height * width - positions.shape[1]
    return np.pad(positions, ((0, 0), (absent, 0), (0, 0)))


def _write_npz(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    # numpy.savez closes over all arrays at once; this holds one at a time.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _write_folder(
    folder: pathlib.Path,
    family: str,
    arrays: dict[str, np.ndarray],
    documents: dict[str, Any],
) -> list[pathlib.Path]:
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise ImportError(
            f'family={family!r} needs safetensors: pip install "keras-vit[convert]"'
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        # All are complete before the first is renamed.
        for name, document in documents.items():
            temporary = stack.enter_context(_replacing(folder / name))
            temporary.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
        temporary = stack.enter_context(_replacing(folder / "model.safetensors"))
        save_file(arrays, temporary, metadata={"format": "pt"})
    return [folder / name for name in ("model.safetensors", *documents)]


@contextlib.contextmanager
def _replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A path beside this one; what is written there takes its place at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
