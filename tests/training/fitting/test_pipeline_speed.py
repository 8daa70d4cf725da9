"""`data-speed`: the stages of the input pipeline, and its bottleneck."""

import json
import types

import numpy as np
import pytest
from few_formats import few_formats
from image_splits import jpeg_split, noise_split
from training_commands import main

from keras_vit import ImagePreprocessing
from training.errors import RecipeError
from training.fitting import pipeline_speed
from training.fitting.pipeline_speed import (
    bottleneck,
    images_per_second,
    measure,
    pipelines,
)
from training.recipe import AugmentationConfig, DataConfig, Recipe

RECIPE = Recipe(
    data=DataConfig("digits"),
    batch_size=4,
    augmentation=AugmentationConfig(crop_min_area=0.3, flip=True, mixup=0.2),
)
PREPROCESSING = ImagePreprocessing(8)


@pytest.fixture(scope="module")
def of_files():
    """The pipeline of files up to each stage."""
    with few_formats():
        return pipelines(jpeg_split(), RECIPE, PREPROCESSING)


def test_files_have_five_stages_and_pixels_four(of_files):
    assert list(of_files) == [
        "read",
        "decode and crop",
        "resize",
        "augment",
        "mix and batch",
    ]
    names = list(pipelines(noise_split(), RECIPE, PREPROCESSING))
    assert names == ["read and crop", "resize", "augment", "mix and batch"]


@pytest.mark.slow
def test_every_stage_runs_past_the_end_of_an_epoch(of_files):
    for dataset in of_files.values():
        assert sum(len(batch) for batch in dataset.take(10)) >= 40


def test_throughput_is_images_over_time_after_the_warmup(monkeypatch):
    """The first third of the time, three seconds here, does not count."""
    clock = types.SimpleNamespace(now=100.0)
    fake = types.SimpleNamespace(perf_counter=lambda: clock.now)
    monkeypatch.setattr(pipeline_speed, "time", fake)

    def batches():
        for seconds in (5.0, 1.0, 1.0, 1.0, *[0.5] * 30):
            clock.now += seconds
            yield range(8)

    assert images_per_second(batches(), 9.0) == 8 / 0.5


def test_the_bottleneck_is_the_stage_that_adds_most(monkeypatch, capsys):
    rates = {"one": 500.0, "two": 40.0, "three": 32.0}
    monkeypatch.setattr(
        pipeline_speed, "images_per_second", lambda name, _: rates[name]
    )
    stages = measure({name: name for name in rates}, 0.3)
    assert [stage.name for stage in stages] == ["one", "two", "three"]
    np.testing.assert_allclose(
        [stage.seconds for stage in stages],
        [1 / 500, 1 / 40 - 1 / 500, 1 / 32 - 1 / 40],
    )
    assert bottleneck(stages).name == "two"
    assert "2 of 9: two" in capsys.readouterr().err


def test_stages_do_not_contradict_each_other_on_a_busy_machine(monkeypatch):
    """The stages' times add up to that of the whole pipeline, which is the last."""
    turns = {"one": [300, 90, 80], "two": [20, 30, 25], "three": [10, 40, 15]}
    turns["four"] = [5, 20, 16]
    monkeypatch.setattr(
        pipeline_speed, "images_per_second", lambda name, _: turns[name].pop()
    )
    stages = measure({name: name for name in turns}, 0.3)
    assert [stage.images_per_second for stage in stages] == [300, 40, 40, 20]
    assert bottleneck(stages).name == "four"
    assert sum(stage.seconds for stage in stages) == pytest.approx(1 / 20)


def test_the_command_prints_a_table_and_writes_the_figures(capsys, tmp_path):
    file = tmp_path / "speed.json"
    words = "data-speed --recipe digits --seconds 0.05 --augmentation.mixup 0.2"
    main([*words.split(), "--json", str(file)])
    output = capsys.readouterr().out
    figures = json.loads(file.read_text("utf-8"))
    assert f"the bottleneck is {figures['bottleneck']!r}" in output
    assert [row["name"] for row in figures["stages"]][-1] == "mix and batch"
    assert all(row["images_per_second"] > 0 for row in figures["stages"])


def test_zero_seconds_are_an_error():
    with pytest.raises(RecipeError, match="seconds"):
        main(["data-speed", "--recipe", "digits", "--seconds", "0"])
