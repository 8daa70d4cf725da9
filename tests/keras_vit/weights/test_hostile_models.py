"""Files that describe a larger model than they hold, which would be built first."""

import json
import zipfile

import foreign_weights as foreign
import h5py
import keras
import numpy as np
import pytest
from foreign_files import arguments_of, arrays_of, write_npz, write_safetensors
from tiny_model import build_vit

import keras_vit
from keras_vit.common.command_line import CommandError
from keras_vit.errors import WeightsFileError
from keras_vit.weights.keras_files import load_keras_file
from serving.export import export_command
from training.architectures.model_reading import read_model
from training.errors import RunError

HOLDS = "A file must hold the weights of the model that it describes"


def rewrite(path, member, change):
    """Replace what a `.keras` file has in one member."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    contents[member] = change(contents[member])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


def announce(path, kind=("VisionTransformer", "ResNet"), **changes):
    """Change arguments of each model of these classes in a `.keras` file."""

    def changed(pairs):
        found = dict(pairs)
        if found.get("class_name") in kind:
            found["config"].update(changes)
        return found

    def rewritten(text):
        return json.dumps(json.loads(text, object_pairs_hook=changed)).encode()

    rewrite(path, "config.json", rewritten)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "vit.keras"
    build_vit().save(path)
    return path


@pytest.fixture
def copy(saved, tmp_path):
    path = tmp_path / "vit.keras"
    path.write_bytes(saved.read_bytes())
    return path


def test_a_file_as_keras_wrote_it_is_loaded(saved):
    model, original = load_keras_file(saved), keras.models.load_model(saved)
    for ours, theirs in zip(model.weights, original.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


LARGE = {
    "width": 10**7,
    "mlp_dim": 10**13,
    "classes": 10**13,
    "representation_size": 10**13,
    "patch_size": 10**7,
    "image_size": [10**8, 10**8],
    "register_tokens": 10**13,
    "depth": 300,
    "branches": 300,
    "resnet_blocks": [300],
}


@pytest.mark.parametrize("name", LARGE)
def test_a_config_that_announces_more_than_the_weights_is_refused(copy, name):
    announce(copy, **{name: LARGE[name]})
    with pytest.raises(WeightsFileError, match=HOLDS):
        load_keras_file(copy)


@pytest.mark.parametrize(
    ("load", "error"),
    [
        (keras_vit.VisionTransformer.from_preset, WeightsFileError),
        (keras_vit.open_model, WeightsFileError),
        (read_model, RunError),
        (export_command.load, CommandError),
    ],
)
def test_every_way_to_a_keras_file_compares(copy, load, error):
    announce(copy, width=10**7)
    with pytest.raises(error, match=HOLDS):
        load(copy)


@pytest.mark.parametrize(
    ("name", "value"), [("blocks", [300]), ("width_factor", 10**6), ("classes", 10**13)]
)
def test_a_resnet_that_is_larger_than_its_weights_is_refused(name, value, tmp_path):
    path = tmp_path / "resnet.keras"
    keras_vit.ResNet(image_size=32, blocks=(1,), classes=7).save(path)
    announce(path, **{name: value})
    with pytest.raises(WeightsFileError, match=HOLDS):
        load_keras_file(path)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("VisionTransformer", {"width": 10**7}),
        ("ImageClassifier", {"classes": 10**13}),
    ],
)
def test_both_parts_of_a_classifier_are_compared(kind, changes, tmp_path):
    path = tmp_path / "classifier.keras"
    backbone = build_vit(classes=None)
    keras_vit.ImageClassifier(backbone=backbone, classes=3).save(path)
    load_keras_file(path)
    announce(path, (kind,), **changes)
    with pytest.raises(WeightsFileError, match=HOLDS):
        load_keras_file(path)


def test_a_config_of_many_megabytes_is_refused(copy):
    rewrite(copy, "config.json", lambda text: b" " * 2**23 + text)
    with pytest.raises(WeightsFileError, match="more JSON than"):
        load_keras_file(copy)


def test_another_member_of_many_megabytes_is_refused(copy):
    with zipfile.ZipFile(copy, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("assets/a.txt", bytes(2**26))
    with pytest.raises(WeightsFileError, match="announce arrays of"):
        load_keras_file(copy)


def test_weights_from_another_file_are_refused(copy, tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["a"] = np.zeros(3)

    def linked(content):
        (tmp_path / "w.h5").write_bytes(content)
        with h5py.File(tmp_path / "w.h5", "a") as file:
            file["layers/x"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/a")
        return (tmp_path / "w.h5").read_bytes()

    rewrite(copy, "model.weights.h5", linked)
    with pytest.raises(WeightsFileError, match="'layers/x' is a link"):
        load_keras_file(copy)


def test_an_archive_without_weights_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    with pytest.raises(WeightsFileError, match="a ZIP archive without"):
        load_keras_file(tmp_path / "a.keras")


def test_a_model_in_an_older_hdf5_file_is_loaded(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.save(tmp_path / "a.h5")
    loaded = load_keras_file(tmp_path / "a.h5")
    np.testing.assert_array_equal(loaded.weights[0], model.weights[0])


# Checkpoints of other projects: the arrays that show the sizes, without the others.


@pytest.fixture(scope="module")
def arrays():
    return arrays_of(build_vit())


def test_a_block_of_a_large_number_is_refused(arrays, tmp_path):
    theirs = foreign.timm(arrays)
    theirs["blocks.99999999.norm1.weight"] = theirs["blocks.0.norm1.weight"]
    path = write_safetensors(tmp_path / "a.safetensors", theirs)
    with pytest.raises(WeightsFileError, match=r"all blocks.*number 99999999"):
        arguments_of(path)


def test_branches_that_block_0_alone_shows_are_compared_with_all(tmp_path):
    theirs = {}
    for name, array in foreign.timm(arrays_of(build_vit())).items():
        name = name.replace(".attn.", ".attns.0.attn.").replace(".mlp.", ".ffns.0.mlp.")
        name = name.replace(".norm1.", ".attns.0.norm.")
        theirs[name.replace(".norm2.", ".ffns.0.norm.")] = array
    norm = theirs["blocks.0.attns.0.norm.weight"]
    theirs |= {f"blocks.0.attns.{n}.norm.weight": norm for n in range(1, 60)}
    path = write_safetensors(tmp_path / "a.safetensors", theirs)
    with pytest.raises(WeightsFileError, match=HOLDS):
        arguments_of(path)


def test_a_unit_of_a_large_number_is_refused(tmp_path):
    resnet = keras_vit.ResNet(image_size=32, blocks=(1,), classes=7)
    theirs = foreign.bit(arrays_of(resnet))
    name = next(n for n in theirs if "block1/unit01/a/standardized_conv2d" in n)
    theirs[name.replace("unit01", "unit99999999")] = theirs[name]
    with pytest.raises(WeightsFileError, match=r"all blocks.*number 99999999"):
        arguments_of(write_npz(tmp_path / "a.npz", theirs))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("embedding/kernel", (1, 1, 3, 10**5)),
        ("head/kernel", (1, 10**6)),
        ("Transformer/posembed_input/pos_embedding", (1, 10**6 + 1, 1)),
    ],
)
def test_sizes_that_one_array_shows_are_compared_with_all(
    arrays, name, shape, tmp_path
):
    theirs = foreign.google(arrays, 5)
    theirs[name] = np.zeros(shape, "float32")
    with pytest.raises(WeightsFileError, match=HOLDS):
        arguments_of(write_npz(tmp_path / "a.npz", theirs))


def test_an_array_of_very_many_blocks_is_not_taken_apart(arrays, tmp_path):
    stacked = {}
    for name, array in foreign.big_vision(arrays, 5).items():
        first = name.replace("encoderblock_0/", "encoderblock/")
        if first != name:
            stacked[first] = np.zeros((1001, *array.shape), "float32")
        elif "encoderblock_" not in name:
            stacked[name] = array
    with pytest.raises(WeightsFileError, match="must have the weights of"):
        arguments_of(write_npz(tmp_path / "a.npz", stacked))
