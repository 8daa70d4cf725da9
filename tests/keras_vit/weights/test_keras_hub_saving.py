"""Presets of keras-hub that we write, and what keras-hub computes of them."""

import json
import logging
import warnings

import foreign_weights as foreign
import h5py
import numpy as np
import pytest
from foreign_files import arrays_of, check_same_weights, needs
from tiny_model import numpy

import keras_vit
from keras_vit.errors import CheckpointError
from keras_vit.weights.loading import load_checkpoint

EXACT = {"gelu": "exact"}
BARE = {**EXACT, "classes": None, "pooling": None}
SQUARE = {"image_size": (14, 14)}
DINOV2 = {**BARE, **SQUARE, "layer_scale": 0.1}
REGISTERS = {"register_tokens": 3, "prefix_positions": False}
DINOV3 = {
    **BARE,
    "layer_scale": 0.1,
    "norm_epsilon": 1e-5,
    "rotary": "centered",
    "position_embedding": "none",
    "width": 24,
    "heads": 3,
}
CLIP = {
    **BARE,
    **SQUARE,
    "gelu": "quick",
    "norm_epsilon": 1e-5,
    "embedding_bias": False,
    "embedding_norm": True,
}
NO_ATTENTION_BIASES = dict.fromkeys(
    ("query_bias", "key_bias", "value_bias", "output_bias"), False
)
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


def hdf5(path):
    """The arrays of a file by their full names."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def document(folder, name):
    return json.loads((folder / name).read_text())


@pytest.mark.parametrize("kwargs", [{}, {"representation_size": 9}])
def test_a_preset_has_the_expected_arrays(kwargs, tiny_vit, tmp_path):
    model = tiny_vit(**EXACT, **kwargs)
    keras_vit.save_checkpoint(model, tmp_path, "keras_hub")
    files = foreign.keras_hub(arrays_of(model), model.heads)
    for name, expected in zip(("model", "task"), files, strict=True):
        found = hdf5(tmp_path / f"{name}.weights.h5")
        assert found.keys() == expected.keys()
        for array in found:
            if not array.startswith("optimizer/"):
                np.testing.assert_array_equal(found[array], expected[array], array)


def test_a_preset_states_the_model_and_the_task_around_it(tiny_vit, tmp_path):
    layer = keras_vit.ImagePreprocessing(
        (22, 14), mean=MEAN, std=STD, interpolation="bicubic", antialias=True
    )
    model = tiny_vit(
        **EXACT, mlp_bias=False, classifier_activation="softmax", preprocessing=layer
    )
    files = keras_vit.save_checkpoint(model, tmp_path, "keras_hub")
    assert sorted(file.name for file in files) == [
        *("config.json", "image_converter.json", "model.weights.h5"),
        *("preprocessor.json", "task.json", "task.weights.h5"),
    ]
    backbone = document(tmp_path, "config.json")
    assert backbone["registered_name"] == "keras_hub>ViTBackbone"
    stated = {"image_shape": [22, 14, 3], "hidden_dim": 15, "num_heads": 5}
    assert backbone["config"].items() >= {**stated, "use_mlp_bias": False}.items()
    task = document(tmp_path, "task.json")
    assert task["class_name"] == "ViTImageClassifier"
    assert task["config"]["backbone"] == backbone
    assert task["config"]["preprocessor"] == document(tmp_path, "preprocessor.json")
    assert (task["config"]["num_classes"], task["config"]["pooling"]) == (7, "token")
    assert task["config"]["activation"] == "softmax"
    converter = document(tmp_path, "image_converter.json")["config"]
    assert converter["scale"] == pytest.approx([1 / std for std in STD])
    again = keras_vit.open_model(tmp_path)
    assert again.classifier_activation == "softmax"
    assert (
        again.preprocessing.get_config().items()
        >= {
            **{"mean": MEAN, "std": STD, "interpolation": "bicubic", "antialias": True},
            **{"resize": "plain", "crop_fraction": 1.0},
        }.items()
    )


def test_a_model_without_preprocessing_states_none(tiny_vit, tmp_path):
    files = keras_vit.save_checkpoint(tiny_vit(**BARE), tmp_path, "keras_hub")
    assert {file.name for file in files} == {"model.weights.h5", "config.json"}
    assert keras_vit.open_model(tmp_path).preprocessing is None


def test_preprocessing_that_it_cannot_state_gives_a_warning(tiny_vit, tmp_path):
    layer = keras_vit.ImagePreprocessing(
        (22, 14), crop_fraction=0.875, convention="timm"
    )
    model = tiny_vit(**EXACT, preprocessing=layer)
    with pytest.warns(UserWarning, match=r"crop_fraction=0.875, convention='timm'"):
        keras_vit.save_checkpoint(model, tmp_path, "keras_hub")


@pytest.mark.parametrize(
    "other", ["task.json", "task.weights.h5", "image_converter.json"]
)
def test_files_of_another_model_in_the_folder_are_refused(other, tiny_vit, tmp_path):
    """keras-hub and we would read them as this model's."""
    (tmp_path / other).write_text("{}")
    with pytest.raises(ValueError, match=f"would be read as the model's.*{other}"):
        keras_vit.save_checkpoint(tiny_vit(**BARE), tmp_path, "keras_hub")
    assert [file.name for file in tmp_path.iterdir()] == [other]


