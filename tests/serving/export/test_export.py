"""From a `.keras` file to a published version: agreement, flags, failures."""

import dataclasses
import inspect
import json
import pathlib
import resource
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from few_formats import few_formats
from tiny_model import build_vit, small_classifier, with_random_weights

import keras_vit
from keras_vit.common.command_line import CommandError, documented_fields
from keras_vit.common.file_names import MANIFEST
from serving.__main__ import main
from serving.export import export_command, keras_model, publish, signatures
from serving.export.numeric_agreement import Disagreement, difference
from serving.export.options import ExportOptions
from serving.rollout import server_status
from serving.rollout.versions import versions

ROOT = pathlib.Path(__file__).parents[3]
NAMES = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu"]
# Small limits: inputs beyond them are cheap to create.
OPTIONS = ExportOptions(
    top_k=3, max_images=5, max_image_bytes=10_000, max_image_pixels=50_000
)


def build(tiny_vit, **keywords):
    return tiny_vit(
        depth=1,
        channels=1,
        preprocessing=keras_vit.ImagePreprocessing((22, 14)),
        class_names=NAMES,
        **keywords,
    )


@pytest.fixture(scope="module")
def model(tiny_vit):
    return build(tiny_vit)


@pytest.fixture(scope="module")
def keras_file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "best.keras"
    model.save(path)
    return path


@pytest.fixture(scope="module")
def published(model, keras_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "m"
    with few_formats():
        return publish.publish(model, folder, OPTIONS, source=keras_file)


@pytest.fixture
def one_signature(only, unverified):
    """Export `serve_images` alone, and skip its verification."""
    only("serve_images")


def run(*arguments):
    return main(["export", *map(str, arguments)])


def test_a_published_version_agrees_and_has_a_manifest(published, keras_file):
    manifest = json.loads(
        (published.path / "assets.extra" / "manifest.json").read_text()
    )
    assert manifest == published.manifest
    assert manifest["agreement"]["max_difference"] < 1e-5
    assert manifest["agreement"]["top1"] == 1
    assert manifest["agreement"]["images"] == keras_model.GENERATED
    assert manifest["labels"]["names"] == NAMES
    assert manifest["options"] == dataclasses.asdict(OPTIONS)
    assert manifest["packages"]["tensorflow"] == tf.__version__
    assert (
        manifest["model"]["parameters"]
        == keras.models.load_model(keras_file).count_params()
    )
    assert manifest["preprocessing"]["image_size"] == [22, 14]
    assert manifest["signatures"]["serve_pixels"]["inputs"] == {
        "pixel_values": {"dtype": "float32", "shape": [None, 22, 14, 1]}
    }
    assert set(manifest["files"]) == {
        path.relative_to(published.path).as_posix()
        for path in published.path.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }


def test_the_command_publishes_a_runs_best_model(
    keras_file, tmp_path, capsys, one_signature
):
    to = tmp_path / "models" / "m"
    config = tmp_path / "models.config"
    image = tmp_path / "gray.png"
    image.write_bytes(tf.io.encode_png(np.full((9, 8, 1), 99, "uint8")).numpy())
    status = run(
        *(keras_file.parent, "--to", to, "--check_images", image, "--top_k", 2),
        *("--batching", "none", "--max_image_pixels", 50_000, "--version", 4),
        *("--config", config, "--label", "stable", "--served_from", "/models/m"),
    )
    assert status == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert f"{to / '4'}: published; agrees with {keras_file} to " in out
    assert "on 9 images" in out
    assert "m: stable is version 4" in out
    assert 'base_path: "/models/m"' in config.read_text()
    answer = tf.saved_model.load(str(to / "4")).signatures["serve_images"]
    assert answer.structured_outputs["scores"].shape == [None, 2]


@pytest.mark.parametrize("indent", ["", " " * 4])
def test_every_option_is_a_flag(indent, monkeypatch):
    """Python 3.13 removes the indentation of docstrings, others do not."""
    text = inspect.cleandoc(ExportOptions.__doc__).replace("\n", f"\n{indent}")
    monkeypatch.setattr(ExportOptions, "__doc__", text)
    flags = export_command._parser().format_help()
    for field in dataclasses.fields(ExportOptions):
        assert f"--{field.name}" in flags
        assert str(field.default) in flags
    assert set(documented_fields(ExportOptions)) == {
        field.name for field in dataclasses.fields(ExportOptions)
    }


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({}, 1e-5),
        ({"precision": "bfloat16"}, 5e-2),
    ],
)
def test_the_tolerance_depends_on_the_precision(model, options, allowed):
    assert publish.tolerance_of(model, ExportOptions(**options)) == allowed


