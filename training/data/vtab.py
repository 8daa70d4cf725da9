"""The 19 tasks of VTAB-1k (arXiv:1910.04867): the source `vtab:TASK`.

Every task has 800 training, 200 validation and the official test images. The data sets
are those of TensorFlow Datasets, prepared beforehand: `tfds build NAME`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import tensorflow as tf

from ..errors import DataError
from .python_source import Datasets

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

Objects: TypeAlias = dict[str, tf.Tensor]  # their features, each [objects, ...]


def count_objects(objects: Objects) -> tf.Tensor:
    """The number of objects, 3 to 10, minus 3."""
    return tf.shape(objects["size"])[0] - 3


def nearest_object(objects: Objects) -> tf.Tensor:
    """The interval of the closest object's distance."""
    return _interval(tf.reduce_min(objects["pixel_coords"][:, 2]), CLEVR_DISTANCES)


def nearest_vehicle(objects: Objects) -> tf.Tensor:
    """The interval of the closest vehicle's distance, the last one if there is none.

    A vehicle is a car, a van or a truck.
    """
    distances = tf.boolean_mask(objects["location"][:, 2], objects["type"] < 3)
    return _interval(
        tf.reduce_min(tf.concat([distances, [1000.0]], axis=0)), KITTI_METRES
    )


def pair(position: tf.Tensor) -> tf.Tensor:
    """The position, 0 to 31, as one of 16 pairs."""
    return position // 2


def sixteenth(orientation: tf.Tensor) -> tf.Tensor:
    """The orientation, 0 to 39, as one of 16 groups."""
    return orientation * 2 // 5


CLEVR_DISTANCES = (8.0, 8.5, 9.0, 9.5, 10.0)
KITTI_METRES = (8.0, 20.0, 999.0)


def _interval(value: tf.Tensor, bounds: Sequence[float]) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(value > tf.constant(bounds), tf.int64))


class Task(NamedTuple):
    """One task: the data set, its slices, and the label."""

    dataset: str  # name in TensorFlow Datasets
    train: str  # slice of the 800 training images
    validation: str  # slice of the 200 validation images
    test: str = "test"  # slice of the official test images
    feature: str = "label"  # which has the label
    label: Callable[..., tf.Tensor] | None = None  # of the feature, if not the same
    classes: int = 0  # of `label`


FIRST, OFFICIAL = "train[:800]", "validation[:200]"
CLEVR = ("clevr", FIRST, "train[63000:63200]", "validation", "objects")
DSPRITES = ("dsprites", FIRST, "train[589824:590024]", "train[663552:]")
SMALLNORB = ("smallnorb", FIRST, "test[:200]", "test[50%:]")
# Splits: scenic's vtab_plainvit_config.py. Labels: google-research/task_adaptation.
TASKS = {
    # Natural
    "caltech101": Task("caltech101", FIRST, "train[2754:2954]"),
    "cifar100": Task("cifar100", FIRST, "train[45000:45200]"),
    "dtd": Task("dtd", FIRST, OFFICIAL),
    "flowers102": Task("oxford_flowers102", FIRST, OFFICIAL),
    "pets": Task("oxford_iiit_pet", FIRST, "train[2944:3144]"),
    "sun397": Task("sun397", FIRST, OFFICIAL),
    "svhn": Task("svhn_cropped", FIRST, "train[65931:66131]"),
    # Specialized
    "camelyon": Task("patch_camelyon", FIRST, OFFICIAL),
    "eurosat": Task("eurosat", FIRST, "train[16200:16400]", "train[21600:]"),
    "resisc45": Task("resisc45", FIRST, "train[18900:19100]", "train[25200:]"),
    "retinopathy": Task("diabetic_retinopathy_detection/btgraham-300", FIRST, OFFICIAL),
    # Structured
    "clevr_count": Task(*CLEVR, count_objects, 8),
    "clevr_distance": Task(*CLEVR, nearest_object, 6),
    "dmlab": Task("dmlab", FIRST, OFFICIAL),
    "dsprites_location": Task(*DSPRITES, "label_x_position", pair, 16),
    "dsprites_orientation": Task(*DSPRITES, "label_orientation", sixteenth, 16),
    "kitti_distance": Task(
        "kitti", FIRST, OFFICIAL, "test", "objects", nearest_vehicle, 4
    ),
    "smallnorb_azimuth": Task(*SMALLNORB, "label_azimuth"),
    "smallnorb_elevation": Task(*SMALLNORB, "label_elevation"),
}


def read_task(name: str) -> Datasets:
    """Read one task: what `open_function` takes.

    Raises:
        DataError: The data set is not on this machine.
    """
    import tensorflow_datasets as tfds

    task = TASKS[name]
    builder = tfds.builder(task.dataset, try_gcs=False)
    if task.label is None:
        names = builder.info.features[task.feature].names
    else:
        names = [str(index) for index in range(task.classes)]
    return {
        "class_names": names,
        "train": _open(builder, task.train, task),
        "validation": _open(builder, task.validation, task),
        "test": _open(builder, task.test, task),
    }


def _open(
    builder: "tfds.core.DatasetBuilder", text: str, task: Task
) -> tf.data.Dataset:
    import tensorflow_datasets as tfds

    decoders = tfds.decode.PartialDecoding(
        {"image", task.feature}, {"image": tfds.decode.SkipDecoding()}
    )
    try:
        examples = builder.as_dataset(
            split=text,
            decoders=decoders,
            read_config=tfds.ReadConfig(interleave_cycle_length=1),  # in their order
        )
    except AssertionError:
        raise DataError(
            f"tfds:{task.dataset}: not on this machine ({builder.data_path}). "
            f"`tfds build {task.dataset}` prepares it"
        ) from None
    return examples.map(lambda example: (_image(example, task), _label(example, task)))


def _image(example: dict[str, Any], task: Task) -> tf.Tensor:
    if task.dataset != "dsprites":
        return example["image"]
    pixels = tf.io.decode_png(example["image"], 1)  # 0 and 1
    return tf.io.encode_png(pixels * 255)


def _label(example: dict[str, Any], task: Task) -> tf.Tensor:
    feature = example[task.feature]
    return tf.cast(task.label(feature) if task.label else feature, tf.int64)
