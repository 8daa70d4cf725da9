"""A small ViT learns three photographs from crops; other parts are the test."""

import dataclasses

import pytest

from docs.experiments.images import make_crops
from training.fitting.fit import fit
from training.recipes import named_recipe


@pytest.mark.slow
def test_learns_real_jpegs_from_scratch(tmp_path):
    make_crops(tmp_path / "crops")
    recipe = named_recipe("folder_small")
    recipe = dataclasses.replace(
        recipe,
        epochs=12,
        data=dataclasses.replace(recipe.data, source=f"folder:{tmp_path / 'crops'}"),
    )
    result = fit(recipe, tmp_path / "run")
    assert result["images"] == 150
    assert result["training_images"] == 405
    assert result["accuracy"] >= 0.9
    text = (tmp_path / "run" / "report.html").read_text()
    assert f"{result['accuracy']:.4f}" in text
