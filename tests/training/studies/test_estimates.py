"""What a study's dry run says, against counts made in other ways."""

import dataclasses

import keras
import pytest
from test_study import table_6
from tiny_recipe import TINY_RECIPE
from training_commands import main

from training.architectures.recipe_model import build_model
from training.recipe import ModelConfig
from training.studies.estimates import (
    estimate,
    hours,
    images_seen,
    model_config_costs,
)
from training.studies.study import Candidate, StudyRow
from training.studies.study_command import checked_study


@pytest.mark.parametrize(("name", "exaflops"), [
    (name, numbers[-1]) for name, _, numbers in table_6()
])  # fmt: skip
def test_pretraining_costs_what_table_6_says(name, exaflops, table6):
    cost = estimate(table6[f"{name}-pretrain"])
    assert cost.training_flops / 1e18 == pytest.approx(exaflops, rel=0.06)


@pytest.fixture(scope="module")
def table6():
    """The rows of `table6` by their names."""
    study = checked_study("table6", rows=["pretrain"])
    return {row.name: row for row in study.rows}


SMALL = {"variant": None, "image_size": 8, "channels": 1}
VIT = {"patch_size": 2, "width": 12, "depth": 3, "mlp_dim": 20, "heads": 3} | SMALL
N, D, M, C = 17, 12, 20, 5
ENCODER = 3 * (4 * N * D * D + 2 * N * N * D + 2 * N * D * M)
# Two 3x3 convolutions at 8x8 and 4x4 pixels. BiT: the root at 4x4, then, of a pooled
# map of 2x2, the unit's three convolutions and its shortcut.
CNN = 64 * 9 * 1 * 6 + 16 * 9 * 6 * 12 + 12 * C
BIT = 16 * 49 * 64 + 4 * (64 * 64 + 9 * 64 * 64 + 2 * 64 * 256) + 256 * C


@pytest.mark.parametrize(
    ("values", "macs"),
    [
        (VIT, 16 * 4 * D + ENCODER + D * C),
        (VIT | {"representation_size": 7}, 16 * 4 * D + ENCODER + D * 7 + 7 * C),
        (
            VIT | {"attention": "axial", "class_token": False, "pooling": "avg"},
            # 16 tokens attend to 4 of their row, then to 4 of their column.
            16 * 4 * D
            + 2 * 3 * (4 * 16 * D * D + 2 * 16 * 4 * D + 2 * 16 * D * M)
            + D * C,
        ),
        ({"architecture": "bit", "resnet_blocks": (1,)} | SMALL, BIT),
        ({"architecture": "cnn", "width": 6, "depth": 2} | SMALL, CNN),
    ],
)
def test_a_model_costs_its_products_and_weights(values, macs):
    config = ModelConfig(**values)
    costs = model_config_costs(config, C)
    assert costs.macs == macs
    assert costs.parameters == build_model(config, tuple("abcde")).count_params()


def test_images_are_those_of_whole_batches():
    recipe = dataclasses.replace(TINY_RECIPE, epochs=3, batch_size=32)
    assert images_seen(recipe, 100) == 3 * 96
    assert images_seen(dataclasses.replace(recipe, steps=7), None) == 7 * 32
    assert images_seen(recipe, None) is None


def test_a_chosen_run_costs_its_trials_too():
    short, long = (dataclasses.replace(TINY_RECIPE, steps=n) for n in (5, 20))
    candidates = {"5": Candidate(short, short), "20": Candidate(long, long)}
    row = StudyRow("a", {}, TINY_RECIPE, 100, 10, parse_candidates=lambda: candidates)
    assert estimate(row).images == (5 + 20 + 20) * 64


def test_hours_are_those_of_the_named_device():
    row = StudyRow("a", {}, dataclasses.replace(TINY_RECIPE, steps=50), 100, 10)
    cost = estimate(row)
    expected = 3 * cost.flops * 50 * 64 / (156e12 * 0.25) / 3600
    assert hours(row, cost, "A100", 0.25) == pytest.approx(expected)
    assert hours(row, cost, "CPU", 0.25) is None


def test_the_paper_s_core_days_are_of_the_order_of_a_dry_run(table6):
    """Table 2: ViT-H/14 took 2,500 core-days of TPUv3, L/16 680."""
    for name, days in (("H14", 2500), ("L16_14ep", 680)):
        row = table6[f"{name}-pretrain"]
        found = hours(row, estimate(row), "TPU v3", 0.4) / 24
        assert 0.5 < found / days < 1.5


def test_a_dry_run_prints_runs_and_sums_and_writes_nothing(tmp_path, capsys):
    folder = tmp_path / "out"
    flags = ["--small", "--dry_run", "--device", "A100", "--output_dir", str(folder)]
    main(["study", "axial", *flags, "--rows", "full-4", "--part", "2/3"])
    out = capsys.readouterr().out
    assert "full-4-seed1" in out
    assert "full-4-seed0" not in out
    assert "1 runs, " in out
    assert "on one A100" in " ".join(out.split())
    assert not folder.exists()


@pytest.mark.slow
def test_keras_resnets_cost_what_their_paper_says():
    """arXiv:1512.03385, Table 1: 3.8e9 multiply-adds, of version 1 of ResNet-50."""
    config = ModelConfig(architecture="resnet", variant="ResNet50")
    costs = model_config_costs(config, 1000)
    assert costs.macs / 1e9 == pytest.approx(3.86, abs=0.05)
    expected = keras.applications.ResNet50(weights=None).count_params()
    assert costs.parameters == expected
