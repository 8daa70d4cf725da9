"""How fast is the input pipeline, beside the same one of Keras's layers?

    python -m benchmarks.data [--seconds S] [--output FILE.json]

JPEGs of 500x375 pixels from scikit-learn's sample photographs, to 224x224. All
pipelines take turns in one process; the best of the rounds counts. CPU seconds of the
process hold still on a shared machine where wall time does not. Keras's layers work on
each image, as Keras advises (on a batch, RandAugment has one operation for all); Keras
has no inception crop and gets ours. Needs tf-models-official:
`pip install -e ".[models]"`.
"""

import io
import os
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_sample_images

from benchmarks.report import machine, make_parser, show, spread, write
from keras_vit import ImagePreprocessing
from training.augmentation_config import AugmentationConfig
from training.data.labeled_images import Split, encoded_split
from training.data.pipeline import training_batches
from training.recipe import DataConfig, Recipe

SIZE, BATCH, CLASSES, FILES, IMAGES = 224, 64, 10, 64, 6400
MAGNITUDE = 15.0  # RandAugment(2, 15); Keras's factor is in [0, 1], for 0 to 10
ROTATE, SCALE, SHIFT = 10.0, 0.15, 8  # degrees, share, pixels


def jpegs() -> tf.Tensor:
    """Crops of the two photographs, 375x500 pixels, as files of about 55 KB: [64]."""
    random, files = np.random.default_rng(0), []
    pictures = load_sample_images().images
    for number in range(FILES):
        picture = pictures[number % len(pictures)]
        top, left = random.integers(0, [427 - 375 + 1, 640 - 500 + 1])
        buffer = io.BytesIO()
        crop = Image.fromarray(picture[top : top + 375, left : left + 500])
        crop.save(buffer, "JPEG", quality=90)
        files.append(buffer.getvalue())
    return tf.constant(files)


def jpeg_split(files: tf.Tensor) -> Split:
    """The files as if there were many more."""
    labels = np.arange(IMAGES) % CLASSES
    names = [str(number) for number in range(IMAGES)]
    return encoded_split(
        "jpegs", lambda index: files[index % FILES], labels, CLASSES, names, 3
    )


def ours(split: Split, **changes: Any) -> tf.data.Dataset:
    """This project's pipeline with inception crop, flip and other changes."""
    recipe = Recipe(
        data=DataConfig("digits"),
        batch_size=BATCH,
        augmentation=AugmentationConfig(crop_min_area=0.05, flip=True, **changes),
    )
    return training_batches(split, recipe, ImagePreprocessing(SIZE), 0, 2**40)


def decode_and_crop(contents: tf.Tensor) -> tf.Tensor:
    """A random part of a JPEG in the model's size: float32 [224, 224, 3]."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(contents),
        tf.zeros([1, 0, 4]),
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.05, 1.0),
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], axis=0)
    image = tf.image.decode_and_crop_jpeg(contents, window, channels=3)
    return tf.image.resize(image, (SIZE, SIZE))


def of_keras(
    files: tf.Tensor, changes: Sequence[keras.Layer] = (), mixup: bool = False
) -> tf.data.Dataset:
    """Decode, crop and resize; then changes by Keras's layers."""
    mix = keras.layers.MixUp(alpha=0.2)

    def example(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        index = number % IMAGES
        image = decode_and_crop(files[index % FILES])
        for layer in changes:
            image = layer(image, training=True)
        return tf.cast(image, tf.uint8), tf.one_hot(index % CLASSES, CLASSES)

    def mixed(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        both = {"images": tf.cast(images, tf.float32), "labels": labels}
        both = mix(both, training=True)
        return tf.cast(both["images"], tf.uint8), both["labels"]

    order = tf.data.Dataset.random()
    dataset = order.map(example, tf.data.AUTOTUNE).batch(BATCH)
    if mixup:
        dataset = dataset.map(mixed, tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE)


def pipelines() -> dict[str, tf.data.Dataset]:
    """All that are compared, by name."""
    files = jpegs()
    split = jpeg_split(files)
    augment = {"policy": "randaugment", "layers": 2, "magnitude": MAGNITUDE}
    warp = {"rotate": ROTATE, "scale": SCALE, "shift": SHIFT}
    flip = keras.layers.RandomFlip("horizontal")
    factor = min(MAGNITUDE / 10, 1.0)
    rand_augment = keras.layers.RandAugment((0, 255), num_ops=2, factor=factor)
    warps = [
        flip,
        keras.layers.RandomRotation(ROTATE / 360, "nearest"),
        keras.layers.RandomZoom(SCALE, SCALE, "nearest"),
        keras.layers.RandomTranslation(SHIFT / SIZE, SHIFT / SIZE, "nearest"),
    ]
    return {
        BARE: of_keras(files),
        "ours: crop, flip": ours(split),
        "ours: crop, flip, mixup": ours(split, mixup=0.2),
        "ours: crop, flip, rotate, scale, shift": ours(split, **warp),
        "ours: crop, flip, RandAugment, mixup": ours(split, mixup=0.2, **augment),
        "Keras: crop, flip": of_keras(files, [flip]),
        "Keras: crop, flip, mixup": of_keras(files, [flip], mixup=True),
        "Keras: crop, flip, rotate, scale, shift": of_keras(files, warps),
        "Keras: crop, flip, RandAugment, mixup": of_keras(
            files, [flip, rand_augment], mixup=True
        ),
    }


BARE = "bare decode_and_crop + resize"
AS_KERAS = ("crop, flip, RandAugment, mixup", "crop, flip, rotate, scale, shift")
RATIOS = {
    **{f"ours over Keras: {n}": (f"ours: {n}", f"Keras: {n}") for n in AS_KERAS},
    "ours over bare: crop, flip": ("ours: crop, flip", BARE),
    "ours over bare: crop, flip, mixup": ("ours: crop, flip, mixup", BARE),
}


def speeds(
    datasets: dict[str, tf.data.Dataset], seconds: float, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Name to the images in a second and in a CPU second of each round."""
    iterators = {name: iter(dataset) for name, dataset in datasets.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in datasets}
    for _ in range(rounds):
        for name, batches in iterators.items():
            for _ in range(4):  # what was prefetched while the others ran
                next(batches)
            images, wall, cpu = 0, time.perf_counter(), time.process_time()
            while (passed := time.perf_counter() - wall) < seconds:
                images += len(next(batches)[0])
            rates = images / passed, images / (time.process_time() - cpu)
            found[name].append(rates)
    return found


def main() -> None:
    """Measures, prints the tables, and writes the JSON file."""
    parser = make_parser(__doc__, "data", rounds=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    found = speeds(pipelines(), options.seconds, options.rounds)
    walls, cpus = (
        {name: [rates[clock] for rates in rounds] for name, rounds in found.items()}
        for clock in (0, 1)
    )
    images = {
        name: {"by_time": max(walls[name]), "by_cpu_time": max(cpus[name])}
        for name in found
    }
    ratios: dict[str, dict[str, float | None]] = {
        question: {
            **{key: images[one][key] / images[other][key] for key in images[one]},
            "spread": spread(cpus[one], cpus[other]),
        }
        for question, (one, other) in RATIOS.items()
    }
    for title, figures in (("images", images), ("ratios", ratios)):
        show([{"case": name, **row} for name, row in figures.items()], title)
    record = {"machine": machine(("tensorflow", "keras")), "images": images}
    write({**record, "ratios": ratios}, options.output)


if __name__ == "__main__":
    main()
