"""Frozen features of every kind of model, and their cache."""

import dataclasses

import keras
import numpy as np
import pytest
import python_process
import tensorflow as tf
from image_splits import noise_split
from long_cases import long_after
from tiny_model import build_vit, with_random_weights

import keras_vit
from keras_vit.common.atomic_files import UNFINISHED
from training.errors import RunError
from training.probe import feature_cache
from training.probe.feature_cache import cached_features, features_name
from training.probe.features import FeatureExtractor, frozen_model

SPLIT = noise_split(23)


def raw_vit(**kwargs):
    """A tiny model that reads pixels from 0 to 255."""
    preprocessing = keras_vit.ImagePreprocessing((22, 14))
    return build_vit(preprocessing=preprocessing, **kwargs)


def pixels(split=SPLIT):
    """Every image as the model reads it, by an interpolation of its own in Keras."""
    images = np.stack([split.read(tf.constant(i)).numpy() for i in range(len(split))])
    return keras.ops.convert_to_numpy(
        keras.ops.image.resize(
            images.astype("float32"), (22, 14), interpolation="bilinear"
        )
    ).round()


@pytest.fixture(scope="module")
def model():
    """A model that no test changes."""
    return raw_vit()


@pytest.fixture(scope="module")
def extractor(model):
    """An extractor for this model; its last batch is not full."""
    return FeatureExtractor(model, batch_size=4)


@pytest.mark.parametrize(
    "kwargs",
    long_after(
        2,
        [
            {"pooling": "map"},
            {"representation_size": 11},
            {},
            {"pooling": "avg"},
            {"pooling": "avg", "fc_norm": True},
        ],
    ),
    ids=str,
)
def test_features_are_what_the_classifier_reads(kwargs):
    model = raw_vit(**kwargs)
    extractor = FeatureExtractor(model, batch_size=7)
    features = extractor(SPLIT)
    assert features.dtype == np.float32
    assert features.shape == (23, extractor.width)
    assert extractor.width == kwargs.get("representation_size", 15)
    head = model.get_layer("head")
    network = keras.Model(model.input, [head.input, head.output])
    expected, logits = map(keras.ops.convert_to_numpy, network(pixels()))
    np.testing.assert_allclose(head(features), logits, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(features, expected, rtol=1e-3, atol=1e-3)
    if "representation_size" in kwargs:  # after a tanh
        assert np.abs(features).max() <= 1


@pytest.mark.slow
def test_a_model_without_classes_gives_the_same_features(model, extractor):
    config = {**model.get_config(), "classes": None, "class_names": None}
    encoder = keras_vit.VisionTransformer.from_config(config)
    encoder.set_weights(model.get_weights()[:-2])
    features = FeatureExtractor(encoder, batch_size=4)(SPLIT)
    np.testing.assert_array_equal(features, extractor(SPLIT))


def test_resnets_and_image_classifiers_have_features_too():
    preprocessing = keras_vit.ImagePreprocessing((33, 35))
    resnet = keras_vit.ResNet(
        image_size=(33, 35), blocks=(1,), classes=5, preprocessing=preprocessing
    )
    inputs = keras.Input((22, 14, 3))
    maps = keras.layers.Conv2D(11, 3)(inputs)
    classifier = keras_vit.ImageClassifier(
        backbone=keras.Model(inputs, maps),
        classes=5,
        preprocessing=keras_vit.ImagePreprocessing((22, 14), mean=0.0, std=255.0),
    )
    assert FeatureExtractor(resnet)(SPLIT).shape == (23, 256)
    features = FeatureExtractor(classifier)(SPLIT)
    kernel, bias = classifier.get_weights()[:2]
    windows = np.lib.stride_tricks.sliding_window_view(
        pixels() / 255, (3, 3), axis=(1, 2)
    )
    maps = np.einsum("bhwcij,ijcd->bhwd", windows, kernel) + bias
    np.testing.assert_allclose(features, maps.mean((1, 2)), atol=1e-3)


def test_a_model_without_pooled_features_is_an_error():
    with pytest.raises(RunError, match="pooling=None"):
        frozen_model(build_vit(pooling=None))
    with pytest.raises(RunError, match="Received: a Functional"):
        frozen_model(keras.Model(model := keras.Input((3,)), model))


def test_a_model_without_preprocessing_is_refused():
    extractor = FeatureExtractor(build_vit(include_preprocessing=False))
    with pytest.raises(RunError, match="with include_preprocessing=False"):
        extractor(SPLIT)


def test_weights_are_read_at_each_call():
    model = raw_vit()
    extractor = FeatureExtractor(model)
    before = extractor(SPLIT)
    with_random_weights(model, 5)
    after = extractor(SPLIT)
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_array_equal(after, FeatureExtractor(model)(SPLIT))


@pytest.mark.slow
def test_features_of_a_bfloat16_model_are_float32(extractor):
    model = raw_vit(dtype="mixed_bfloat16")
    features = FeatureExtractor(model)(SPLIT)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, extractor(SPLIT), atol=0.2)


