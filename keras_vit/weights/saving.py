"""Save a model as a checkpoint of Google, timm, Hugging Face or keras-hub."""

import contextlib
import dataclasses
import io
import json
import pathlib
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

import h5py
import keras
import numpy as np

from keras_vit.base import ImageModel, check_model
from keras_vit.checks import check_choice
from keras_vit.common.atomic_files import replacing
from keras_vit.errors import CheckpointError
from keras_vit.option_rows import rows
from keras_vit.options import REQUIRED
from keras_vit.typing import Array, Arrays, StrPath
from keras_vit.weights.families.family import WritableFamily
from keras_vit.weights.families.layouts import ArrayRow, match_ours
from keras_vit.weights.families.registry import FAMILIES
from keras_vit.weights.grids import grid_metadata
from keras_vit.weights.reading import FOLDER_FILES, ArrayFile

# The families as which a project's models of each architecture are written.
WRITERS: dict[tuple[str, str], list[WritableFamily]] = {}
for _family in FAMILIES.values():
    if isinstance(_family, WritableFamily):
        WRITERS.setdefault((_family.project, _family.model), []).append(_family)
WRITTEN = tuple(dict.fromkeys(project for project, _ in WRITERS))


def incompatibilities(model: ImageModel, project: str) -> list[str]:
    """Reasons why a project's code would compute something else; empty for none.

    Of a project with several families that have no place for the model, those of the
    one that has the fewest.

    Args:
        model: A `VisionTransformer` or a `ResNet`.
        project: `"google"`, `"timm"`, `"hugging_face"` or `"keras_hub"`.
    """
    return writer_of(model, project)[1]


def writer_of(
    model: ImageModel, project: str
) -> tuple[WritableFamily | None, list[str]]:
    """The family of a project that a model is written as, and why it cannot be."""
    found = [
        (family, _problems(model, family))
        for family in WRITERS.get((project, model.architecture), ())
    ]
    if not found:
        return None, [f"{project} has no {type(model).__name__}"]
    return min(found, key=lambda each: len(each[1]))


def _problems(model: ImageModel, family: WritableFamily) -> list[str]:
    """Why a family's code would compute something else.

    What its documents state is read back, and must be what the model has. An option
    that neither they nor the family itself state must have its default, so that one
    that is new is refused until a family says how it states it.
    """
    found = family.refusals(model)
    stated = dict(family.always)
    try:
        stated |= _read_back(family, model)
    except ValueError as error:
        found.append(str(error))
    except LookupError:  # what `refusals` names
        pass
    options = rows(model.options_class)
    needed = {name: getattr(model, name) for name in REQUIRED if name in options}
    usual = model.options_class(**needed, image_size=model.image_size)
    for name, row in options.items():
        ours = getattr(model, name)
        if name == "gelu" and model.swiglu and model.pooling != "map":
            continue  # nothing computes it
        if name in stated:
            theirs = stated[name]
        elif row.adaptable or name in family.holds or name in REQUIRED:
            continue  # the arrays show it
        else:
            theirs = getattr(usual, name)
        if name == "layer_scale":
            same = (theirs is None) == (ours is None)
        else:
            same = bool(theirs == ours)
        if not same:
            found.append(f"{name} must be {theirs!r}")
    lost = [w.path for w in model.weights if not _places(family, model, w.path)]
    if lost:
        found.append(f"there is no place for {', '.join(lost)}")
    return found


Place = tuple[ArrayRow, str, int]  # a row, its array's name, and which of its parts


def _places(family: WritableFamily, model: ImageModel, path: str) -> list[Place]:
    """Where a weight goes: one array, or two that hold its halves."""
    weights = {weight.path for weight in model.weights}
    matches = list(match_ours(family.written_rows(model), path, weights))
    halves = {row.half: (row, name, part) for row, name, part in reversed(matches)}
    if matches and matches[0][0].half is not None:
        return [halves[0], halves[1]]
    return matches[:1]


@dataclasses.dataclass
class _Unwritten(ArrayFile):
    """The file of a model whose documents are not written yet, without its arrays."""

    documents: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def beside(self, name: str) -> dict[str, Any]:
        """One of the documents, {} if absent."""
        document: dict[str, Any] = self.documents.get(name, {})
        return document


def _read_back(family: WritableFamily, model: ImageModel) -> dict[str, Any]:
    """What the family's documents of a model state."""
    with _Unwritten(
        *(pathlib.Path(), "", {}, {}, contextlib.ExitStack()),
        documents=family.documents(model),
    ) as file:
        return {name: each.value for name, each in family.stated(file).items()}


_FILES = (".npz", ".safetensors", ".h5", ".keras")
_POSITIONS = "position_embedding/embedding"


