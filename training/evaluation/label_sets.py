"""ImageNet's other labels: ReaL, ImageNet-v2 and ObjectNet, for a 1,000-class model.

Predictions are indices of the 1,000 classes in the order of their WordNet numbers, the
order of all published classifiers. An image may have several right classes, or none:
then it does not count.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import tensorflow as tf
from rich.console import Console

from keras_vit.common.similar_names import did_you_mean
from keras_vit.typing import Array

from ..architectures.model_reading import read_classifier
from ..data.folder import open_folder, split_of_files
from ..data.image_listing import ImageFile, image_files
from ..data.labeled_images import Split, encoded_split
from ..data.tfds import first_line, open_tfds
from ..engine.strategy import evaluation_strategy
from ..errors import DataError, RecipeError, RunError
from ..recipe import Strategy
from .evaluate import evaluate

_Json = TypeVar("_Json")
CLASSES = 1000
VALIDATION_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})")  # numbered from 1
# ObjectNet draws a red frame on its images, which has to be cut off.
OBJECTNET_FRAME = 2
KINDS = ("imagenet", "imagenet_v2", "real:FILE", "objectnet:FOLDER")


@dataclass(frozen=True)
class LabelSet:
    """Images, and the right classes of each."""

    title: str  # its name in the result
    images: Split  # whose own labels are not used
    right: Sequence[frozenset[int]]  # [n]; none for an image that does not count


def open_label_set(labels: str, source: str | None, channels: int) -> LabelSet:
    """Open the images and labels that `--labels` and `--source` name.

    Args:
        labels: imagenet, imagenet_v2, real:FILE, real (for tfds:imagenet2012_real) or
            objectnet:FOLDER.
        source: The images, as folder:PATH or tfds:NAME; None for objectnet.
        channels: 1 for gray images, 3 for RGB.

    Raises:
        RecipeError: One of them is not one of these.
        DataError: Images or labels are missing, or do not fit each other.
    """
    kind, _, path = labels.partition(":")
    names = [name.partition(":")[0] for name in KINDS]
    of_tfds = labels == "real" and str(source).startswith("tfds:")
    well_formed = kind in names and bool(path) == (kind in ("real", "objectnet"))
    if not (well_formed or of_tfds):
        raise RecipeError(
            f"`labels` must be {', '.join(KINDS[:-1])} or {KINDS[-1]}. Received: "
            f"{labels!r}.{did_you_mean(labels, names)}"
        )
    if (source is None) != (kind == "objectnet"):
        wanted = "left out" if kind == "objectnet" else "given, as folder:PATH"
        raise RecipeError(
            f"`source` must be {wanted} with --labels {kind}. Received: {source!r}"
        )
    if source is not None and not source.startswith(("folder:", "tfds:")):
        raise RecipeError(
            f"`source` must be folder:PATH or tfds:NAME. Received: {source!r}"
        )
    if source is None:
        return _objectnet(Path(path).expanduser(), channels)
    if kind == "real":
        return _real(path, source, channels)
    return _one_label_each(kind, source, channels)


def _one_label_each(kind: str, source: str, channels: int) -> LabelSet:
    """ImageNet's own labels, or those of ImageNet-v2, whose folders are numbered."""
    is_folder = source.startswith("folder:")
    if is_folder:
        opened = open_folder(source.removeprefix("folder:"), channels)
        images = opened.train if opened.test is None else opened.test
    else:
        opened = open_tfds(source.removeprefix("tfds:"), channels, slices=())
        images = opened.parts[str(opened.test_part)]
    names = opened.class_names
    if len(names) != CLASSES:
        raise DataError(
            f"{source}: must have ImageNet's {CLASSES:,} classes. Received: "
            f"{len(names):,} classes"
        )
    classes = np.arange(CLASSES)
    if is_folder and kind == "imagenet_v2":
        classes = _numbered(source, names)
    right = [frozenset([int(classes[label])]) for label in images.labels]
    title = {"imagenet": "ImageNet", "imagenet_v2": "ImageNet-v2"}[kind]
    return LabelSet(title, images, right)


def _numbered(source: str, names: Sequence[str]) -> Array:
    """The class of each folder, its name as a number: sorted as text, 10 precedes 2."""
    wrong = sorted(set(names) - set(map(str, range(CLASSES))))
    if wrong:
        raise DataError(
            f"{source}: the class folders of ImageNet-v2 must be called 0 to "
            f"{CLASSES - 1}. Received: {wrong[0]!r}"
        )
    return np.array([int(name) for name in names])


def _real(path: str, source: str, channels: int) -> LabelSet:
    """ImageNet-ReaL (arXiv:2006.07159)."""
    title = "ImageNet-ReaL"
    if source.startswith("tfds:"):
        return LabelSet(title, *_real_of_tfds(source.removeprefix("tfds:"), channels))
    lists = _read_json(Path(path).expanduser(), list)
    root = Path(source.removeprefix("folder:")).expanduser()
    if not root.is_dir():
        raise DataError(f"{source}: there is no such folder")
    names = ((file, VALIDATION_IMAGE.match(file.name)) for file in image_files(root))
    found = {int(match[1]): file for file, match in names if match}
    if sorted(found) != list(range(1, len(lists) + 1)):
        raise DataError(
            f"{path}: must have one list of labels for each ILSVRC2012_val_*.JPEG of "
            f"{source}. Received: {len(lists):,} lists and {len(found):,} images"
        )
    right = [frozenset(map(int, labels)) for labels in lists]
    files = [found[number] for number in range(1, len(lists) + 1)]
    return LabelSet(title, _unlabeled(source, root, files, channels), right)


