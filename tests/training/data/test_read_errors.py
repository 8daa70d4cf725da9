"""A failing input pipeline names its images and leaves nothing running."""

import gc
import itertools
import re
import struct

import numpy as np
import pytest
import tensorflow as tf
from few_formats import few_formats
from long_cases import long_after
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tiny_model import small
from tiny_recipe import TINY_RECIPE, changed

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

NAMES = [f"photo {number}.png" for number in range(40)]
BAD = 5
PNG = tf.io.encode_png(np.zeros((22, 14, 3), "uint8")).numpy()
# 5 x 2 pixels of 24 bits; the last byte of each row is padding.
BMP = b"BM" + struct.pack("<8xI IiiHHIIiiII", 54, 40, 5, 2, 1, 24, *[0] * 6) + bytes(32)


def truncated(index):
    return tf.where(index == BAD, PNG[:60], PNG)


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
    return tf.where(index == BAD, b"no image", PNG)


def truncated_bitmap(index):
    return tf.where(index == BAD, BMP[:-4], PNG)


READERS = {
    not_an_image: "Unknown image file format. One of JPEG, PNG, GIF, BMP, WebP",
    truncated_bitmap: "A truncated BMP file. Bytes that its header announces, and "
    "received: 85 82",
    truncated: "Invalid PNG data, size 60",
    deleted: "/deleted; No such file or directory",
    failing_python: "a TIFF file that cannot be converted",
}


def split_of(*readers):
    """Eight images of each reader, of which one cannot be read."""
    functions = [lambda i, read=each: read(i % 8) for each in readers]

    def encoded(index):
        chosen = tf.cast(index // 8, tf.int32)
        return tf.switch_case(chosen, [lambda f=f: f(index) for f in functions])

    labels = np.arange(8 * len(readers)) % 7
    return encoded_split("test", encoded, labels, 7, NAMES[: len(labels)], channels=3)


@pytest.fixture(scope="module")
def model():
    preprocessing = keras_vit.ImagePreprocessing((22, 14))
    return small(preprocessing=preprocessing, class_names=list("abcdefg"))


def train(split, model, folder):
    """`fit` with random crops, which read the images in each epoch."""
    recipe = changed(
        TINY_RECIPE,
        batch_size=8,
        model={"channels": 3},
        augmentation={"crop_min_area": 0.5},
    )
    with pytest.MonkeyPatch.context() as patch:
        splits = Splits(tuple(model.class_names), split, None, split)
        patch.setattr("training.fitting.fit.load_splits", lambda *_: splits)
        fit(recipe, folder, draw=False)


# The first of these images is of another kind for each.
IN_STEPS = {
    "fit": train,
    "evaluate": lambda split, model, _: evaluate(model, split),
    "features": lambda split, model, _: FeatureExtractor(model)(
        split.subset(np.arange(40)[::-1])
    ),
}
AT_ONCE = {
    "all": lambda split, preprocessing: evaluation_images(split, preprocessing),
    "some": lambda split, preprocessing: images_at(split, [BAD], preprocessing),
}


# The others that read all images name what `IN_STEPS` names, too.
QUICK = [(truncated, "all"), *((reader, "some") for reader in READERS)]


def assert_named(error, name, reader):
    assert f"{name}: {READERS[reader]}" in str(error.value)
    assert not re.search(r"[{}\n]|\[\[|Op:|b'|assert", str(error.value))


@pytest.mark.parametrize("consumer", long_after(1, IN_STEPS))
def test_images_that_a_model_cannot_read_are_named_with_the_reasons(
    consumer, model, tmp_path
):
    with pytest.raises(DataError) as error:
        IN_STEPS[consumer](split_of(*READERS), model, tmp_path)
    for number, reader in enumerate(READERS):
        assert_named(error, NAMES[8 * number + BAD], reader)


@pytest.mark.parametrize(
    ("reader", "consumer"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow)
        for each in itertools.product(READERS, AT_ONCE)
    ],
)
def test_an_image_that_cannot_be_read_is_named_with_the_reason(reader, consumer, model):
    with pytest.raises(DataError) as error:
        AT_ONCE[consumer](split_of(reader), model.preprocessing)
    assert_named(error, NAMES[BAD], reader)


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


@pytest.mark.parametrize("kind", long_after(1, [RuntimeError, DataError]))
@few_formats()
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
