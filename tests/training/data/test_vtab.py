"""VTAB-1k's tasks: computed labels, and their use as a source."""

import io

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from long_cases import long_after
from PIL import Image

from training.data import vtab
from training.data.splits import load_splits
from training.errors import DataError
from training.recipe import DataConfig

# Thresholds of google-research/task_adaptation: the label is the last one that the
# distance exceeds.
CLEVR = np.array([0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0])
KITTI = np.array([-100.0, 8.0, 20.0, 999.0])


def last_exceeded(thresholds, distance):
    return np.flatnonzero(thresholds - distance < 0).max()


@pytest.mark.parametrize("distance", [7.0, 8.0, 8.1, 8.5, 9.2, 9.9, 10.0, 10.1, 15.0])
def test_the_label_is_the_binned_distance_of_the_closest_object(distance):
    coordinates = [[1.0, 2.0, 30.0], [0.0, 0.0, distance], [3.0, 3.0, 20.0]]
    objects = {"pixel_coords": tf.constant(coordinates)}
    label = vtab.nearest_object(objects)
    assert int(label) == last_exceeded(CLEVR, np.float32(distance))


@pytest.mark.parametrize(
    ("types", "distances"),
    [
        ([0, 3, 5], [12.0, 3.0, 1.0]),  # a pedestrian and a cyclist are not vehicles
        ([1, 2], [25.0, 8.0]),
        ([2, 0], [7.9, 30.0]),
        ([0], [20.0]),
        ([3, 7], [5.0, 5.0]),
        ([], []),
    ],
)
def test_the_label_is_the_binned_distance_of_the_closest_vehicle(types, distances):
    location = np.zeros((len(types), 3), "float32")
    location[:, 2] = distances
    objects = {"type": tf.constant(types, tf.int64), "location": tf.constant(location)}
    vehicles = [d for t, d in zip(types, distances, strict=True) if t in (0, 1, 2)]
    expected = last_exceeded(KITTI, min([*vehicles, 1000.0]))
    assert int(vtab.nearest_vehicle(objects)) == expected


def test_objects_are_counted_from_three():
    assert int(vtab.count_objects({"size": tf.zeros([7])})) == 4


def test_positions_and_angles_are_grouped_in_sixteen():
    places, angles = np.arange(32), np.arange(40)
    ours = [int(vtab.pair(tf.constant(place))) for place in places]
    assert ours == list(np.floor(places / (32 / 16)).astype(int))
    ours = [int(vtab.sixteenth(tf.constant(angle))) for angle in angles]
    assert ours == list(np.floor(angles / (40 / 16)).astype(int))


def test_black_and_white_images_use_the_full_pixel_range():
    white = np.array([[0, 1], [1, 1]], "uint8")
    buffer = io.BytesIO()
    Image.fromarray(white).save(buffer, "PNG")
    contents = vtab._image(
        {"image": tf.constant(buffer.getvalue())}, vtab.TASKS["dsprites_location"]
    )
    with Image.open(io.BytesIO(contents.numpy())) as image:
        np.testing.assert_array_equal(np.array(image), white * 255)


# The number of classes in VTAB's paper and data sets.
CLASSES = {"caltech101": 102, "smallnorb_azimuth": 18, "pets": 37, "camelyon": 2}


@pytest.mark.parametrize("name", long_after(2, CLASSES))
def test_a_task_is_a_source(name):
    config = DataConfig(f"vtab:{name}", "train+validation", 0.0, "test")
    with tfds.testing.mock_data(num_examples=5):
        splits = load_splits(config, channels=3)
    assert len(splits.class_names) == CLASSES[name]
    assert (len(splits.train), len(splits.test)) == (10, 5)
    assert splits.train.read(tf.constant(7, tf.int64)).shape[-1] == 3


def test_a_missing_data_set_error_has_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    config = DataConfig("vtab:dtd", validation=0.0)
    with pytest.raises(DataError, match="tfds build dtd"):
        load_splits(config, channels=3)


def test_an_unknown_task_is_an_error():
    with pytest.raises(DataError, match=r"vtab:TASK must.*caltech101.*'cats'"):
        load_splits(DataConfig("vtab:cats"), channels=3)