def _real_of_tfds(name: str, channels: int) -> tuple[Split, list[frozenset[int]]]:
    """`imagenet2012_real`, whose examples have their labels."""
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, try_gcs=False)
        records = builder.as_dataset(
            split="validation", decoders={"image": tfds.decode.SkipDecoding()}
        )
        pairs = [(r["image"], r["real_label"]) for r in records.as_numpy_iterator()]
    except (ValueError, KeyError, AssertionError) as error:
        raise DataError(f"tfds:{name}: {first_line(error)}") from None
    contents = tf.constant([image for image, _ in pairs], tf.string)
    images = encoded_split(
        f"tfds:{name}",
        lambda index: contents[index],
        np.zeros(len(pairs), np.int64),
        CLASSES,
        [f"{name} {index}" for index in range(len(pairs))],
        channels,
    )
    return images, [frozenset(map(int, labels)) for _, labels in pairs]


def _objectnet(root: Path, channels: int) -> LabelSet:
    """The 113 classes of ObjectNet (Barbu et al., 2019) that ImageNet has too.

    Predictions are of all 1,000 classes.
    """
    classes = _objectnet_classes(root / "mappings")
    files, right = [], []
    for folder, indices in sorted(classes.items()):
        if (place := root / "images" / folder).is_dir():
            own = image_files(place)
            files += own
            right += [indices] * len(own)
    if not files:
        raise DataError(
            f"{root}: must have images/CLASS/*.png for classes of mappings/. Received: "
            "no such images"
        )
    images = _unlabeled(f"objectnet:{root}", root, files, channels)
    decode, edge = images.read, OBJECTNET_FRAME
    framed = replace(
        images,
        read=lambda index: decode(index)[edge:-edge, edge:-edge],
        encoded=None,
    )
    return LabelSet("ObjectNet", framed, right)


def _objectnet_classes(mappings: Path) -> dict[str, frozenset[int]]:
    """ImageNet's classes for each folder of images that has some.

    A folder has a label, a label names of ImageNet's classes, and a name the number of
    its line in a list, which another file translates into the classifiers' order.
    """
    folders = _read_json(mappings / "folder_to_objectnet_label.json", dict)
    names = _read_json(mappings / "objectnet_to_imagenet_1k.json", dict)
    lines = _read_json(mappings / "pytorch_to_imagenet_2012_id.json", dict)
    listed = _read_text(mappings / "imagenet_to_label_2012_v2").splitlines()
    class_of_line = {int(line): int(index) for index, line in lines.items()}
    line_of_name = {name.strip(): line for line, name in enumerate(listed)}
    try:
        return {
            folder: frozenset(
                class_of_line[line_of_name[name]] for name in names[label].split("; ")
            )
            for folder, label in folders.items()
            if label in names
        }
    except KeyError as error:
        raise DataError(
            f"{mappings}: its files must fit each other. Received: {error.args[0]!r} "
            "in one of them and not in another"
        ) from None


def _unlabeled(
    origin: str, root: Path, files: Sequence[ImageFile], channels: int
) -> Split:
    """Image files as a split whose labels have no meaning."""
    labels = np.zeros(len(files), np.int64)
    return split_of_files(origin, root, files, labels, CLASSES, channels)


def _read_json(path: Path, kind: type[_Json]) -> _Json:
    try:
        value = json.loads(_read_text(path))
    except ValueError as error:
        raise DataError(
            f"{path}: must be JSON. Received: {first_line(error)}"
        ) from None
    if not isinstance(value, kind):
        raise DataError(
            f"{path}: must be a JSON {kind.__name__}. Received: a "
            f"{type(value).__name__}"
        )
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def accuracy_of_sets(
    probabilities: Array, right: Sequence[frozenset[int]]
) -> dict[str, float]:
    """Shares of images with a right class among the most probable ones.

    Args:
        probabilities: [n, classes].
        right: [n], the right classes of each image.

    Returns:
        `top_1` and `top_5`, 0 to 1, and `images`, the number of those with labels.
    """
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :5]
    hits = [
        [index in classes for index in row]
        for row, classes in zip(order.tolist(), right, strict=True)
        if classes
    ]
    table = np.array(hits, bool).reshape(len(hits), -1)
    return {
        "top_1": float(table[:, :1].any(axis=1).mean()),
        "top_5": float(table.any(axis=1).mean()),
        "images": len(hits),
    }


def evaluate_labels(
    model: str,
    labels: str,
    source: str | None,
    pixels: str | None = None,
    *,
    strategy: Strategy = "auto",
    tpu: str | None = None,
) -> dict[str, float]:
    """Evaluate a classifier by one of ImageNet's other labels, and print the scores.

    Returns:
        See `accuracy_of_sets`.

    Raises:
        TrainingError: The model, the images or the labels cannot be read or used.
    """
    devices = evaluation_strategy(strategy, tpu)
    with devices.scope():
        classifier = read_classifier(model, None, pixels)
    if classifier.classes != CLASSES:
        raise RunError(
            f"{model}: must have ImageNet's {CLASSES:,} classes for --labels. "
            f"Received: {classifier.classes:,} classes"
        )
    opened = open_label_set(labels, source, classifier.channels)
    if not any(opened.right):
        raise DataError(f"{labels}: no image has a label")
    with devices.scope():
        scores = evaluate(classifier, opened.images).probabilities
    result = accuracy_of_sets(scores, opened.right)
    Console().print(
        f"{opened.title}: top-1 {result['top_1']:.4f}, top-5 {result['top_5']:.4f} on "
        f"{result['images']} images",
        highlight=False,
    )
    return result
