"""Files of archived TensorFlow projects, written by hand; `make orphans` has theirs."""

import json

import h5py
import numpy as np
import pytest
from foreign_files import (
    arrays_of,
    check_same_options,
    check_same_weights,
    edit,
    write_hdf5,
)
from orphan_weights import (
    clip_tf,
    data2vec_tf,
    deit_tf,
    hugging_face_tf,
    keras_cv,
    vit_keras,
    vit_keras_variables,
    write_keras_cv,
    write_vit_keras,
)

import keras_vit
from keras_vit.commands import main
from keras_vit.weights import WeightsFileError
from keras_vit.weights.checkpoint import open_checkpoint

HUGGING_FACE = {"gelu": "exact", "norm_epsilon": 1e-12}
VIT_KERAS = {"gelu": "exact", "norm_epsilon": 1e-6}


def write_hugging_face(model, folder, more=None, write=hugging_face_tf, **config):
    arrays = write(arrays_of(model)) | (more or {})
    write_hdf5(folder / "tf_model.h5", arrays)
    document = {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "image_size": [*model.image_size],
        "patch_size": model.patch_size,
        "hidden_size": model.width,
        "num_hidden_layers": model.depth,
        "num_attention_heads": model.heads,
        "intermediate_size": model.mlp_dim,
        "num_labels": model.classes,
    }
    if model.classes is None:
        document["architectures"] = ["ViTModel"]
    (folder / "config.json").write_text(json.dumps(document | config))
    return folder


def write_config(path, change):
    """Change the config of a whole model; `change` gets its layers."""
    with h5py.File(path, "a") as file:
        config = json.loads(file.attrs["model_config"])
        change(config["config"]["layers"])
        file.attrs["model_config"] = json.dumps(config)


# transformers


FEATURES = {"classes": None}
SQUARE = {"image_size": (28, 28)}
CLIP = {
    **{"gelu": "quick", "norm_epsilon": 1e-5, "classes": None},
    **{"embedding_bias": False, "embedding_norm": True},
}
DATA2VEC = {"key_bias": False, "layer_scale": 0.1}
DATA2VEC_FEATURES = {
    "model_type": "data2vec-vision",
    "architectures": ["Data2VecVisionModel"],
}
DATA2VEC_CLASSIFIER = {
    "model_type": "data2vec-vision",
    "architectures": ["Data2VecVisionForImageClassification"],
}


CASES = [
    (hugging_face_tf, {}, {}),
    (hugging_face_tf, {**FEATURES, "representation_size": 15}, {}),
    (deit_tf, {**FEATURES, "register_tokens": 1}, {"model_type": "deit"}),
    (hugging_face_tf, {**FEATURES, "gelu": "tanh"}, {"hidden_act": "gelu_new"}),
    (
        *(hugging_face_tf, {**FEATURES, "norm_epsilon": 0.1}),
        {"layer_norm_eps": 0.1},
    ),
    (
        *(clip_tf, CLIP),
        {"model_type": "clip_vision_model", "architectures": ["CLIPVisionModel"]},
    ),
    (
        data2vec_tf,
        {**DATA2VEC, **FEATURES, "final_norm": False},
        {**DATA2VEC_FEATURES, "use_absolute_position_embeddings": True},
    ),
    (
        data2vec_tf,
        {
            **{**DATA2VEC, "fc_norm": True, "pooling": "avg"},
            **{"position_embedding": "none", "relative_bias": "every_layer"},
            **SQUARE,
        },
        {**DATA2VEC_CLASSIFIER, "use_relative_position_bias": True},
    ),
    (
        data2vec_tf,
        {
            **{**DATA2VEC, **FEATURES, "final_norm": False, "layer_scale": None},
            **{"position_embedding": "none", "relative_bias": "shared"},
            **SQUARE,
        },
        {
            **DATA2VEC_FEATURES,
            "use_shared_relative_position_bias": True,
            "layer_scale_init_value": 0,
        },
    ),
]


@pytest.mark.parametrize(("write", "kwargs", "config"), CASES)
def test_a_file_of_transformers_is_read(write, kwargs, config, tiny_vit, tmp_path):
    source = tiny_vit(**{**HUGGING_FACE, **kwargs})
    folder = write_hugging_face(source, tmp_path, write=write, **config)
    for path in (folder, folder / "tf_model.h5"):
        model = keras_vit.open_model(path)
        check_same_options(model, source)
        check_same_weights(model, source)


# A BEiT without LayerScale, the last, has no place in PyTorch's.
@pytest.mark.parametrize(("write", "kwargs", "config"), CASES[:-1])
def test_a_file_of_transformers_is_written_for_pytorch(
    write, kwargs, config, tiny_vit, tmp_path
):
    source = tiny_vit(**{**HUGGING_FACE, **kwargs})
    folder = write_hugging_face(source, tmp_path, write=write, **config)
    out = tmp_path / "for_pytorch"
    assert main(["convert", str(folder), str(out), "--to", "hugging_face"]) == 0
    model = keras_vit.open_model(out)
    check_same_options(model, source)
    check_same_weights(model, source)


