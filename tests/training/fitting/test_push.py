"""`push`: the files of a repository, their upload, and `from_preset` of them."""

import dataclasses
import json
import pathlib
import shutil
import types

import keras
import numpy as np
import pytest
from huggingface_hub import ModelCard
from long_cases import long_after
from training_commands import main

import keras_vit
from keras_vit.commands import main as info
from training.architectures.recipe_model import build_model
from training.errors import RecipeError, RunError, TrainingError
from training.fitting import push as push_module
from training.model_config import ModelConfig
from training.recipes import named_recipe

NAMES = [*"abcdefg"]
FILES = {"README.md", "model.keras", "recipe.yaml", "report.json", "curves.png"}


@pytest.fixture
def run(tiny_vit, tmp_path):
    """A finished run, as far as `push` reads it."""
    run = tmp_path / "runs" / "tiny"
    run.mkdir(parents=True)
    policy = keras_vit.ImagePreprocessing((22, 14))
    tiny_vit(
        preprocessing=policy, class_names=NAMES, norm_epsilon=1e-6, image_size=(22, 14)
    ).save(run / "best.keras")
    recipe = named_recipe("digits")
    data = dataclasses.replace(recipe.data, source="folder:/home/somebody/birds")
    recipe = dataclasses.replace(recipe, data=data)
    (run / "recipe.yaml").write_text(recipe.to_yaml())
    report = {
        "accuracy": 0.875,
        "top_5": 0.99,
        "macro_f1": 0.75,
        "images": 40,
        "bad_images": ["/home/somebody/birds/a.png: damaged"],
        "recipe": dataclasses.asdict(recipe),
    }
    (run / "report.json").write_text(json.dumps(report))
    (run / "curves.png").write_bytes(b"picture")
    return run


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The Hub's client with repositories in `tmp_path / "hub"`."""
    folder = tmp_path / "hub"
    calls = []

    class Api:
        def __init__(self, **_):
            pass

        def create_repo(self, repo_id, private, exist_ok):
            calls.append((repo_id, private, exist_ok))

        def upload_folder(self, repo_id, folder_path, commit_message):
            shutil.copytree(folder_path, folder / repo_id)

    def snapshot_download(repository, revision, allow_patterns):
        target = tmp_path / "cache"
        target.mkdir(exist_ok=True)
        for pattern in allow_patterns:
            for file in (folder / repository).glob(pattern):
                shutil.copyfile(file, target / file.name)
        return str(target)

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return calls


def scores(model):
    images = np.random.default_rng(0).integers(0, 256, (2, 22, 14, 3))
    return model.predict(images, verbose=0)


def test_a_pushed_run_comes_back_by_from_preset(run, hub):
    main(["push", str(run), "hf://me/birds", "--private"])
    assert hub == [("me/birds", True, True)]
    loaded = keras_vit.VisionTransformer.from_preset("hf://me/birds")
    assert loaded.class_names == NAMES
    assert loaded.reads_raw_pixels
    expected = keras.models.load_model(run / "best.keras")
    np.testing.assert_array_equal(scores(loaded), scores(expected))


@pytest.mark.slow
def test_a_pushed_run_is_described_and_trained_on_as_the_run_itself(
    run, hub, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "120")
    main(["push", str(run), "hf://me/birds"])
    capsys.readouterr()
    described = []
    for source in (str(run), "hf://me/birds"):
        assert info(["info", source]) == 0
        described.append(capsys.readouterr().out.partition("family")[2])
    assert described[0] == described[1] != ""
    here, there = [
        build_model(ModelConfig(weights=source, image_size=None), tuple(NAMES))
        for source in (str(run), "hf://me/birds")
    ]
    assert here.image_size == (22, 14)
    options = [here.get_config(), there.get_config()]
    for option in options:
        del option["preprocessing"]  # whose name is counted
    assert options[0] == options[1]
    np.testing.assert_array_equal(scores(here), scores(there))