def test_a_preset_replaces_one_of_the_same_kind(tiny_vit, tmp_path):
    keras_vit.save_checkpoint(tiny_vit(**EXACT), tmp_path, "keras_hub")
    model = tiny_vit(**EXACT, seed=12)
    keras_vit.save_checkpoint(model, tmp_path, "keras_hub")
    check_same_weights(keras_vit.open_model(tmp_path), model)


@pytest.mark.parametrize(
    ("kwargs", "reasons"),
    [
        (
            {**EXACT, "register_tokens": 1, "distilled": True},
            ["keras-hub DeiT", "no place for head_dist/kernel"],
        ),
        (
            {**DINOV2, "swiglu": True},
            ["keras-hub DINOv2", "intermediate_dim can state a SwiGLU's mlp_dim that"],
        ),
        ({**DINOV2, "image_size": (22, 14)}, ["image_size must be square, not 22 x"]),
        ({**DINOV3, "classes": 7, "pooling": "token"}, ["classes must be None"]),
        (
            {**DINOV2, "register_tokens": 1},
            ["prefix_positions must be False with register tokens"],
        ),
        ({**DINOV3, "gelu": "tanh"}, ["hidden_activation can state one of 'exact', '"]),
        ({**DINOV3, "rotary_axes": "xy"}, ["DINOv3", "rotary_axes must be 'yx'"]),
        ({**CLIP, "projection": 9, "pooling": "token"}, ["projection must be None"]),
        ({**CLIP, "gelu": "tanh"}, ["intermediate_activation can state one of"]),
        (
            {"classes": None, "class_token": False, "pooling": "map", "norm": "rms"},
            ["keras-hub SigLIP", "norm must be 'layer'", "image_size must be square"],
        ),
    ],
)
def test_what_its_other_classes_cannot_hold_is_refused(
    kwargs, reasons, tiny_vit, tmp_path
):
    with pytest.raises(CheckpointError) as caught:
        keras_vit.save_checkpoint(tiny_vit(**kwargs), tmp_path / "x", "keras_hub")
    for reason in reasons:
        assert reason in str(caught.value)
    assert not (tmp_path / "x").exists()


def test_the_tables_of_a_dinov2_that_contradict_each_other_are_reported(
    tiny_vit, tmp_path
):
    """The one that the model was saved with is read, and not what keras-hub reads."""
    source = tiny_vit(**DINOV2)
    keras_vit.save_checkpoint(source, tmp_path, "keras_hub")
    model = tiny_vit(seed=12, **DINOV2)
    report = load_checkpoint(model, tmp_path)
    assert not any("contradict" in note for note in report.notes)
    embedding = "layers/dinov2_embedding/vars"
    with h5py.File(tmp_path / "model.weights.h5", "r+") as file:
        largest = np.abs(file[f"{embedding}/2"]).max()
        file[f"{embedding}/3"][0, 1, 2] += largest / 4
    (note,) = load_checkpoint(model, tmp_path).notes
    assert f"`{embedding}/2` and `{embedding}/3` contradict each other, by 25" in note
    check_same_weights(model, source)


