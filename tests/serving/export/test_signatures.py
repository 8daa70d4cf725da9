"""The six signatures: types, shapes, and agreement with the Keras model."""

import functools
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from few_formats import few_formats
from saved_models import SavedModel, examples, pictures, png_files
from tiny_model import small_classifier, with_random_weights

import keras_vit
from serving.export.options import ExportOptions
from serving.export.signatures import class_labels, save, signature_names

NAMES = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu"]
ANSWERS = {"classes", "class_ids", "scores"}


def build_vit(tiny_vit):
    return tiny_vit(
        channels=1,
        preprocessing=keras_vit.ImagePreprocessing((22, 14), resize="small"),
        representation_size=13,
        classifier_activation="sigmoid",
        class_names=NAMES,
    )


def build_classifier(_):
    model = small_classifier(
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(15),
        classes=7,
        preprocessing=keras_vit.ImagePreprocessing((22, 14), mean=3.0, std=50.0),
        class_names=NAMES,
    )
    return with_random_weights(model, 5)


def build_normalized(tiny_vit):
    """Reads normalized pixels, as a checkpoint of DeiT."""
    mean, std = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
    return tiny_vit(
        preprocessing=keras_vit.ImagePreprocessing((22, 14), mean=mean, std=std),
        include_preprocessing=False,
        class_names=NAMES,
    )


BUILDERS = {
    "vit": build_vit,
    "normalized": build_normalized,
    "classifier": build_classifier,
}
FAST = ("vit", "classifier")
TOP_K = {keras_vit.VisionTransformer: 3, keras_vit.ImageClassifier: 1000}  # of 7


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Exports a model; gives the folder."""

    def export(model, **options):
        folder = tmp_path_factory.mktemp("version") / "1"
        with few_formats():
            save(model, folder, ExportOptions(**options))
        return folder

    return export


@pytest.fixture(scope="module")
def pairs(tiny_vit, exported):
    """Gives the model of a name, and its export in a session."""

    @functools.cache
    def pair(name):
        model = BUILDERS[name](tiny_vit)
        return model, SavedModel(exported(model, top_k=TOP_K[type(model)]))

    return pair


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
        for name in BUILDERS
    ],
)
def pair(request, pairs):
    return pairs(request.param)


@pytest.fixture(scope="module")
def vit(pairs):
    return pairs("vit")


def keras_pixels(model, images):
    """The model's input for uint8 images: raw or normalized pixels."""
    pixels = images.astype("float32")
    if model.reads_raw_pixels:
        return pixels
    if model.preprocessing is None:
        return (pixels - 127.5) / 127.5
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    return ((pixels / 255 - mean) / std).astype("float32")


def keras_scores(model, images):
    outputs = model(keras_pixels(model, images), training=False)
    return (outputs if model.classifier_activation else tf.nn.softmax(outputs)).numpy()


def keras_embedding(model, images):
    inner = keras.Model(model.input, model.get_layer("head").input)
    return inner(keras_pixels(model, images), training=False).numpy()


def contract(signature):
    def side(infos):
        return {
            alias: (
                tf.as_dtype(info.dtype).name,
                None
                if info.tensor_shape.unknown_rank
                else [dim.size for dim in info.tensor_shape.dim],
            )
            for alias, info in infos.items()
        }

    return side(signature.inputs), side(signature.outputs)


def test_names_types_and_shapes(pair):
    model, served = pair
    image = [-1, 22, 14, model.channels]
    files = {"image_bytes": ("string", [-1])}
    count = min(TOP_K[type(model)], 7)
    best = {
        "classes": ("string", [-1, count]),
        "class_ids": ("int64", [-1, count]),
        "scores": ("float32", [-1, count]),
    }
    scores = {name: ("float32", [-1, 7]) for name in ("logits", "probabilities")}
    width = model.get_layer("head").kernel.shape[0]
    expected = {
        "serving_default": (files, best),
        "serve_images": ({"images": ("uint8", image)}, best),
        "serve_pixels": ({"pixel_values": ("float32", image)}, scores),
        "embed": (files, {"embedding": ("float32", [-1, width])}),
        "classify": (
            {"inputs": ("string", [-1])},
            {name: best[name] for name in ("classes", "scores")},
        ),
    }
    if isinstance(model, keras_vit.VisionTransformer):
        rollout = {"rollout": ("float32", [-1, 11, 7]), "seen_bytes": ("string", [-1])}
        expected["attention"] = (files, rollout)
    found = {name: contract(served.signatures[name]) for name in served.signatures}
    assert found == expected
    assert set(signature_names(model)) == set(expected)


def test_axial_attention_has_no_attention_signature(tiny_vit):
    model = tiny_vit(attention="axial", class_token=False, pooling="avg")
    assert "attention" not in signature_names(model)