REPLICAS = """
import sys
import keras
import numpy as np
import tensorflow as tf
jax = keras.backend.backend() == "jax"
if not jax:
    cpus = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * 3
    tf.config.set_logical_device_configuration(cpus[0], logical)
from image_splits import noise_split
from test_frozen_features import raw_vit
from training.engine.jax_strategy import JaxStrategy
from training.probe.features import FeatureExtractor
if jax:
    strategy = JaxStrategy(keras.distribution.DataParallel(auto_shard_dataset=False))
else:
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    strategy = tf.distribute.MirroredStrategy(names)
with strategy.scope():
    model = raw_vit()
extractor = FeatureExtractor(model, strategy, batch_size=7)
forward = extractor._forward
assert (forward.devices, forward.batch_size) == (3, 9)
np.save(sys.argv[1], extractor(noise_split(23)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_three_devices_compute_what_one_does(tmp_path, extractor, backend):
    file, variables = tmp_path / "features.npy", python_process.on(backend, 3)
    python_process.run("-c", REPLICAS, file, beside=__file__, **variables)
    ours = extractor(SPLIT)
    np.testing.assert_allclose(np.load(file), ours, rtol=1e-4, atol=1e-4)


# The cache.


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(feature_cache, "CHUNK", 8)


@pytest.fixture
def computed(extractor, monkeypatch):
    """The numbers of images of which features were computed."""
    counts = []
    batches = extractor.batches

    def counted(split):
        for batch in batches(split):
            counts.append(len(batch))
            yield batch

    monkeypatch.setattr(extractor, "batches", counted)
    return counts


def test_features_are_computed_once(extractor, computed, tmp_path):
    first = cached_features(extractor, SPLIT, tmp_path / "new")
    assert isinstance(first, np.memmap)
    np.testing.assert_array_equal(first, extractor(SPLIT))
    computed.clear()
    np.testing.assert_array_equal(
        cached_features(extractor, SPLIT, tmp_path / "new"), first
    )
    assert not computed
    assert len(list((tmp_path / "new").iterdir())) == 1


def test_without_a_folder_nothing_is_written(extractor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    features = cached_features(extractor, SPLIT, None)
    np.testing.assert_array_equal(features, extractor(SPLIT))
    assert not list(tmp_path.iterdir())


def test_an_interrupted_cache_continues_after_its_last_chunk(
    extractor, computed, tmp_path, monkeypatch
):
    whole = extractor(SPLIT)
    batches = extractor.batches

    def interrupted(split):
        for number, batch in enumerate(batches(split)):
            if number == 5:  # 20 images: two chunks of 8 and a part of one
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(extractor, "batches", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cached_features(extractor, SPLIT, tmp_path)
    assert not list(tmp_path.glob("*.npy"))
    monkeypatch.setattr(extractor, "batches", batches)
    computed.clear()
    np.testing.assert_array_equal(cached_features(extractor, SPLIT, tmp_path), whole)
    assert sum(computed) == 23 - 16
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("broken", long_after(2, ["half", b"", b"\x93NUMPY"]))
def test_a_damaged_file_is_computed_again(extractor, computed, tmp_path, broken):
    whole = np.array(cached_features(extractor, SPLIT, tmp_path))
    [file] = tmp_path.iterdir()
    contents = file.read_bytes()
    file.write_bytes(contents[: len(contents) // 2] if broken == "half" else broken)
    computed.clear()
    np.testing.assert_array_equal(cached_features(extractor, SPLIT, tmp_path), whole)
    assert sum(computed) == 23


def test_a_damaged_chunk_is_computed_again(extractor, computed, tmp_path):
    whole = extractor(SPLIT)
    folder = tmp_path / f"{UNFINISHED}{features_name(extractor.model, SPLIT)}"
    folder.mkdir()
    np.save(folder / "000000.npy", whole[:8])
    np.save(folder / "000001.npy", whole[8:11])  # too short
    np.save(folder / "000002.npy", whole[16:])
    computed.clear()
    np.testing.assert_array_equal(cached_features(extractor, SPLIT, tmp_path), whole)
    assert sum(computed) == 23 - 8


def test_the_name_changes_with_weights_and_images():
    model = raw_vit()
    name = features_name(model, SPLIT)
    assert features_name(model, noise_split(23)) == name
    labels = dataclasses.replace(SPLIT, labels=SPLIT.labels[::-1])
    renamed = dataclasses.replace(SPLIT, names=[f"{n}!" for n in SPLIT.names])
    darker = dataclasses.replace(SPLIT, read=lambda i: SPLIT.read(i) // 2)
    others = [features_name(model, each) for each in (labels, renamed, darker)]
    others.append(features_name(raw_vit(pooling="avg"), SPLIT))
    smaller = keras_vit.ImagePreprocessing((22, 14), crop_fraction=0.8)
    others.append(features_name(build_vit(preprocessing=smaller), SPLIT))
    model.weights[5].assign(model.weights[5] + 1e-6)
    others.append(features_name(model, SPLIT))
    assert len({name, *others}) == 7


def test_the_name_stays_with_a_model_built_again_and_another_classifier(model):
    again, name = raw_vit(), features_name(model, SPLIT)
    again.set_weights(model.get_weights())
    assert again.preprocessing.name != model.preprocessing.name
    assert features_name(again, SPLIT) == name
    head = again.get_layer("head")
    head.set_weights([weight + 1 for weight in head.get_weights()])
    again.class_names = list("abcdefg")
    assert features_name(again, SPLIT) == name


def test_the_name_changes_with_a_file(model, tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(b"one")
    split = dataclasses.replace(SPLIT, names=[str(path)] * 23)
    name = features_name(model, split)
    path.write_bytes(b"other")
    assert features_name(model, split) != name


def test_a_folder_that_cannot_be_written_is_one_line(extractor, tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(RunError, match="cannot be written.*--cache") as error:
        cached_features(extractor, SPLIT, file)
    assert "\n" not in str(error.value)
