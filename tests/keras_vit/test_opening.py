"""`open_model`: whatever holds a model, opened by one function."""

import contextlib
import json
import shutil

import foreign_files
import keras
import numpy as np
import pytest
from foreign_files import check_same_weights
from tiny_model import small_classifier

import keras_vit
from keras_vit.errors import CheckpointError, WeightsFileError
from serving.export import publish, signatures

PREPROCESSING = {"preprocessing": keras_vit.ImagePreprocessing((22, 14), mean=0.0)}


def test_a_file_a_run_and_checkpoints_are_opened(tiny_vit, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    source = tiny_vit(gelu="exact", depth=1)
    source.save(tmp_path / "best.keras")
    args = {"num_heads": 5, "img_size": [22, 14]}
    timm = tmp_path / "timm"
    timm.mkdir()
    for held in (
        tmp_path / "best.keras",
        "~/best.keras",
        str(tmp_path),  # a run's folder
        foreign_files.timm(source, timm, model_args=args),
        "~/timm",
    ):
        check_same_weights(keras_vit.open_model(held), source)


def test_a_resnet_and_an_image_classifier_are_opened(tmp_path):
    resnet = keras_vit.ResNet(blocks=(1, 1), image_size=32, classes=3)
    keras_vit.save_checkpoint(resnet, tmp_path / "bit.npz")
    check_same_weights(keras_vit.open_model(tmp_path / "bit.npz"), resnet)
    classifier = small_classifier(keras.layers.Flatten())
    classifier.save(tmp_path / "own.keras")
    assert type(keras_vit.open_model(tmp_path / "own.keras")) is type(classifier)


def test_arguments_replace_the_files(tiny_vit, tmp_path):
    source = tiny_vit(gelu="exact", depth=1)
    source.save(tmp_path / "m.keras")
    path = foreign_files.timm(source, tmp_path)
    for held in (tmp_path / "m.keras", path):
        grid = None if held.suffix == ".keras" else (11, 7)
        model = keras_vit.open_model(
            held, grid=grid, classes=3, image_size=(22, 28), heads=5
        )
        assert (model.classes, model.grid) == (3, (11, 14))
    with pytest.raises(ValueError, match=r"`grid` must be None.*grid=\(11, 7\)"):
        keras_vit.open_model(tmp_path / "m.keras", grid=(11, 7))
    with pytest.raises(ValueError, match="`heads` must be 5, as the weights have it"):
        keras_vit.open_model(tmp_path / "m.keras", heads=3)


def test_published_weights_are_found_by_their_name(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "keras_vit.weights.building.fetch", lambda row: asked.append(row) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        keras_vit.open_model("B/16:augreg_in21k")
    assert (asked[0].variant, asked[0].name) == ("B/16", "augreg_in21k")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("nowhere.npz", "nowhere.npz.*does not exist"),
        ("B/16:augreg_in21", "Did you mean B/16:augreg_in21k?"),
        ("broken.keras", "broken.keras"),
        (
            "other.keras",
            "other.keras: the file holds a Sequential of Keras",
        ),
    ],
)
def test_anything_else_is_refused(name, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.keras").write_bytes(b"PK\x03\x04 not a file")
    layers = [keras.Input((2,)), keras.layers.Dense(1)]
    keras.Sequential(layers).save(tmp_path / "other.keras")
    with pytest.raises(keras_vit.KerasViTError, match=match):
        keras_vit.open_model(name)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model, and a version of it."""
    keras.utils.set_random_seed(3)
    model = keras_vit.VisionTransformer(
        patch_size=2, width=16, depth=1, mlp_dim=24, heads=2, image_size=(22, 14),
        classes=3, class_names=["a", "b", "c"], **PREPROCESSING,
    )  # fmt: skip
    head = model.get_layer("head").kernel
    head.assign(keras.random.normal(head.shape))
    folder = tmp_path_factory.mktemp("served")
    agreement = {"images": 8, "max_difference": 0.0, "top1": 1.0}
    with pytest.MonkeyPatch.context() as patch:
        agrees = contextlib.nullcontext(lambda *_: agreement)
        patch.setattr(publish, "verification", lambda: agrees)
        patch.setattr(signatures, "signature_names", lambda _: ["serve_images"])
        return model, publish.publish(model, folder).path


def test_a_served_version_is_opened_as_the_model_that_it_is_of(served):
    source, version = served
    model = keras_vit.open_model(version)
    check_same_weights(model, source)
    ours, theirs = model.get_config(), source.get_config()
    assert ours == theirs
    images = np.random.default_rng(0).integers(0, 256, (2, 22, 14, 3)).astype("uint8")
    np.testing.assert_array_equal(model(images), source(images))


def damage(version, file, change):
    path = version / file
    path.write_bytes(change(path.read_bytes()))


def shrink(text):
    manifest = json.loads(text)
    manifest["model"]["config"]["width"] = 8
    return json.dumps(manifest).encode()


def rename(text):
    return text.replace(b'"class": "VisionTransformer"', b'"class": "ImageClassifier"')


@pytest.mark.parametrize(
    ("file", "change", "match"),
    [
        ("assets.extra/manifest.json", lambda text: b"{}", "must be a whole version"),
        ("assets.extra/manifest.json", shrink, "of its manifest's model: embedding"),
        ("assets.extra/manifest.json", rename, "open the file that it was exported"),
        (
            "variables/variables.data-00000-of-00001",
            lambda data: data[:-1] + bytes([data[-1] ^ 1]),
            "must have the sha256 that the manifest states",
        ),
    ],
)
def test_a_damaged_version_is_refused(file, change, match, served, tmp_path):
    version = tmp_path / "1"
    shutil.copytree(served[1], version)
    damage(version, file, change)
    with pytest.raises(WeightsFileError, match=match):
        keras_vit.open_model(version)


def test_the_errors_have_one_base():
    for error in (
        CheckpointError,
        WeightsFileError,
        keras_vit.analysis.NotApplicableError,
    ):
        assert issubclass(error, keras_vit.KerasViTError)
    assert issubclass(keras_vit.KerasViTError, ValueError)
