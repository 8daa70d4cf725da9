"""`manifest.json` of a version: where it comes from, what it answers, its checksums."""

import hashlib
import json
import pathlib
from typing import Any

from ..errors import ExportError

# TensorFlow Serving leaves what is in assets.extra alone.
PATH = pathlib.PurePath("assets.extra", "manifest.json")
FORMAT = 1

Manifest = dict[str, Any]


def write(folder: pathlib.Path, facts: Manifest) -> Manifest:
    """Writes the manifest, with the size and sha256 of every other file.

    Args:
        folder: A version that is complete but for its manifest.
        facts: What is to be told about it, in that order.

    Returns:
        The manifest.
    """
    manifest = {"format": FORMAT, **facts, "files": _digests(folder)}
    path = folder / PATH
    path.parent.mkdir(exist_ok=True)
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    return manifest


def read(folder: pathlib.Path) -> Manifest | None:
    """The manifest of a version; None where there is none.

    Raises:
        ExportError: It cannot be read, or is of another format.
    """
    path = folder / PATH
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ExportError(f"{path}: not readable: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ExportError(f"{path}: not a manifest of format {FORMAT}")
    return manifest


def damage(folder: pathlib.Path) -> list[str]:
    """What of a version's files is not as it was when it was published.

    Args:
        folder: The version.

    Returns:
        A sentence for each file that is missing, changed or new; none is good.

    Raises:
        ExportError: There is no readable manifest.
    """
    manifest = read(folder)
    if manifest is None:
        raise ExportError(f"{folder}: has no {PATH}, so that nothing can be compared")
    before, now = manifest["files"], _digests(folder)
    return [
        *(f"{name}: missing" for name in before if name not in now),
        *(f"{name}: new" for name in now if name not in before),
        *(
            f"{name}: changed"
            for name, digest in before.items()
            if now.get(name, digest) != digest
        ),
    ]


def sha256_of(path: pathlib.Path) -> str:
    """The sha256 of a file's contents, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def labels_entry(names: list[str]) -> Manifest:
    """What the manifest tells about class names; the sha256 is of one name a line."""
    text = "".join(f"{name}\n" for name in names)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {"count": len(names), "sha256": digest, "names": names}


def signature_specs(folder: pathlib.Path) -> dict[str, Any]:
    """The signatures of a SavedModel, as it declares them.

    Args:
        folder: It holds `saved_model.pb`.

    Returns:
        By signature `{"inputs": ..., "outputs": ...}`, by tensor name
        `{"dtype": "float32", "shape": [null, 224, 224, 3]}`; null is the batch.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel()
    model.ParseFromString((folder / "saved_model.pb").read_bytes())
    signatures = model.meta_graphs[0].signature_def
    return {
        name: {
            "inputs": _tensors(signatures[name].inputs),
            "outputs": _tensors(signatures[name].outputs),
        }
        for name in sorted(signatures)
        if not name.startswith("__")  # of TensorFlow's own
    }


def _tensors(infos: Any) -> dict[str, Any]:
    import tensorflow as tf

    return {
        name: {
            "dtype": tf.as_dtype(infos[name].dtype).name,
            "shape": [
                None if dim.size < 0 else dim.size
                for dim in infos[name].tensor_shape.dim
            ],
        }
        for name in sorted(infos)
    }


def _digests(folder: pathlib.Path) -> dict[str, Any]:
    paths = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file()
    }
    return {
        name: {"bytes": paths[name].stat().st_size, "sha256": sha256_of(paths[name])}
        for name in sorted(paths)
        if name != PATH.as_posix()
    }
