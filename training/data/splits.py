"""Training, validation and test splits of a source."""

import dataclasses
import hashlib
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from sklearn.model_selection import train_test_split

from keras_vit.common.activity import activity
from keras_vit.typing import Array

from .. import storage
from ..errors import DataError
from ..recipe import DataConfig
from .class_folders import listed
from .labeled_images import Source, Split, host_constant
from .sources import open_source


@dataclass(frozen=True)
class Splits:
    """The disjoint splits of a run."""

    class_names: tuple[str, ...]
    train: Split
    validation: Split | None  # by which the best epoch is chosen
    test: Split  # of the final evaluation
    bad_images: tuple[str, ...] = ()  # name and error of each image that was skipped


def load_splits(config: DataConfig, channels: int) -> Splits:
    """Open a source and divide it into splits.

    Warns of images that are in two splits of a folder.

    Raises:
        DataError: See `open_source` and `divide`.
    """
    source = open_source(config, channels)
    splits = Splits(source.class_names, *divide(source, config), source.bad_images)
    if config.source.startswith("folder:"):
        _warn_of_shared_images(splits)
    return splits


def _warn_of_shared_images(splits: Splits) -> None:
    with activity("comparing the images of the splits"):
        pairs = shared_images([splits.train, splits.validation, splits.test])
    if pairs:
        count = "one image is" if len(pairs) == 1 else f"{len(pairs)} images are"
        print(
            f"warning: {count} in two splits, which makes the accuracy "
            f"too high: {listed((' = '.join(pair) for pair in pairs), '; ')}",
            file=sys.stderr,
        )


def shared_images(splits: Sequence[Split | None]) -> list[tuple[str, str]]:
    """Pairs of files, of their paths, with the same contents in different splits.

    Only files of the same digest are read.
    """
    alike: dict[bytes, list[tuple[int, str]]] = defaultdict(list)
    for number, split in enumerate(splits):
        if split is not None and split.digests is not None:
            for digest, name in zip(split.digests, split.names, strict=True):
                alike[digest.tobytes()].append((number, name))
    pairs = []
    for files in alike.values():
        if len({number for number, _ in files}) < 2:
            continue
        first: dict[bytes, tuple[int, str]] = {}
        for number, name in files:
            with storage.local_copy(name) as local, local.open("rb") as file:
                contents = hashlib.file_digest(file, "sha256").digest()
            other, other_name = first.setdefault(contents, (number, name))
            if other != number:
                pairs.append((other_name, name))
    return pairs


# Parts whose absence is no mistake of a recipe made for another source.
NAMED_PARTS = ("validation", "test")


class Slice(NamedTuple):
    """Images of one part of a source: the part's name, and their indices, int64 [n]."""

    part: str
    indices: Array


def divide(source: Source, config: DataConfig) -> tuple[Split, Split | None, Split]:
    """Divide a source into disjoint training, validation and test images.

    A slice is taken of a part's own order, or, where that is sorted (see `Source`), of
    one that is shuffled by `config.split_seed`. A share is taken of the training slice,
    stratified by class.

    Raises:
        DataError: A slice is malformed, empty or overlaps another one; or a class has
            too few images to be divided.
    """
    config = _with_parts_of(source, config)
    slices = {"train": parse(source, config, "train")}
    for role in ("validation", "test"):
        if isinstance(getattr(config, role), str):
            slices[role] = parse(source, config, role)
    own = {"test": source.test_part}
    if config.validation:
        own["validation"] = source.validation_part
    for role, part in own.items():
        if role not in slices and part is not None:
            slices[role] = [Slice(part, np.arange(len(source.parts[part])))]
    _check_disjoint(source, config, slices)
    splits = {role: _take(source, slices[role]) for role in slices}
    train, test = splits["train"], splits.get("test")
    if test is None:
        train, test = _share(train, config, "test", source.class_names)
    validation = splits.get("validation")
    if validation is None and config.validation:
        train, validation = _share(train, config, "validation", source.class_names)
    return train, validation, test


def _with_parts_of(source: Source, config: DataConfig) -> DataConfig:
    """Shares for the validation and test parts that a source does not have.

    A recipe for ImageNet, whose test images are called validation, then takes another
    source.
    """
    shares = {
        role: getattr(DataConfig, role)
        for role in ("validation", "test")
        if getattr(config, role) in NAMED_PARTS
        and getattr(config, role) not in source.parts
    }
    return dataclasses.replace(config, **shares)


def parse(source: Source, config: DataConfig, role: str) -> list[Slice]:
    """Parse the slice of `data.train`, `data.validation` or `data.test`."""
    text = getattr(config, role)
    if text in source.parts:
        return [Slice(text, np.arange(len(source.parts[text])))]
    slices = [
        Slice(part, _order(source, part, config.split_seed)[begin:end])
        for part, begin, end in _instructions(source, role, text)
    ]
    if not sum(len(indices) for _, indices in slices):
        raise DataError(f"`data.{role}`: there are no images in {text!r}")
    return slices


