"""From a `.keras` file to a versioned SavedModel: contract, agreement, failures."""

import pathlib
import resource
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from serving import export

IMAGES = export.sample_images()


def build(tiny_vit):
    return tiny_vit(
        channels=1,
        preprocessing=keras_vit.ImagePreprocessing((22, 14)),
        class_names=["ant", "bee", "cat", "dog", "elk", "fox", "gnu"],
    )


@pytest.fixture
def model(tiny_vit):
    return build(tiny_vit)


@pytest.fixture(scope="module")
def published(tiny_vit, tmp_path_factory):
    """A model and the folder that its first version was exported to."""
    model = build(tiny_vit)
    folder = tmp_path_factory.mktemp("models") / "m"
    path, difference = export.export(model, folder, top_k=3, check_images=IMAGES)
    assert difference < 1e-5
    return model, path


@pytest.fixture
def keras_file(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return tmp_path / "model.keras"


def run(*arguments):
    return export.main([str(argument) for argument in arguments])


def test_versions_follow_each_other(keras_file, tmp_path, capsys):
    for _ in range(2):
        assert run(keras_file, "--to", tmp_path / "models" / "m") == 0
    published = sorted(p.name for p in (tmp_path / "models" / "m").iterdir())
    assert published == ["1", "2"]
    assert "models/m/2: published" in capsys.readouterr().out


def test_the_signatures_have_stable_names_types_and_shapes(published):
    _, path = published
    signatures = tf.saved_model.load(str(path)).signatures
    default = signatures["serving_default"]
    images = signatures["serve_images"]
    assert default.structured_input_signature[1] == {
        "image_bytes": tf.TensorSpec([None], tf.string, "image_bytes")
    }
    assert images.structured_input_signature[1] == {
        "images": tf.TensorSpec([None, 22, 14, 1], tf.uint8, "images")
    }
    for signature in (default, images):
        outputs = {
            name: (tensor.dtype, tensor.shape.as_list())
            for name, tensor in signature.structured_outputs.items()
        }
        assert outputs == {
            "classes": (tf.string, [None, 3]),
            "class_ids": (tf.int64, [None, 3]),
            "scores": (tf.float32, [None, 3]),
        }


def test_it_answers_as_the_live_model_in_a_process_without_keras_vit(
    published, tmp_path
):
    model, path = published
    code = """
        import sys
        sys.modules["keras_vit"] = None  # an import fails
        import tensorflow as tf
        model = tf.saved_model.load(sys.argv[1])
        data = [open(path, "rb").read() for path in sys.argv[2:]]
        answer = model.signatures["serving_default"](image_bytes=tf.constant(data))
        for key in ("scores", "class_ids"):
            print(answer[key].numpy().tolist())
        print([[c.decode() for c in row] for row in answer["classes"].numpy()])
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path), *map(str, IMAGES)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    scores, class_ids, classes = map(eval, result.stdout.splitlines())
    pixels = [
        tf.image.rgb_to_grayscale(tf.io.decode_jpeg(path.read_bytes()))
        for path in IMAGES
    ]
    pixels = tf.stack([tf.round(tf.image.resize(image, (22, 14))) for image in pixels])
    expected = tf.nn.softmax(model(pixels)).numpy()
    order = np.argsort(-expected, axis=1)[:, :3]
    np.testing.assert_array_equal(class_ids, order)
    np.testing.assert_allclose(
        scores, np.take_along_axis(expected, order, 1), rtol=0, atol=1e-5
    )
    assert classes == [[model.class_names[i] for i in row] for row in order]


def test_both_signatures_agree(published):
    _, path = published
    signatures = tf.saved_model.load(str(path)).signatures
    pixels = np.random.default_rng(1).integers(0, 256, (3, 22, 14, 1)).astype("uint8")
    files = tf.constant([tf.io.encode_png(image).numpy() for image in pixels])
    by_file = signatures["serving_default"](image_bytes=files)
    by_pixels = signatures["serve_images"](images=tf.constant(pixels))
    np.testing.assert_allclose(by_file["scores"], by_pixels["scores"], atol=1e-6)
    np.testing.assert_array_equal(by_file["class_ids"], by_pixels["class_ids"])


def test_a_model_without_preprocessing_inside_is_given_googles(tiny_vit, tmp_path):
    model = tiny_vit()
    path, _ = export.export(model, tmp_path, check_images=IMAGES)
    answer = tf.saved_model.load(str(path)).signatures["serve_images"]
    pixels = np.full((1, 22, 14, 3), 255, "uint8")
    expected = tf.nn.softmax(model(np.ones((1, 22, 14, 3)))).numpy().max()
    scores = answer(images=tf.constant(pixels))["scores"].numpy()
    assert scores[0, 0] == pytest.approx(expected, abs=1e-6)


def test_every_variable_is_stored_once(published):
    model, path = published
    stored = tf.train.list_variables(str(path / "variables" / "variables"))
    values = [np.prod(shape) for name, shape in stored if "OBJECT_GRAPH" not in name]
    assert sum(values) == model.count_params()


@pytest.mark.parametrize(
    ("signature", "inputs"),
    [
        ("serving_default", {"image_bytes": tf.constant([b"no image"])}),
        ("serving_default", {"image_bytes": tf.constant([], tf.string)}),
        ("serve_images", {"images": tf.zeros([0, 22, 14, 1], tf.uint8)}),
        ("serve_images", {"images": tf.zeros([1, 14, 22, 1], tf.uint8)}),
    ],
)
def test_the_graph_refuses_bad_input(published, signature, inputs):
    _, path = published
    loaded = tf.saved_model.load(str(path))
    with pytest.raises((tf.errors.InvalidArgumentError, TypeError)):
        loaded.signatures[signature](**inputs)


def test_a_model_with_nan_weights_is_not_published(model, keras_file, tmp_path, capsys):
    model.get_layer("head").bias.assign(np.full(7, np.nan))
    model.save(keras_file)
    assert run(keras_file, "--to", tmp_path / "m") == 1
    assert "nothing was published" in capsys.readouterr().err
    assert list((tmp_path / "m").iterdir()) == []


def test_a_file_that_is_no_model_is_named(tmp_path, capsys):
    path = tmp_path / "fake.keras"
    path.write_bytes(b"not a zip file")
    assert run(path, "--to", tmp_path / "m") == 1
    assert "fake.keras: not a readable .keras file" in capsys.readouterr().err
    assert run(tmp_path / "none.keras", "--to", tmp_path / "m") == 1
    assert "none.keras: no such file" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_a_runs_folder_means_its_best_model(keras_file, tmp_path):
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    keras_file.rename(run_folder / "best.keras")
    assert run(run_folder, "--to", tmp_path / "m") == 0
    assert run(tmp_path, "--to", tmp_path / "m") == 1


def test_another_kind_of_model_is_refused(tmp_path, capsys):
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(
        tmp_path / "mlp.keras"
    )
    assert run(tmp_path / "mlp.keras", "--to", tmp_path / "m") == 1
    assert "must hold a keras_vit.VisionTransformer" in capsys.readouterr().err


def test_a_target_that_is_a_file_is_refused(keras_file, tmp_path, capsys):
    (tmp_path / "m").write_text("in the way")
    assert run(keras_file, "--to", tmp_path / "m") == 1
    assert f"{tmp_path / 'm'}: cannot be written" in capsys.readouterr().err


def test_a_full_disk_publishes_nothing(keras_file, tmp_path):
    def limit_file_size():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    result = subprocess.run(
        [sys.executable, "-m", "serving", "export", keras_file, "--to", tmp_path / "m"],
        preexec_fn=limit_file_size,
        capture_output=True,
        text=True,
        cwd=pathlib.Path(export.__file__).parent.parent,
    )
    assert result.returncode == 1
    assert "cannot be written" in result.stderr
    assert "Traceback" not in result.stderr
    assert list((tmp_path / "m").iterdir()) == []