@pytest.mark.slow
@few_formats()
def test_bfloat16_is_published_with_its_difference(model, tmp_path):
    options = dataclasses.replace(OPTIONS, precision="bfloat16", batching="none")
    agreement = publish.publish(model, tmp_path / "m", options).manifest["agreement"]
    assert 1e-6 < agreement["max_difference"] < 5e-2


@pytest.mark.slow
def test_a_model_of_float64_is_published(tiny_vit, tmp_path, only):
    only("serve_images", "serve_pixels")
    options = dataclasses.replace(OPTIONS, batching="none")
    model = tiny_vit(depth=1, dtype="float64")
    agreement = publish.publish(model, tmp_path / "m", options).manifest["agreement"]
    assert agreement["max_difference"] < 1e-5


def resnet():
    return keras_vit.ResNet(blocks=(1, 1, 1, 1), image_size=(32, 48), classes=3)


def classifier():
    return small_classifier(
        keras.layers.Conv2D(5, 3),
        classifier_activation="softmax",
        preprocessing=keras_vit.ImagePreprocessing((22, 14)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("build_model", [resnet, classifier])
@few_formats()
def test_every_kind_of_model_is_published(build_model, tmp_path):
    with_random_weights(build_model(), 5).save(tmp_path / "model.keras")
    model = export_command.load(tmp_path / "model.keras")
    manifest = publish.publish(model, tmp_path / "m", OPTIONS).manifest
    assert manifest["left_out"] == ["attention"]
    assert manifest["agreement"]["max_difference"] < 1e-5


@pytest.mark.slow
def test_a_checkpoint_of_another_project_is_exported(tiny_vit, tmp_path, one_signature):
    keras_vit.save_checkpoint(tiny_vit(), tmp_path / "timm", "timm")
    source, names = str(tmp_path / "timm"), "a,b,c,d,e,f,g"
    assert run(source, "--to", tmp_path / "m", "--class_names", names) == 0
    manifest = json.loads((tmp_path / "m/1" / MANIFEST).read_text())
    assert manifest["source"] == {"file": source, "sha256": None}
    assert manifest["labels"]["names"] == names.split(",")


@pytest.fixture
def noisy(tiny_vit):
    """A model that rounds coarsely: all its logits have a large part in common."""
    noisy = build(tiny_vit)
    kernel = noisy.get_layer("head").kernel
    kernel.assign(kernel + 1000)
    return noisy


@pytest.mark.slow
def test_a_noisy_model_is_published_with_its_noise(noisy, tmp_path, only):
    only("serve_images", "serve_pixels")
    agreement = publish.publish(noisy, tmp_path / "m", OPTIONS).manifest["agreement"]
    assert agreement["noise"] > 1e-5
    assert agreement["tolerance"] == pytest.approx(4 * agreement["noise"])
    assert 1e-5 < agreement["max_difference"] <= agreement["tolerance"]


def test_noise_is_what_a_batch_changes(noisy):
    golden = keras_model.golden_answers(noisy, OPTIONS, [])
    batch = tf.cast(golden["images"], "float32")
    alone = np.concatenate([noisy(batch[i : i + 1]) for i in range(len(batch))])
    expected = np.abs(alone - noisy(batch)).max()
    assert golden["outputs_noise"] == pytest.approx(expected, rel=0.5)


@pytest.mark.parametrize("factor", [3, -3])
def test_differences_within_the_noise_are_accepted(golden, answers, factor):
    golden["probabilities_noise"] = 1e-4
    answers["scores"] = answers["scores"] + factor * 1e-4
    assert difference("serving_default", answers, golden, 1e-5) > 1e-5


@pytest.mark.parametrize("offset", [5e-4, -5e-4, np.nan])
def test_differences_beyond_the_noise_are_refused(golden, answers, offset):
    golden["probabilities_noise"] = 1e-4
    answers["scores"] = answers["scores"] + offset
    with pytest.raises(Disagreement, match="within 0.0004"):
        difference("serving_default", answers, golden, 1e-5)


def test_a_model_that_mixes_the_images_of_a_batch_is_refused():
    mixing = small_classifier(
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Lambda(lambda x: x - keras.ops.mean(x, axis=0, keepdims=True)),
        preprocessing=keras_vit.ImagePreprocessing((22, 14)),
    )
    with pytest.raises(CommandError, match=r"on the other images of a batch.*Received"):
        keras_model.golden_answers(with_random_weights(mixing, 5), OPTIONS, [])


def test_logits_of_two_classifiers_are_their_mean():
    options = {"distilled": True, "register_tokens": 1}
    preprocessing = keras_vit.ImagePreprocessing((22, 14))
    names = {"class_names": list("abcdefg"), "preprocessing": preprocessing}
    model = build_vit(**options, **names)
    golden = keras_model.golden_answers(model, OPTIONS, [])
    np.testing.assert_allclose(golden["logits"], golden["outputs"], atol=1e-5)


@pytest.fixture(scope="module")
def golden_answers(model):
    return keras_model.golden_answers(model, OPTIONS, [])


@pytest.fixture
def golden(golden_answers):
    return dict(golden_answers)


@pytest.fixture
def answers(golden):
    """The expected outputs of serving_default for the golden images."""
    best = np.argsort(-golden["probabilities"], axis=1)[:, :3]
    names = np.array([name.encode() for name in NAMES], object)
    return {
        "scores": np.take_along_axis(golden["probabilities"], best, 1),
        "class_ids": best,
        "classes": names[best],
    }


def test_right_answers_are_accepted(golden, answers):
    assert difference("serving_default", answers, golden, 1e-5) < 1e-6
    del answers["class_ids"]
    assert difference("classify", answers, golden, 1e-5) < 1e-6


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a.update(scores=a["scores"] + 2e-5),
        lambda a: a.update(scores=a["scores"] * np.nan),
        lambda a: a.update(classes=a["classes"][:, ::-1]),
        lambda a: a.update(class_ids=a["class_ids"][:, ::-1]),
        lambda a: a.update({name: a[name][::-1] for name in a}),
        lambda a: a.update({n: a[n][:, ::-1] for n in ("classes", "class_ids")}),
        lambda a: a.update({name: a[name][:, ::-1] for name in a}),
        lambda a: a.update({name: a[name][:, [0, 0, 1]] for name in a}),
        lambda a: a.update(logits=np.zeros((8, 7))),
    ],
)
def test_wrong_answers_are_refused(golden, answers, spoil):
    spoil(answers)
    with pytest.raises(Disagreement):
        difference("serving_default", answers, golden, 1e-5)