def test_the_image_tower_of_a_clip_of_tensorflow_is_read(tiny_vit, tmp_path):
    source = tiny_vit(**CLIP, projection=11)
    more = {
        "clip/tfclip_model/clip/logit_scale:0": np.ones(1, "float32"),
        "clip/tfclip_model/clip/text_projection/kernel:0": np.ones((3, 11), "float32"),
        "clip/tfclip_model/clip/text_model/final_layer_norm/beta:0": np.ones(3),
    }
    folder = write_hugging_face(source, tmp_path, more, clip_tf)
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "clip",
                "architectures": ["CLIPModel"],
                "projection_dim": 11,
                "vision_config": {**document, "model_type": "clip_vision_model"},
            }
        )
    )
    model = keras_vit.open_model(folder)
    check_same_options(model, source)
    check_same_weights(model, source)


def test_what_pretraining_alone_has_is_left_out(tiny_vit, tmp_path):
    source = tiny_vit(**HUGGING_FACE, classes=None)
    decoder = "decoder/tf_vi_tmae_for_pre_training/decoder"
    mask = "vit/tf_vi_tmae_for_pre_training/vit/embeddings/mask_token:0"
    more = {
        f"{decoder}/decoder_embed/kernel:0": np.ones((15, 3), "float32"),
        f"{decoder}/decoder_layers.0/attention/output/dense/bias:0": np.ones(3),
        mask: np.ones((1, 1, 15), "float32"),
    }
    folder = write_hugging_face(source, tmp_path, more, model_type="vit_mae")
    check_same_weights(keras_vit.open_model(folder), source)
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.outside == sorted(more)


def test_biases_that_tensorflows_models_have_in_any_case_are_read(tiny_vit, tmp_path):
    source = tiny_vit(**HUGGING_FACE)
    folder = write_hugging_face(source, tmp_path, qkv_bias=False)
    check_same_weights(keras_vit.open_model(folder), source)


def test_the_names_of_classes_and_the_pixels_are_read(tiny_vit, tmp_path):
    names = [f"class {i}" for i in range(7)]
    labels = {str(i): name for i, name in enumerate(names)}
    folder = write_hugging_face(tiny_vit(**HUGGING_FACE), tmp_path, id2label=labels)
    processor = {"image_processor_type": "ViTImageProcessor", "image_mean": [0.4] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    model = keras_vit.open_model(folder)
    assert list(model.class_names) == names
    assert model.preprocessing.mean == pytest.approx(0.4 * 255)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "swin"}, "must hold a model that opens here.*'swin'"),
        ({"hidden_size": 16}, "`hidden_size` states width=16, and the arrays .*=15"),
        ({"pooler_act": "relu"}, "`pooler_act` must be 'tanh'"),
        ({"is_hybrid": True}, "known here.*`is_hybrid`"),
    ],
)
def test_a_config_of_another_model_is_refused(config, message, tiny_vit, tmp_path):
    folder = write_hugging_face(tiny_vit(**HUGGING_FACE), tmp_path)
    edit(folder / "config.json", **config)
    with pytest.raises(WeightsFileError, match=message):
        keras_vit.open_model(folder)


# vit-keras


@pytest.mark.parametrize("release", [2, 3])
@pytest.mark.parametrize(
    "kwargs",
    [
        {"representation_size": 13, "classifier_activation": "softmax"},
        {"classes": None},
    ],
)
def test_a_whole_model_of_vit_keras_is_read(release, kwargs, tiny_vit, tmp_path):
    source = tiny_vit(**VIT_KERAS, **kwargs)
    path = write_vit_keras(source, tmp_path / "whole.h5", release)
    model = keras_vit.open_model(path)
    check_same_options(model, source)
    check_same_weights(model, source)
    assert model.classifier_activation == source.classifier_activation


@pytest.mark.parametrize(
    "write",
    [
        vit_keras,
        lambda w: vit_keras(w, release=3),
        lambda w: vit_keras(w, inside="model_weights/", layer="vit-b16"),
        vit_keras_variables,
    ],
    ids=["keras 2", "keras 3", "inside a model", "variables"],
)
@pytest.mark.parametrize("representation_size", [None, 13])
def test_weights_of_vit_keras_are_read(write, representation_size, tiny_vit, tmp_path):
    source = tiny_vit(**VIT_KERAS, representation_size=representation_size)
    path = write_hdf5(tmp_path / "x.weights.h5", write(arrays_of(source)))
    model = keras_vit.open_model(path, heads=5, grid=(11, 7))
    check_same_options(model, source)
    check_same_weights(model, source)
    with pytest.raises(ValueError, match="`heads` must be given"):
        keras_vit.open_model(path, grid=(11, 7))


