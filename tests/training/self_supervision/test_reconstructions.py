"""Pictures of what a pretext model predicts, from predictions that are known."""

import numpy as np
import pytest
import tensorflow as tf
from test_pretext import GRID, SIDE, TASKS, make_encoder

from training.data.masking import Masking
from training.reporting import pictures
from training.self_supervision.pretext import DIVISIONS, PretextModel
from training.self_supervision.reconstructions import reconstructions

MEAN, STD = np.array([90, 110, 130]), np.array([50, 60, 70])  # of the encoder
COLORS = {"mean_color", "colors_4x4"}
HEIGHT, WIDTH = GRID[0] * SIDE, GRID[1] * SIDE
IMAGES = np.random.default_rng(0).integers(0, 256, (2, HEIGHT, WIDTH, 3), np.uint8)


def patches_of(images):
    """[B, N, P * P, 3], row by row."""
    rows = images.reshape(len(images), GRID[0], SIDE, GRID[1], SIDE, 3)
    return rows.swapaxes(2, 3).reshape(len(images), -1, SIDE * SIDE, 3)


def color_logits(images, divisions):
    """Logits of the true color of each part of a patch, with 8 levels a channel."""
    part = SIDE // divisions
    parts = patches_of(images).reshape(
        len(images), -1, divisions, part, divisions, part, 3
    )
    levels = parts.astype("float64").mean((3, 5)) // 32
    codes = (levels @ [64, 8, 1]).astype(int)  # [B, N, divisions, divisions]
    return np.eye(512)[codes].reshape(*codes.shape[:2], -1)


def perfect(config, images):
    """What a model that knows the images would predict."""
    if config.predicts_colors:
        return color_logits(images, DIVISIONS[config.target])
    values = patches_of((images - MEAN) / STD)
    if config.task == "mae" and config.normalize_pixels:
        axes = (-2, -1)
        # MAE's own code takes PyTorch's variance, which divides by n - 1.
        deviation = np.sqrt(values.var(axes, ddof=1, keepdims=True) + 1e-6)
        values = (values - values.mean(axes, keepdims=True)) / deviation
    return values.reshape(*values.shape[:2], -1)


@pytest.mark.parametrize("name", TASKS)
def test_perfect_predictions_restore_the_image(name, monkeypatch, tmp_path):
    config = TASKS[name]
    model = PretextModel(make_encoder(), config)
    predictions = perfect(config, IMAGES).astype("float32")
    monkeypatch.setattr(model, "predictions", lambda images, indices: predictions)
    masking = Masking(config, GRID[0] * GRID[1], seed=4)
    rows = reconstructions(model, masking, list(IMAGES))
    pictures.draw_reconstructions(rows, tmp_path / "reconstructions.png")
    assert (tmp_path / "reconstructions.png").stat().st_size > 1000
    for index, (image, visible, filled) in enumerate(rows):
        np.testing.assert_array_equal(image, IMAGES[index])
        mask = np.asarray(masking.of_evaluated(tf.constant(index, tf.int64))[1]) > 0
        assert 0 < mask.sum() < mask.size
        hidden = np.kron(mask.reshape(GRID), np.ones((SIDE, SIDE))) > 0
        assert (visible[hidden] == 128).all()
        np.testing.assert_array_equal(visible[~hidden], image[~hidden])
        np.testing.assert_array_equal(filled[~hidden], image[~hidden])
        if name not in COLORS:
            np.testing.assert_allclose(filled[hidden], image[hidden], atol=1)
        else:  # the middle of the level of each part's mean color
            part = SIDE // DIVISIONS[config.target]
            shape = (HEIGHT // part, part, WIDTH // part, part, 3)
            means = image.reshape(shape).mean((1, 3)).repeat(part, 0).repeat(part, 1)
            np.testing.assert_allclose(filled[hidden], means[hidden], atol=16)
