"""Archived projects' own files, and what their own models answer: `make orphans`."""

import functools
import pathlib
import subprocess

import h5py
import numpy as np
import orphans
import pytest
from foreign_files import arrays_of
from orphan_weights import (
    clip_tf,
    data2vec_tf,
    deit_tf,
    hugging_face_tf,
    keras_cv,
    vit_keras,
    vit_keras_variables,
)

import keras_vit
from keras_vit.weights.checkpoint import open_checkpoint

pytestmark = pytest.mark.parity

ROOT = pathlib.Path(__file__).parents[3]
TOLERANCE = 2e-6  # of float32, relative to the largest output
PROJECTS = {2: ("hugging_face", "vit_keras", "keras_cv"), 3: ("vit_keras",)}


def python_of(release):
    return ROOT / f".venv-orphans-keras{release}" / "bin" / "python"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folder of the files of each release of Keras whose environment there is."""
    found = {}
    for release, projects in PROJECTS.items():
        if python_of(release).exists():
            found[release] = tmp_path_factory.mktemp(f"keras{release}")
            command = [python_of(release), orphans.__file__, found[release], *projects]
            subprocess.run(command, check=True, capture_output=True)
    return found


def title(value):
    return getattr(value, "__name__", str(value))


def case(release, *values):
    absent = not python_of(release).exists()
    reason = f"{python_of(release)} is absent: make orphans"
    mark = pytest.mark.skipif(absent, reason=reason)
    name = "-".join([f"keras{release}", *map(title, values)])
    return pytest.param(release, *values, marks=mark, id=name)


def check_outputs(model, folder, output):
    expected = np.load(folder / "expected.npz")
    answer = np.asarray(model(expected["pixels"]))
    assert answer.shape == expected[output].shape
    assert np.ptp(expected[output]) > 0.1  # large enough for a difference to show
    largest = np.abs(expected[output]).max()
    assert np.abs(answer - expected[output]).max() / largest < TOLERANCE


def check_writer(model, path, write):
    """What is written by hand for other tests is what the project has written."""
    with open_checkpoint(path) as checkpoint, h5py.File(path) as file:
        stored = {entry.name for entry in checkpoint.entries.values()}
        by_hand = write(arrays_of(model))
        assert by_hand.keys() == stored
        for name, array in by_hand.items():
            np.testing.assert_array_equal(array, file[name], err_msg=name)


@pytest.mark.parametrize(
    ("release", "kind", "pooling", "output"),
    [
        case(2, "vit", "token", "pooler_output"),
        case(2, "vit", None, "last_hidden_state"),
        case(2, "vit_classifier", "token", "logits"),
        case(2, "deit", "token", "pooler_output"),
        case(2, "deit", None, "last_hidden_state"),
        case(2, "deit_classifier", "token", "logits"),
        case(2, "deit_teacher", "token", "logits"),
        case(2, "deit_masked", None, "last_hidden_state"),
        case(2, "mae", None, "last_hidden_state"),
        case(2, "mae_pretraining", None, "last_hidden_state"),
        case(2, "clip", "token", "image_embeds"),
        case(2, "clip_vision", "token", "pooler_output"),
        case(2, "data2vec", None, "last_hidden_state"),
        case(2, "data2vec_shared", None, "last_hidden_state"),
        case(2, "data2vec_classifier", "avg", "logits"),
    ],
)
def test_models_of_transformers_answer_the_same(
    release, kind, pooling, output, folders
):
    folder = folders[release] / kind
    model = keras_vit.open_model(folder, pooling=pooling)
    check_outputs(model, folder, output)


@pytest.mark.parametrize(
    ("release", "kind", "write"),
    [
        case(2, "vit", hugging_face_tf),
        case(2, "vit_classifier", hugging_face_tf),
        case(2, "deit", deit_tf),
        case(2, "data2vec", data2vec_tf),
        case(2, "data2vec_classifier", data2vec_tf),
        case(2, "clip", clip_tf),
        case(2, "clip_vision", clip_tf),
    ],
)
def test_files_by_hand_are_those_of_transformers(release, kind, write, folders):
    folder = folders[release] / kind
    model = keras_vit.open_model(folder)
    check_writer(model, folder / "tf_model.h5", write)


@pytest.mark.parametrize(
    ("release", "kind"),
    [
        case(release, kind)
        for release in (2, 3)
        for kind in ("vit_keras", "vit_keras_softmax", "vit_keras_features")
    ],
)
def test_models_of_vit_keras_answer_the_same(release, kind, folders):
    folder = folders[release] / kind
    whole = folder / "whole.h5"
    model = keras_vit.open_model(whole)
    check_outputs(model, folder, "outputs")
    write = functools.partial(vit_keras, release=release)
    check_writer(model, whole, functools.partial(write, inside="model_weights/"))
    writers = {"weights.h5": write, "model.weights.h5": vit_keras_variables}
    for path in folder.glob("*weights.h5"):
        activation = model.classifier_activation
        model = keras_vit.open_model(
            path, heads=3, grid=(4, 6), classifier_activation=activation
        )
        check_outputs(model, folder, "outputs")
        check_writer(model, path, writers[path.name])


@pytest.mark.parametrize(
    ("release", "kind", "pooling"),
    [
        case(2, "keras_cv", "token"),
        case(2, "keras_cv_logits", "token"),
        case(2, "keras_cv_features", "token"),
        case(2, "keras_cv_tokens", None),
    ],
)
def test_models_of_keras_cv_answer_the_same(release, kind, pooling, folders):
    folder = folders[release] / kind
    whole = keras_vit.open_model(folder / "whole.h5", pooling=pooling)
    activation = whole.classifier_activation
    model = keras_vit.open_model(
        folder / "weights.h5", pooling=pooling, classifier_activation=activation
    )
    check_outputs(whole, folder, "outputs")
    check_outputs(model, folder, "outputs")


@pytest.mark.parametrize(("release", "kind"), [case(2, "keras_cv")])
def test_weights_by_hand_are_those_of_keras_cv(release, kind, folders):
    path = folders[release] / kind / "weights.h5"
    write = functools.partial(keras_cv, heads=3)
    check_writer(keras_vit.open_model(path), path, write)