def test_golden_answers_are_those_of_the_model_alone(golden, model):
    expected = model(golden["images"]).numpy()
    np.testing.assert_allclose(golden["outputs"], expected, atol=1e-6)
    np.testing.assert_allclose(golden["logits"], expected, atol=1e-5)
    np.testing.assert_allclose(
        golden["pixels"], (golden["images"] - 127.5) / 127.5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("labels", "gives (wrong classes|other scores)"),
        pytest.param("guard", "must refuse NaN", marks=pytest.mark.slow),
        pytest.param(
            "limit",
            "must refuse more than `max_image_pixels`",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_wrong_export_is_not_published(
    model, tmp_path, monkeypatch, only, broken, message
):
    if broken == "labels":
        swapped = [*NAMES[1::-1], *NAMES[2:]]
        monkeypatch.setattr(signatures, "class_labels", lambda _: swapped)
    elif broken == "guard":
        monkeypatch.setattr(signatures, "checked_finite", lambda values, _: values)
    only("serving_default" if broken == "limit" else "serve_images", "serve_pixels")
    save = signatures.save

    def save_otherwise(model, folder, options):
        if broken == "limit":
            options = dataclasses.replace(options, max_image_pixels=10**6)
        save(model, folder, options)

    monkeypatch.setattr(signatures, "save", save_otherwise)
    with pytest.raises(CommandError, match=message):
        publish.publish(model, tmp_path / "m", OPTIONS)
    assert {path.name for path in (tmp_path / "m").iterdir()} == {".lock"}


@pytest.mark.slow
@few_formats()
def test_a_model_with_nan_weights_is_not_published(tiny_vit, tmp_path, capsys):
    model = build(tiny_vit)
    model.get_layer("head").bias.assign(np.full(7, np.nan))
    model.save(tmp_path / "model.keras")
    assert run(tmp_path / "model.keras", "--to", tmp_path / "m") == 1
    assert "nothing was published" in capsys.readouterr().err
    assert versions(tmp_path / "m") == []


def test_what_holds_no_classifier_is_reported(tiny_vit, tmp_path, capsys):
    (tmp_path / "recipe.yaml").touch()
    (tmp_path / "fake.keras").write_bytes(b"not a zip file")
    tiny_vit(classes=None).save(tmp_path / "features.keras")
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    other.save(tmp_path / "other.keras")
    for name, message in {
        "fake.keras": "fake.keras: cannot be opened",
        "none.keras": "none.keras: no such file",
        ".": "best.keras: no such file",
        "other.keras": "holds a Sequential of Keras",
        "features.keras": "must have a classifier",
    }.items():
        assert run(tmp_path / name, "--to", tmp_path / "m") == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("--label canary", 2, "--label needs --config"),
        ("--rest http://localhost", 2, "--rest needs --config"),
        ("--config /none/models.config", 1, "no such folder"),
        ("--config c --label a/b", 2, "a label must not contain /"),
        ("--config c --rest http://127.0.0.1:9", 1, "c: no such file: the s"),
        ("--config /dev/null --rest http://127.0.0.1:9", 1, "http://127.0.0.1:9: "),
        ("--config c --label previous", 2, "reserved for rollback"),
        ("--check_images none.png", 1, "none.png: cannot be read"),
        (f"--check_images {__file__}", 1, "test_export.py: not a readable image"),
        ("--format onnx --top_k 2", 1, "which has no top_k"),
    ],
)
@pytest.mark.usefixtures("without_retries")
def test_errors_are_reported_before_anything_is_written(
    keras_file, tmp_path, arguments, status, message, capsys
):
    assert run(keras_file, "--to", tmp_path / "m", *arguments.split()) == status
    assert message in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_a_failed_label_move_prints_the_command_to_retry(
    keras_file, tmp_path, monkeypatch, capsys, one_signature
):
    def gone(*_):
        raise CommandError("http://server: gone")

    monkeypatch.setattr(server_status, "states", lambda *_: {})
    monkeypatch.setattr(server_status, "wait_available", gone)
    to, config = tmp_path / "m", tmp_path / "models.config"
    config.write_text("# empty\n")
    served = ("--config", config, "--label", "stable", "--rest", "http://server")
    assert run(keras_file, "--to", to, *served) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        "http://server: gone. Version 1 is published, but the label stable was" in error
    )
    assert versions(to) == [1]
    assert "name:" not in config.read_text()
    command = error.partition("to retry: keras-vit ")[2]
    assert main(command.split()) == 0
    assert 'key: "stable"' in config.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--version", "0"], "--version: must be a"),
        (["--version", "x"], "--version: must be a"),
        (["--to", "gs://bucket/m"], "--to: must be a"),
        (["--top_k", 0], "--top_k must be"),
        (["--max_batch_size", -1], "--max_batch_size must be"),
        (["--batching", "sometimes"], "--batching must be"),
        (
            ["--batching", "none", "--num_batch_threads", 4],
            "--num_batch_threads needs batching='graph' or",
        ),
        (["--precision", "float8"], "--precision must be"),
    ],
)
def test_wrong_flags_are_usage_errors_of_one_line(arguments, message, capsys):
    assert run("model.keras", "--to", "m", *arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_an_unsuitable_target_folder_is_refused(model, published, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CommandError, match="file: cannot be written: it is a file"):
        publish.publish(model, tmp_path / "file")
    with pytest.raises(CommandError, match="must hold versions only. Received: file"):
        publish.publish(model, tmp_path)
    with pytest.raises(CommandError, match=r"has no model\.tflite; all versions"):
        publish.publish(model, published.path.parent, export_format="litert")
    with pytest.raises(CommandError, match="version 1 exists"):
        publish.publish(model, published.path.parent, version=1)


@pytest.mark.slow
def test_a_full_disk_publishes_nothing(keras_file, tmp_path):
    def limit_file_size():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    result = subprocess.run(
        [sys.executable, "-m", "serving", "export", keras_file, "--to", tmp_path / "m"],
        preexec_fn=limit_file_size,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert result.returncode == 1
    assert "cannot be written" in result.stderr
    assert "Traceback" not in result.stderr
    assert {path.name for path in (tmp_path / "m").iterdir()} == {".lock"}


@pytest.mark.slow
def test_a_disk_error_publishes_nothing(model, tmp_path, monkeypatch, one_signature):
    def fail(*_):
        raise OSError(28, "the disk says no")

    monkeypatch.setattr("keras_vit.common.atomic_files.flush", fail)
    with pytest.raises(CommandError, match="cannot be written: .*the disk says no"):
        publish.publish(model, tmp_path / "m", OPTIONS)
    assert {path.name for path in (tmp_path / "m").iterdir()} == {".lock"}


@pytest.mark.slow
def test_class_names_of_the_command_are_exported(tiny_vit, tmp_path, one_signature):
    path, to = tmp_path / "own.keras", tmp_path / "m"
    tiny_vit(depth=1).save(path)
    assert run(path, "--to", to, "--class_names", ",".join(NAMES)) == 0
    manifest = json.loads((to / "1/assets.extra/manifest.json").read_text())
    assert manifest["labels"]["names"] == NAMES
    with pytest.raises(CommandError, match=r"own\.keras: .* must have 7 names"):
        publish.publish(export_command.load(path), to, class_names="a,b", source=path)


def test_a_backbone_of_an_unknown_range_is_not_exported(tmp_path, one_signature):
    model = small_classifier(keras.layers.Flatten())
    with pytest.raises(CommandError, match="--pixels raw"):
        publish.publish(model, tmp_path / "m", OPTIONS)
    assert not (tmp_path / "m").exists()
    model.save(tmp_path / "model.keras")
    raw = export_command.load(tmp_path / "model.keras")
    published = publish.publish(raw, tmp_path / "m", pixels="raw")
    assert published.manifest["preprocessing"]["std"] == 1.0