def _instructions(
    source: Source, role: str, text: str
) -> list[tuple[str, int, int | None]]:
    """Parse a slice with TensorFlow Datasets: (part, begin, end) of each term."""
    import tensorflow_datasets as tfds

    lengths = {
        name: tfds.core.splits.SplitInfo(
            name=name, shard_lengths=[len(part)], num_bytes=0
        )
        for name, part in source.parts.items()
    }
    try:
        parsed = tfds.core.ReadInstruction.from_spec(text).to_absolute(lengths)
    except (ValueError, AssertionError) as error:
        raise DataError(
            f"`data.{role}` must be a slice of {', '.join(source.parts)}, such as "
            f"train[:90%]. Received: {text!r} ({str(error).strip().splitlines()[0]})"
        ) from None
    return [(one.splitname, one.from_ or 0, one.to) for one in parsed]


def _order(source: Source, part: str, seed: int) -> Array:
    count = len(source.parts[part])
    if not source.ordered:
        return np.arange(count)
    return np.random.default_rng(seed).permutation(count)


def _take(source: Source, slices: list[Slice]) -> Split:
    """The images of slices as one split."""
    splits = []
    for part, indices in slices:
        split = source.parts[part]
        whole = np.array_equal(indices, np.arange(len(split)))
        splits.append(split if whole else split.subset(indices))
    return splits[0] if len(splits) == 1 else concatenate(splits)


def concatenate(splits: list[Split]) -> Split:
    """Concatenate several splits to one."""
    ends = np.cumsum([len(split) for split in splits])
    begins = host_constant(ends - [len(split) for split in splits], tf.int64)
    bounds = host_constant(ends[:-1], tf.int64)

    def choose(
        readers: Sequence[Callable[[tf.Tensor], tf.Tensor]],
    ) -> Callable[[tf.Tensor], tf.Tensor]:
        def read(index: tf.Tensor) -> tf.Tensor:
            number = tf.searchsorted(bounds, index[tf.newaxis], side="right")[0]
            branches = [
                lambda reader=reader, begin=begin: reader(index - begin)
                for reader, begin in zip(readers, tf.unstack(begins), strict=True)
            ]
            return tf.switch_case(number, branches)

        return read

    encoded = [split.encoded for split in splits if split.encoded is not None]
    return dataclasses.replace(
        splits[0],
        labels=np.concatenate([split.labels for split in splits]),
        read=choose([split.read for split in splits]),
        names=[name for split in splits for name in split.names],
        encoded=choose(encoded) if len(encoded) == len(splits) else None,
        digests=_joined([split.digests for split in splits]),
    )


def _joined(arrays: Sequence[Array | None]) -> Array | None:
    """The rows of several arrays; None where one is missing."""
    found = [array for array in arrays if array is not None]
    return np.concatenate(found) if len(found) == len(arrays) else None


def _check_disjoint(
    source: Source, config: DataConfig, slices: dict[str, list[Slice]]
) -> None:
    """Raise DataError where slices overlap."""
    counts = [0, *(len(part) for part in source.parts.values())]
    first = dict(zip(source.parts, np.cumsum(counts), strict=False))
    seen: dict[str, Array] = {}
    for role, taken in slices.items():
        images = np.concatenate([first[part] + indices for part, indices in taken])
        if len(np.unique(images)) < len(images):
            raise DataError(
                f"`data.{role}` must not have an image twice. "
                f"Received: {getattr(config, role)!r}"
            )
        for other, others in seen.items():
            if common := len(np.intersect1d(images, others)):
                raise DataError(
                    f"`data.{other}` and `data.{role}` must not have images in common."
                    f" Received: {getattr(config, other)!r} and "
                    f"{getattr(config, role)!r}, which share {common} images"
                )
        seen[role] = images


def _share(
    split: Split, config: DataConfig, part: str, class_names: Sequence[str]
) -> tuple[Split, Split]:
    """Take a share of a split: what is left, and the share."""
    rest, taken = stratified_share(
        split.labels,
        getattr(config, part),
        config.split_seed,
        class_names,
        f"{config.source}: the {part} images",
    )
    return split.subset(rest), split.subset(taken)


def stratified_share(
    labels: Array,
    share: float,
    seed: int,
    class_names: Sequence[str],
    what: str,
) -> tuple[Array, Array]:
    """Take a random share of examples, labels int64 [n], the same of each class.

    Returns:
        The indices of what is left, and those of the share.

    Raises:
        DataError: A class has one example, or the share or what is left has fewer than
            there are classes.
    """
    counts = np.bincount(labels, minlength=len(class_names))
    classes, taken = np.count_nonzero(counts), math.ceil(share * len(labels))
    if (single := np.flatnonzero(counts == 1)).size:
        names = listed(class_names[int(index)] for index in single)
        raise DataError(
            f"{what} cannot be a share of {share}: each class must have at least 2 "
            f"images to divide. Received: 1 of {names}"
        )
    if min(taken, len(labels) - taken) < classes:
        raise DataError(
            f"{what} cannot be a share of {share}: there must be one of each of the "
            f"{classes} classes, and as many left. Received: {taken} of {len(labels)}"
        )
    rest, chosen = train_test_split(
        np.arange(len(labels)), test_size=share, random_state=seed, stratify=labels
    )
    return rest, chosen
