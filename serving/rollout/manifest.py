"""`manifest.json` of a version: its source, model, verification and checksums."""

import hashlib
import json
import pathlib
from typing import Any

from keras_vit.common.file_names import MANIFEST, SAVED_MODEL

FORMAT = 1

Manifest = dict[str, Any]


def write(folder: pathlib.Path, facts: Manifest) -> Manifest:
    """Write the manifest, with the size and sha256 of every other file.

    Args:
        folder: A version that is complete but for its manifest.
        facts: Its other entries, in order.
    """
    manifest = {"format": FORMAT, **facts, "files": _digests(folder)}
    path = folder / MANIFEST
    path.parent.mkdir(exist_ok=True)
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    return manifest


def read_if_valid(folder: pathlib.Path) -> Manifest | None:
    """Read the manifest of a version; None without a readable one."""
    path = folder / MANIFEST
    try:
        if not path.is_file():  # a pipe would never end
            return None
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return None
    files = manifest.get("files")
    entries = list(files.values()) if isinstance(files, dict) else [None]
    known = all(
        isinstance(entry, dict)
        and type(entry.get("bytes")) is int
        and type(entry.get("sha256")) is str
        for entry in entries
    )
    return manifest if known else None


def damage(folder: pathlib.Path) -> list[str]:
    """Compare the files of a version with the checksums in its manifest."""
    manifest = read_if_valid(folder)
    if manifest is None:
        return [f"{MANIFEST}: missing or not readable"]
    return differences(folder, manifest)


def differences(folder: pathlib.Path, manifest: Manifest) -> list[str]:
    """Compare the files of a version with the checksums in a manifest.

    Returns:
        A line for each file that is missing, changed or new, and for each link, pipe or
        device: none of them is a part of a version.
    """
    before, now = manifest["files"], _digests(folder)
    others = (path for path in folder.rglob("*") if not _is_file_or_folder(path))
    return [
        *(f"{path.relative_to(folder)}: not a file or folder" for path in others),
        *(f"{name}: missing" for name in before if name not in now),
        *(f"{name}: new" for name in now if name not in before),
        *(
            f"{name}: changed"
            for name, digest in before.items()
            if now.get(name, digest) != digest
        ),
    ]


def size(manifest: Manifest) -> int:
    """The bytes of all files of a version, the manifest itself not counted."""
    return sum(file["bytes"] for file in manifest["files"].values())


def sha256_of(path: pathlib.Path) -> str:
    """The sha256 of a file's contents, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def labels_entry(names: list[str]) -> Manifest:
    """The manifest's entry for class names; the sha256 is of one name per line."""
    text = "".join(f"{name}\n" for name in names)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {"count": len(names), "sha256": digest, "names": names}


def signature_specs(folder: pathlib.Path) -> dict[str, Any]:
    """Read the signatures that a SavedModel declares.

    Returns:
        By signature `{"inputs": ..., "outputs": ...}`, by tensor name
        `{"dtype": "float32", "shape": [null, 224, 224, 3]}`; null is the batch.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel()
    model.ParseFromString((folder / SAVED_MODEL).read_bytes())
    signatures = model.meta_graphs[0].signature_def
    return {
        name: {
            "inputs": _tensors(signatures[name].inputs),
            "outputs": _tensors(signatures[name].outputs),
        }
        for name in sorted(signatures)
        if not name.startswith("__")  # TensorFlow's own
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


def _is_file_or_folder(path: pathlib.Path) -> bool:
    return not path.is_symlink() and (path.is_file() or path.is_dir())


def _digests(folder: pathlib.Path) -> dict[str, Any]:
    paths = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    return {
        name: {"bytes": paths[name].stat().st_size, "sha256": sha256_of(paths[name])}
        for name in sorted(paths)
        if name != MANIFEST.as_posix()
    }
