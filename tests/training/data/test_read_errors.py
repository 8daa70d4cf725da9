"""A failing input pipeline names its images and leaves nothing running."""

import dataclasses
import gc
import re
import struct

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tiny_model import small
from tiny_recipe import TINY_MODEL, TINY_RECIPE

import keras_vit
from keras_vit.common.commands import end_process
from training.__main__ import main
from training.data.labeled_images import encoded_split
from training.data.pipeline import evaluation_batches, evaluation_images, images_at
from training.data.python_source import open_function
from training.data.read_errors import read_errors
from training.data.splits import Splits
from training.errors import DataError
from training.evaluation.evaluate import evaluate
from training.fitting.fit import fit
from training.probe.features import FeatureExtractor
from training.recipe import AugmentationConfig

NAMES = [f"photo {number}.png" for number in range(8)]
BAD = 5
PNG = tf.io.encode_png(np.zeros((22, 14, 3), "uint8")).numpy()
# 5 x 2 pixels of 24 bits; the last byte of each row is padding.
BMP = b"BM" + struct.pack("<8xI IiiHHIIiiII", 54, 40, 5, 2, 1, 24, *[0] * 6) + bytes(32)


def truncated(index):
    files = [PNG] * BAD + [PNG[:60]] + [PNG] * (7 - BAD)
    return tf.constant(files)[index]


def deleted(index):
    return tf.cond(
        index == BAD, lambda: tf.io.read_file("/deleted"), lambda: tf.constant(PNG)
    )


def failing_python(index):
    def contents(number):
        if number == BAD:
            raise ValueError("a TIFF file that cannot be converted")
        return PNG

    return tf.ensure_shape(tf.numpy_function(contents, [index], tf.string), [])


def not_an_image(index):
    files = [PNG] * BAD + [b"no image"] + [PNG] * (7 - BAD)
    return tf.constant(files)[index]


def truncated_bitmap(index):
    files = [PNG] * BAD + [BMP[:-4]] + [PNG] * (7 - BAD)
    return tf.constant(files)[index]


READERS = {
    not_an_image: "Unknown image file format. One of JPEG, PNG, GIF, BMP, WebP",
    truncated_bitmap: "A truncated BMP file. Bytes that its header announces, and "
    "received: 85 82",
    truncated: "Invalid PNG data, size 60",
    deleted: "/deleted; No such file or directory",
    failing_python: "a TIFF file that cannot be converted",
}


def split_of(encoded):
    """Eight images, of which one cannot be read."""
    return encoded_split("test", encoded, np.arange(8) % 7, 7, NAMES, channels=3)


@pytest.fixture(scope="module")
def model():
    preprocessing = keras_vit.ImagePreprocessing((22, 14))
    return small(preprocessing=preprocessing, class_names=list("abcdefg"))


def train(split, model, folder):
    """`fit` with random crops, which read the images in each epoch."""
    recipe = dataclasses.replace(
        TINY_RECIPE,
        batch_size=8,
        model=dataclasses.replace(TINY_MODEL, image_size=8, channels=3),
        augmentation=AugmentationConfig(crop_min_area=0.5),
    )
    with pytest.MonkeyPatch.context() as patch:
        splits = Splits(tuple(model.class_names), split, None, split)
        patch.setattr("training.fitting.fit.load_splits", lambda *_: splits)
        fit(recipe, folder, draw=False)


CONSUMERS = {
    "fit": train,
    "evaluate": lambda split, model, _: evaluate(model, split),
    "features": lambda split, model, _: FeatureExtractor(model)(split),
    "all images": lambda split, model, _: evaluation_images(split, model.preprocessing),
    "some images": lambda split, model, _: images_at(split, [5], model.preprocessing),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("encoded", READERS)
def test_an_image_that_cannot_be_read_is_named_with_the_reason(
    encoded, consumer, model, tmp_path
):
    with pytest.raises(DataError) as error:
        CONSUMERS[consumer](split_of(encoded), model, tmp_path)
    assert f"{NAMES[BAD]}: {READERS[encoded]}" in str(error.value)
    assert not re.search(r"[{}\n]|\[\[|Op:|b'|assert", str(error.value))


def test_the_reason_is_enough_where_all_images_can_be_read_again():
    good = split_of(lambda index: tf.constant(PNG))
    message = "^the input pipeline failed: Invalid PNG"
    with pytest.raises(DataError, match=message), read_errors(good):
        list(tf.data.Dataset.range(8).map(truncated).map(tf.io.decode_png))


def test_other_errors_stay_as_they_are():
    with pytest.raises(tf.errors.InvalidArgumentError, match="MatMul"), read_errors():
        tf.matmul(tf.zeros([2, 3]), tf.zeros([2, 3]))


def test_a_failing_dataset_of_a_user_is_an_error_that_names_it():
    files = tf.data.Dataset.range(8).map(lambda i: (failing_python(i), i))
    returned = {"class_names": list("abcdefgh"), "train": files}
    with pytest.raises(DataError, match="^mine: train failed: .*a TIFF file that"):
        open_function("mine", lambda: returned)


@pytest.mark.parametrize("kind", [RuntimeError, DataError])
def test_no_pipeline_outlives_a_command(monkeypatch, capsys, model, kind):
    """One in the middle of a Python function would not let the interpreter end."""

    def run(arguments):
        dataset = evaluation_batches(split_of(truncated), 1, model.preprocessing)
        held = {"iterator": iter(dataset)}
        held["itself"] = held
        raise kind("stopped")

    monkeypatch.setattr("keras_vit.common.commands.find", lambda *_: run)
    with pytest.raises(SystemExit):
        end_process(main(["recipes"]))
    assert "stopped" in capsys.readouterr().err
    assert not [each for each in gc.get_objects() if isinstance(each, OwnedIterator)]


def test_a_full_disk_of_the_logs_is_an_error_of_one_line(monkeypatch, capsys):
    """As TensorFlow's writer of TensorBoard's files reports it."""
    reason = "runs/a/events.out.tfevents.1.v2; No space left on device"
    message = f"{{{{function_node a}}}} {reason}\n\tFailed to flush 1 events"

    def run(arguments):
        raise tf.errors.ResourceExhaustedError(None, None, message)

    monkeypatch.setattr("keras_vit.common.commands.find", lambda *_: run)
    assert main(["recipes"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"keras-vit recipes: {reason}; `keras-vit resume`")
