"""Training, validation and test splits of a source."""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from sklearn.model_selection import train_test_split

from ..errors import DataError
from ..recipe import DataConfig
from .labeled_images import Source, Split
from .sources import open_source


@dataclass(frozen=True)
class Splits:
    """The disjoint splits of a run.

    Args:
        class_names: One name for each class.
        train: The training images.
        validation: The images by which the best epoch is chosen, or None.
        test: The images of the final evaluation.
        bad_images: Name and error of each invalid image that was skipped.
    """

    class_names: tuple[str, ...]
    train: Split
    validation: Split | None
    test: Split
    bad_images: tuple[str, ...] = ()


def load_splits(config: DataConfig, channels: int) -> Splits:
    """Open a source and divide it into splits.

    Args:
        config: The recipe's `data`.
        channels: 1 for gray images, 3 for RGB.

    Raises:
        DataError: See `open_source` and `divide`.
    """
    source = open_source(config, channels)
    return Splits(source.class_names, *divide(source, config), source.bad_images)


# Parts whose absence is no mistake of a recipe made for another source.
NAMED_PARTS = ("validation", "test")


class Slice(NamedTuple):
    """Images of one part of a source: the part's name, and their indices, int64 [n]."""

    part: str
    indices: np.ndarray[Any, Any]


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
        train, test = _share(train, config, "test")
    validation = splits.get("validation")
    if validation is None and config.validation:
        train, validation = _share(train, config, "validation")
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


def _instructions(source: Source, role: str, text: str):
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


def _order(source: Source, part: str, seed: int) -> np.ndarray[Any, Any]:
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
    begins = tf.constant(ends - [len(split) for split in splits], tf.int64)
    bounds = tf.constant(ends[:-1], tf.int64)

    def choose(readers):
        def read(index):
            number = tf.searchsorted(bounds, index[tf.newaxis], side="right")[0]
            branches = [
                lambda reader=reader, begin=begin: reader(index - begin)
                for reader, begin in zip(readers, tf.unstack(begins), strict=True)
            ]
            return tf.switch_case(number, branches)

        return read

    encoded = [split.encoded for split in splits]
    return dataclasses.replace(
        splits[0],
        labels=np.concatenate([split.labels for split in splits]),
        read=choose([split.read for split in splits]),
        names=[name for split in splits for name in split.names],
        encoded=None if None in encoded else choose(encoded),
    )


def _check_disjoint(
    source: Source, config: DataConfig, slices: dict[str, list[Slice]]
) -> None:
    """Raise DataError where slices overlap."""
    counts = [0, *(len(part) for part in source.parts.values())]
    first = dict(zip(source.parts, np.cumsum(counts), strict=False))
    seen: dict[str, np.ndarray[Any, Any]] = {}
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


def _share(split: Split, config: DataConfig, part: str) -> tuple[Split, Split]:
    share = getattr(config, part)
    try:
        rest, taken = train_test_split(
            np.arange(len(split)),
            test_size=share,
            random_state=config.split_seed,
            stratify=split.labels,
        )
    except ValueError as error:
        raise DataError(
            f"{config.source}: a {part} share of {share} cannot be taken from "
            f"{len(split)} images: {str(error).partition('. ')[0]}"
        ) from None
    return split.subset(rest), split.subset(taken)