def test_layers_around_a_model_of_vit_keras_are_outside(tiny_vit, tmp_path):
    source = tiny_vit(**VIT_KERAS, classes=None)
    path = write_vit_keras(source, tmp_path / "whole.h5")
    more = ["model_weights/dense/dense/kernel:0", "optimizer_weights/Adam/head/bias:0"]
    with h5py.File(path, "a") as file:
        for name in more:
            file[name] = np.ones((15, 3), "float32")
    check_same_weights(keras_vit.open_model(path), source)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.outside == more


def test_variables_of_layers_around_a_model_of_vit_keras_are_outside(
    tiny_vit, tmp_path
):
    source = tiny_vit(**VIT_KERAS, classes=None)
    arrays = {
        f"layers/functional/{name}": array
        for name, array in vit_keras_variables(arrays_of(source)).items()
    }
    more = ["layers/dense/vars/0", "optimizer/vars/1"]
    arrays |= {name: np.ones((15, 3), "float32") for name in more}
    path = write_hdf5(tmp_path / "x.weights.h5", arrays)
    model = keras_vit.open_model(path, heads=5, grid=(11, 7))
    check_same_weights(model, source)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.outside == more


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layers: layers[2]["config"].update(num_heads=3), "the same in all"),
        (lambda layers: layers[2]["config"].update(mlp_dim=24), "the same in all"),
        (lambda layers: layers.pop(2), "states depth=1, and the arrays .*=2"),
        (lambda layers: layers[2]["config"].pop("num_heads"), "malformed"),
    ],
)
def test_a_config_that_contradicts_a_whole_model_is_refused(
    change, message, tiny_vit, tmp_path
):
    path = write_vit_keras(tiny_vit(**VIT_KERAS), tmp_path / "whole.h5")
    write_config(path, change)
    with pytest.raises(WeightsFileError, match=message):
        keras_vit.open_model(path)


# keras-cv


@pytest.mark.parametrize("made", [0, 7])
def test_weights_of_keras_cv_are_read(made, tiny_vit, tmp_path):
    source = tiny_vit()
    arrays = keras_cv(arrays_of(source), source.heads, made)
    path = write_hdf5(tmp_path / "x.h5", arrays)
    model = keras_vit.open_model(path, grid=(11, 7))
    check_same_options(model, source)
    check_same_weights(model, source)


@pytest.mark.parametrize(
    ("kwargs", "config"),
    [
        ({"classifier_activation": "softmax"}, {}),
        (
            {"classes": None},
            {"pooling": "token_pooling", "classifier_activation": "softmax"},
        ),
    ],
)
def test_a_whole_model_of_keras_cv_is_read(kwargs, config, tiny_vit, tmp_path):
    source = tiny_vit(**kwargs)
    path = write_keras_cv(source, tmp_path / "x.h5", **config)
    with h5py.File(path, "a") as file:
        file["optimizer_weights/Adam/m/dense_9/bias:0"] = np.ones(7, "float32")
    model = keras_vit.open_model(path)
    check_same_options(model, source)
    check_same_weights(model, source)
    assert model.classifier_activation == source.classifier_activation


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"activation": "relu"}, WeightsFileError, "`activation` of a ViT must be one"),
        ({"num_heads": 3}, WeightsFileError, "states heads=3, and the arrays .*=5"),
        ({"pooling": "avg"}, ValueError, "'avg' of all tokens"),
    ],
)
def test_what_no_model_here_computes_is_refused(
    config, error, message, tiny_vit, tmp_path
):
    path = write_keras_cv(tiny_vit(classes=None), tmp_path / "x.h5", **config)
    with pytest.raises(error, match=message):
        keras_vit.open_model(path)


# Commands


@pytest.mark.parametrize(
    ("project", "family"),
    [
        ("transformers", "hugging_face"),
        ("vit-keras", "hugging_face"),
        ("vit-keras", "timm"),
        ("keras-cv", "hugging_face"),
        ("keras-cv", "timm"),
    ],
)
def test_convert_writes_them_for_other_libraries(project, family, tiny_vit, tmp_path):
    if project == "transformers":
        source = tiny_vit(**HUGGING_FACE)
        path = write_hugging_face(source, tmp_path) / "tf_model.h5"
    elif project == "vit-keras":
        source = tiny_vit(**VIT_KERAS)
        path = write_vit_keras(source, tmp_path / "whole.h5")
    else:
        source = tiny_vit()
        path = write_keras_cv(source, tmp_path / "whole.h5")
    assert main(["convert", str(path), str(tmp_path / "out"), "--to", family]) == 0
    model = keras_vit.open_model(tmp_path / "out")
    check_same_options(model, source)
    check_same_weights(model, source)


def test_info_prints_what_they_are(tiny_vit, tmp_path, capsys):
    path = write_vit_keras(tiny_vit(**VIT_KERAS), tmp_path / "whole.h5")
    assert main(["info", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "vit-keras" in printed