def test_files_images_and_examples_get_the_best_classes(pair):
    model, served = pair
    images = pictures(model.channels)
    files = png_files(images)
    expected = keras_scores(model, images)
    count = min(TOP_K[type(model)], 7)
    order = np.argsort(-expected, axis=1)[:, :count]
    for name, given in (
        ("serving_default", files),
        ("serve_images", images),
        ("classify", examples(files)),
    ):
        answer = served.run(name, given)
        best = np.take_along_axis(expected, order, 1)
        np.testing.assert_allclose(answer["scores"], best, rtol=0, atol=1e-6)
        assert answer["classes"].tolist() == [
            [NAMES[index].encode() for index in row] for row in order
        ]
        if name != "classify":
            np.testing.assert_array_equal(answer["class_ids"], order)


def test_pixels_get_logits_and_probabilities(pair):
    model, served = pair
    images = pictures(model.channels)
    layer = model.preprocessing or keras_vit.ImagePreprocessing((22, 14))
    answer = served.run("serve_pixels", layer(images).numpy())
    head = model.get_layer("head")
    logits = keras_embedding(model, images) @ head.kernel.numpy() + head.bias.numpy()
    np.testing.assert_allclose(answer["logits"], logits, rtol=1e-5, atol=1e-5)
    expected = keras_scores(model, images)
    np.testing.assert_allclose(answer["probabilities"], expected, rtol=0, atol=1e-6)


def test_the_embedding_is_the_classifier_s_input(pair):
    model, served = pair
    images = pictures(model.channels)
    answer = served.run("embed", png_files(images))
    expected = keras_embedding(model, images)
    np.testing.assert_allclose(answer["embedding"], expected, rtol=1e-5, atol=1e-5)


def check_rollout(model, served, tolerance):
    images = pictures(model.channels)
    answer = served.run("attention", png_files(images))
    expected = model.attention_rollout_model()(images).numpy()
    np.testing.assert_allclose(answer["rollout"], expected, rtol=0, atol=tolerance)
    seen = [tf.io.decode_png(data).numpy() for data in answer["seen_bytes"]]
    np.testing.assert_array_equal(seen, images)


def test_attention_is_the_model_s_rollout(vit):
    check_rollout(*vit, tolerance=1e-6)


@pytest.mark.slow
def test_attention_of_other_pooling_in_bfloat16_is_the_model_s_rollout(
    tiny_vit, exported, only
):
    only("attention")
    model = tiny_vit(
        preprocessing=keras_vit.ImagePreprocessing((22, 14)),
        pooling="map",
        register_tokens=3,
    )
    check_rollout(model, SavedModel(exported(model, precision="bfloat16")), 5e-3)


def test_seen_is_the_image_after_resize_and_crop(vit):
    model, served = vit
    image = pictures(1, 1, size=(66, 80))[0]
    [seen] = served.run("attention", png_files([image]))["seen_bytes"]
    expected = keras_vit.decoding.resize_image(image, model.preprocessing)
    np.testing.assert_array_equal(tf.io.decode_png(seen), expected)


def test_labels_are_class_names_or_imagenet_s_or_indices(tiny_vit):
    assert class_labels(tiny_vit(class_names=NAMES)) == NAMES
    assert class_labels(tiny_vit()) == ["0", "1", "2", "3", "4", "5", "6"]
    assert class_labels(tiny_vit(classes=1000))[:2] == [
        "tench, Tinca tinca",
        "goldfish, Carassius auratus",
    ]


@pytest.mark.parametrize(
    "batching", ["graph", pytest.param("none", marks=pytest.mark.slow)]
)
def test_every_variable_is_stored_once(pair, exported, batching):
    model, served = pair
    folder = served.folder if batching == "graph" else exported(model, batching="none")
    stored = [
        np.prod(shape, dtype=int)
        for name, shape in tf.train.list_variables(str(folder / "variables/variables"))
        if "OBJECT_GRAPH" not in name
    ]
    assert sum(stored) == model.count_params()
    data = folder / "variables" / "variables.data-00000-of-00001"
    assert data.stat().st_size < 4 * model.count_params() + 60_000


@pytest.mark.slow
def test_an_export_needs_neither_keras_nor_keras_vit(vit, tmp_path):
    model, served = vit
    images = pictures(1)
    (tmp_path / "image.png").write_bytes(png_files(images)[0])
    code = """
        import sys
        for name in ("keras", "keras_vit", "tf_keras"):
            sys.modules[name] = None  # an import fails
        import tensorflow as tf
        signatures = tf.saved_model.load(sys.argv[1]).signatures
        data = tf.constant([open("image.png", "rb").read()])
        print(signatures["serving_default"](image_bytes=data)["scores"].numpy().tolist())
        print(signatures["attention"](image_bytes=data)["rollout"].shape)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), served.folder],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    scores, shape = result.stdout.splitlines()
    expected = -np.sort(-keras_scores(model, images[:1]))[:, :3]
    np.testing.assert_allclose(eval(scores), expected, rtol=0, atol=1e-6)
    assert shape == "(1, 11, 7)"


def test_nothing_requires_xla(pair):
    _, served = pair
    functions = served.graph_def.library.function
    attributes = [f.attr for f in functions] + [n.attr for n in served.graph_def.node]
    attributes += [node.attr for f in functions for node in f.node_def]
    assert not any(a["_XlaMustCompile"].b for a in attributes if "_XlaMustCompile" in a)
    assert not served.nodes("XlaCallModule")