def test_the_card_says_what_the_model_is(run, tmp_path):
    folder = tmp_path / "files"
    words = ["--license", "apache-2.0", "--dry_run", str(folder)]
    main(["push", str(run), "hf://me/birds", *words])
    card = ModelCard.load(folder / "README.md")
    assert (card.data.license, card.data.library_name) == ("apache-2.0", "keras")
    assert card.data.pipeline_tag == "image-classification"
    results = {r.metric_name: r.metric_value for r in card.data.eval_results}
    assert results == {"accuracy": 0.875, "top-5 accuracy": 0.99, "macro F1": 0.75}
    for words in (
        "pixels from 0 to 255",
        "a, b, c, d, e, f, g",
        "| accuracy | 0.8750 |",
        "![Curves](curves.png)",
        'keras_vit.VisionTransformer.from_preset("hf://me/birds")',
        'timm.create_model("hf-hub:me/birds", pretrained=True)',
        "timm cannot state the preprocessing's antialias=False, "
        "convention='big_vision'.",
        "## Intended use and limits",
        "folder:birds",
    ):
        assert words in card.text, words
    assert {path.name for path in folder.iterdir()} == FILES | {
        "config.json",
        "model.safetensors",
    }


def test_no_path_of_the_machine_is_shared(run, tmp_path):
    main(["push", str(run), "hf://me/birds", "--dry_run", str(tmp_path / "files")])
    for path in (tmp_path / "files").iterdir():
        assert b"somebody" not in path.read_bytes(), path


@pytest.mark.slow
def test_the_files_for_timm_hold_the_same_model(run, tmp_path):
    folder = tmp_path / "files"
    main(["push", str(run), "hf://me/birds", "--dry_run", str(folder)])
    (folder / "model.keras").unlink()
    model = keras_vit.VisionTransformer.from_preset(
        folder, heads=5, include_preprocessing=True
    )
    expected = keras.models.load_model(run / "best.keras")
    np.testing.assert_allclose(scores(model), scores(expected), atol=1e-4)


@pytest.mark.slow
def test_a_model_that_no_other_library_computes_is_pushed_alone(
    run, tiny_vit, tmp_path
):
    policy = keras_vit.ImagePreprocessing((22, 14))
    model = tiny_vit(preprocessing=policy, class_names=NAMES, attention="axial",
                     class_token=False, pooling="avg")  # fmt: skip
    model.save(run / "best.keras")
    main(["push", str(run), "hf://me/birds", "--dry_run", str(tmp_path / "files")])
    assert {path.name for path in (tmp_path / "files").iterdir()} == FILES


def test_a_dry_run_leaves_its_folder_whole_or_not_at_all(run, tmp_path, monkeypatch):
    def killed(path, report):
        assert not (tmp_path / "new" / "files").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(push_module.run_folder, "write_report", killed)
    with pytest.raises(KeyboardInterrupt):
        push_module.push(run, "hf://me/birds", dry_run=tmp_path / "new" / "files")
    assert list((tmp_path / "new").iterdir()) == []


def test_mistakes_are_one_line_and_leave_nothing(run, tmp_path, monkeypatch):
    out = tmp_path / "files"
    with pytest.raises(RecipeError, match="must be hf://owner/name"):
        main(["push", str(run), "birds", "--dry_run", str(out)])
    with pytest.raises(RunError, match="needs a new folder"):
        main(["push", str(run), "hf://me/birds", "--dry_run", str(run)])
    (run / "report.json").unlink()
    with pytest.raises(RunError, match="not the folder of a finished run"):
        main(["push", str(run), "hf://me/birds", "--dry_run", str(out)])
    assert not pathlib.Path(out).exists()


@pytest.mark.parametrize("status", long_after(1, [401, 403]))
def test_a_refusal_of_the_hub_says_what_is_needed(run, hub, monkeypatch, status):
    def refuse(*_, **__):
        error = RuntimeError(f"{status} Client Error\nRefused")
        error.response = types.SimpleNamespace(status_code=status)
        raise error

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", refuse)
    with pytest.raises(TrainingError, match=f"{status} .* Refused.*HF_TOKEN"):
        push_module.push(run, "hf://me/birds")


def test_without_a_network_nobody_speaks_of_a_token(run, monkeypatch):
    endpoint = "http://127.0.0.1:9"  # no server listens there
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    with pytest.raises(TrainingError, match=f"{endpoint} takes no .* refused") as error:
        push_module.push(run, "hf://me/birds")
    assert "oken" not in str(error.value)