def save_checkpoint(
    model: ImageModel, path: StrPath, family: str = "google"
) -> list[pathlib.Path]:
    """Save a model in the format of another project.

    Files are written beside their place and renamed when they are complete. What is
    read back by `load_checkpoint` is bit-identical. Warns of preprocessing, names of
    classes and an activation of the classifier that the family's files cannot state.

    Args:
        model: A `VisionTransformer`, or a `ResNet` (not for Hugging Face).
        path: For `"google"` an `.npz` file. For the others a folder, for
            `config.json` and `model.safetensors`; for `"keras_hub"` a preset, with
            `model.weights.h5`.
        family: Of the projects `"google"`, `"timm"`, `"hugging_face"` and
            `"keras_hub"`.

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
    writer, problems = writer_of(model, family)
    shape = writer or WRITERS[family, "vit"][0]
    if path.suffix != shape.suffix if shape.suffix else path.suffix in _FILES:
        wanted = f"an {shape.suffix} file" if shape.suffix else "a folder"
        raise ValueError(
            f"`path` must be {wanted} for family={family!r}. Received: {str(path)!r}"
        )
    if problems or writer is None:
        raise CheckpointError(
            f"The model must be one that {family} can hold, such as a {shape.title}. "
            f"Received: {model.name!r}"
            + "".join(f"\n- {problem}" for problem in problems)
        )
    for lost in _unstated(model, writer):
        warnings.warn(f"{path}: {family} cannot state {lost}", stacklevel=2)
    files = _their_files(model, writer)
    learned = any(weight.path == _POSITIONS for weight in model.weights)
    metadata = grid_metadata(model.grid) if learned else {}
    if writer.suffix:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            (arrays,) = files.values()
            _write_npz(temporary, arrays, metadata)
        return [path]
    contents = {
        name: _hdf5(arrays)
        if name.endswith(".h5")
        else _safetensors(family, arrays, metadata)
        for name, arrays in files.items()
    }
    for name, document in writer.documents(model).items():
        contents[name] = f"{json.dumps(document, indent=2)}\n".encode()
    _check_no_others(path, contents, writer.optional)
    return _write_folder(path, contents)


def _unstated(model: ImageModel, writer: WritableFamily) -> list[str]:
    """Settings beside the weights for which a family's documents have no place."""
    found = []
    layer = model.preprocessing
    if layer is not None and (lost := writer.lost_preprocessing(layer)):
        found.append(f"the preprocessing's {', '.join(lost)}")
    if model.class_names is not None and not writer.names_classes:
        found.append("class_names")
    activation = None if model.classes is None else model.classifier_activation
    if activation and "classifier_activation" not in _read_back(writer, model):
        found.append(f"classifier_activation={activation!r}, and gives logits")
    return found


def _their_files(model: ImageModel, writer: WritableFamily) -> dict[str, Arrays]:
    """The family's arrays by their names in each of its files."""
    bare = _their_arrays(model, writer)
    files: dict[str, Arrays] = {}
    for name, array in {**bare, **writer.further_arrays(bare, model)}.items():
        of = (file for file, names in writer.files.items() if re.fullmatch(names, name))
        files.setdefault(next(of), {})[writer.file_name(name, model)] = array
    return files


def _their_arrays(model: ImageModel, writer: WritableFamily) -> Arrays:
    """The model's weights under the family's names inside it, and in its layout."""
    heads = getattr(model, "heads", 1)
    parts: dict[str, dict[int, Array]] = {}
    for weight in model.weights:
        whole = np.asarray(keras.ops.convert_to_numpy(weight), "float32")
        if weight.path == _POSITIONS:
            whole = _with_prefix(whole, model, writer)
        for row, name, part in _places(writer, model, weight.path):
            value = whole
            if row.half is not None:
                value = np.split(whole, 2, axis=-1)[row.half]
            parts.setdefault(name, {})[part] = row.layout.write(value, heads)
    # safetensors writes the memory as it lies.
    return {
        name: np.ascontiguousarray(np.concatenate([f[part] for part in sorted(f)]))
        if len(f) > 1
        else np.ascontiguousarray(f[0])
        for name, f in parts.items()
    }


def _with_prefix(positions: Array, model: ImageModel, writer: WritableFamily) -> Array:
    """Zeros for prefix tokens that have a position there, and none in the model."""
    height, width = model.grid
    covered = writer.prefix_positions(model.prefix_tokens)
    ours = positions.shape[1] - height * width
    absent = 0 if ours in covered or not model.prefix_tokens else covered[0] - ours
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


def _check_no_others(
    folder: pathlib.Path, written: Iterable[str], optional: tuple[str, ...]
) -> None:
    """Raise ValueError for files that would be read with those that are written."""
    kinds = [not set(names).isdisjoint(written) for names in FOLDER_FILES]
    first = [name for names in FOLDER_FILES[: kinds.index(True) + 1] for name in names]
    others = [name for name in (*first, *optional) if (folder / name).exists()]
    if lasting := [name for name in others if name not in written]:
        raise ValueError(
            "`path` must be a folder without files that would be read as the model's. "
            f"Received: {str(folder)!r} with {', '.join(lasting)}"
        )


def _write_folder(
    folder: pathlib.Path, contents: Mapping[str, bytes]
) -> list[pathlib.Path]:
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        # All are complete before the first is renamed.
        for name, content in contents.items():
            stack.enter_context(replacing(folder / name)).write_bytes(content)
    return [folder / name for name in contents]


def _safetensors(family: str, arrays: Arrays, metadata: dict[str, str]) -> bytes:
    """Not by its library's `save_file`, whose file only its owner may read."""
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise ImportError(
            f"family={family!r} needs safetensors: "
            'pip install "keras-vit-serving[convert]"'
        ) from error
    content: bytes = save(arrays, metadata={"format": "pt", **metadata})
    return content


def _hdf5(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return buffer.getvalue()