def opened(folder):
    """keras-hub's model of a preset; any warning is an error."""
    import keras_hub

    kind = "task.json" if (folder / "task.json").exists() else "config.json"
    kind = getattr(keras_hub.models, document(folder, kind)["class_name"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return kind.from_preset(str(folder))


@pytest.mark.parity
@needs("keras_hub")
@pytest.mark.parametrize(
    "kwargs",
    [
        EXACT,
        BARE,
        {**EXACT, "pooling": "avg", "class_token": False, "norm_epsilon": 1e-5},
        {**EXACT, "representation_size": 9, "classifier_activation": "sigmoid"},
        {**EXACT, **NO_ATTENTION_BIASES, "mlp_bias": False, "embedding_bias": False},
        {**EXACT, "register_tokens": 1},
        {**BARE, **NO_ATTENTION_BIASES, "register_tokens": 1},
        DINOV2,
        {**DINOV2, **REGISTERS},
        {**DINOV2, "swiglu": True, "mlp_dim": 24},
        {**DINOV3, "rotary_temperature": 10.0},
        {**DINOV3, "gelu": "silu", "register_tokens": 3, "output_bias": False},
        {**DINOV3, "swiglu": True, "key_bias": False, "mlp_bias": False},
        CLIP,
        {**CLIP, "gelu": "silu"},
        {**BARE, **SQUARE, "gelu": "tanh", "class_token": False, "pooling": "map"},
    ],
)
def test_keras_hub_computes_the_same_of_what_we_write(kwargs, tiny_vit, tmp_path):
    model = tiny_vit(**kwargs)
    keras_vit.save_checkpoint(model, tmp_path, "keras_hub")
    twin = opened(tmp_path)
    pixels = np.random.default_rng(3).normal(size=(2, *model.image_size, 3))
    expected = numpy(model(pixels))
    named = isinstance(twin.input, dict)
    found = numpy(twin(dict.fromkeys(twin.input, pixels) if named else pixels))
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parity
@needs("keras_hub")
def test_keras_hub_predicts_the_same_of_pixels(tiny_vit, tmp_path):
    """Of images of the model's size, and of larger ones that it resizes."""
    layer = keras_vit.ImagePreprocessing((22, 14), mean=MEAN, std=STD)
    model = tiny_vit(**EXACT, preprocessing=layer, include_preprocessing=False)
    keras_vit.save_checkpoint(model, tmp_path, "keras_hub")
    twin = opened(tmp_path)
    # Twice the size and bilinear: means of two by two pixels, which ours rounds.
    blocks = np.random.default_rng(3).integers(0, 256, (3, 22, 14, 3))
    images = blocks.repeat(2, axis=1).repeat(2, axis=2)
    expected = numpy(model(layer(images)))
    found = twin.predict(images, verbose=0)
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()
    found = twin.predict(blocks, verbose=0)
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parity
@needs("keras_hub")
def test_a_dinov2_that_keras_hub_opens_otherwise_is_reported(tmp_path, caplog):
    """Trained for other images than its positions, then saved by keras-hub."""
    import keras_hub

    model = keras_hub.models.DINOV2Backbone(
        patch_size=2,
        num_layers=1,
        hidden_dim=15,
        num_heads=5,
        intermediate_dim=23,
        image_shape=(14, 14, 3),
        position_embedding_shape=(18, 18, 3),
    )
    caplog.set_level(logging.WARNING, "keras_vit")
    model.save_to_preset(str(tmp_path / "new"))
    keras_vit.open_model(tmp_path / "new")
    assert "contradict" not in caplog.text
    table = model.embeddings.interpolated_position_embeddings
    table.assign_add(np.random.default_rng(3).normal(size=table.shape) / 9)
    pixels = np.ones((1, 14, 14, 3))
    expected = numpy(model({"images": pixels}))
    model.save_to_preset(str(tmp_path / "trained"))
    ours = keras_vit.open_model(tmp_path / "trained", pooling=None)
    assert "contradict each other" in caplog.text
    found = numpy(ours(pixels))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    again = opened(tmp_path / "trained")
    assert np.abs(numpy(again({"images": pixels})) - expected).max() > 1e-3
