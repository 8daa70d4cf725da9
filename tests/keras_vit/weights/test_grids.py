"""Position embeddings of every grid round-trip; an ambiguous grid is never guessed."""

import itertools
import math
import zipfile

import foreign_files
import numpy as np
import pytest
from foreign_files import arrays_of
from long_cases import long_after

import keras_vit
from keras_vit.errors import CheckpointError, WeightsFileError
from keras_vit.weights.loading import load_checkpoint

SIDE = 24
GRIDS = [*itertools.product(range(1, SIDE + 1), repeat=2)]
# Not square, with as many patches as a square.
DECEPTIVE = [(h, w) for h, w in GRIDS if h != w and math.isqrt(h * w) ** 2 == h * w]
TINY = {"patch_size": 2, "width": 6, "depth": 1, "mlp_dim": 5, "heads": 3}
REGISTERS = {"register_tokens": 5, "prefix_positions": False}
FORMS = [
    ("timm", REGISTERS),
    ("google", {"pooling": "avg", "class_token": False}),
    ("timm", {"pooling": "avg", "class_token": False}),
    ("timm", {"pooling": "avg", "class_token": False, "register_tokens": 3}),
    ("timm", {**REGISTERS, "prefix_positions": True}),
]


def make(grid, **kwargs):
    size = {"image_size": (2 * grid[0], 2 * grid[1]), "classes": None}
    model = keras_vit.VisionTransformer(**TINY, **{**size, **kwargs})
    random = np.random.default_rng(grid)
    for weight in model.weights:
        weight.assign(random.normal(size=weight.shape))
    return model


def check_round_trip(model, family, folder):
    """What is written is read into the same grid, with every bit."""
    before = arrays_of(model)
    path = folder / ("m.npz" if family == "google" else family)
    keras_vit.save_checkpoint(model, path, family)
    if family != "google":
        (path / "config.json").unlink()
        path = path / "model.safetensors"
    for weight in model.weights:
        weight.assign(np.zeros(weight.shape))
    load_checkpoint(model, path, settings="ignore")
    foreign_files.check_unmoved(model, before)
    return path


def test_rectangular_grids_survive_a_round_trip(tmp_path):
    for grid in (*DECEPTIVE[::9], (1, 1), (1, 24), (23, 24)):
        model = make(grid)
        for family in ("google", "timm", "hugging_face"):
            check_round_trip(model, family, tmp_path)


@pytest.mark.parametrize(("family", "kwargs"), long_after(2, FORMS))
def test_other_prefix_tokens_survive_a_round_trip(family, kwargs, tmp_path):
    # With five prefix tokens, 9 positions are 3 x 3, or 2 x 2 and the five.
    for grid in (*DECEPTIVE[::16], (3, 3), (2, 2), (1, 9), (3, 5)):
        check_round_trip(make(grid, **kwargs), family, tmp_path)


@pytest.mark.parametrize("family", ["google", "timm", "hugging_face"])
def test_files_that_we_write_record_their_grid(family, tmp_path):
    source = make((9, 16))
    path = check_round_trip(source, family, tmp_path)
    model = keras_vit.VisionTransformer.from_preset(path, image_size=(18, 32), heads=3)
    foreign_files.check_unmoved(model, arrays_of(source))
    assert keras_vit.VisionTransformer.from_preset(path, heads=3).grid == (9, 16)
    report = load_checkpoint(make((12, 12)), path, settings="ignore")
    assert "grid (9, 16) to (12, 12)" in str(report)


@pytest.mark.parametrize(
    "write", long_after(2, ["google", "timm", "big_vision", "hugging_face"])
)
def test_an_unknown_grid_must_be_given(write, tmp_path):
    head = {"pooling": "avg", "class_token": False} if write == "big_vision" else {}
    source, model = make((9, 16), **head), make((9, 16), **head)
    path = getattr(foreign_files, write)(source, tmp_path)
    (tmp_path / "config.json").unlink(missing_ok=True)
    for weight in model.weights:
        weight.assign(np.ones(weight.shape))
    before = arrays_of(model)
    asked = r"14[45] positions, may be of grid \(9, 16\) or \(12, 12\)"
    with pytest.raises(CheckpointError, match=asked):
        load_checkpoint(model, path, settings="ignore")
    foreign_files.check_unmoved(model, before)
    with pytest.raises(CheckpointError, match=asked):
        keras_vit.VisionTransformer.from_preset(path, image_size=(18, 32), heads=3)
    load_checkpoint(model, path, grid=(9, 16), settings="ignore")
    foreign_files.check_unmoved(model, arrays_of(source))
    model = keras_vit.VisionTransformer.from_preset(path, heads=3, grid=(9, 16))
    assert model.image_size == (18, 32)
    foreign_files.check_unmoved(model, arrays_of(source))


def test_ambiguous_square_grids_must_be_given(tmp_path):
    source = make((3, 3), register_tokens=4, prefix_positions=False)
    path = foreign_files.timm(source, tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"of grid \(2, 2\) or \(3, 3\)"):
        keras_vit.VisionTransformer.from_preset(path, heads=3)
    model = keras_vit.VisionTransformer.from_preset(path, heads=3, grid=(3, 3))
    foreign_files.check_unmoved(model, arrays_of(source))


def test_a_config_says_which_of_two_square_grids_it_is(tmp_path):
    source = make((3, 3), register_tokens=4, prefix_positions=False)
    path = foreign_files.timm(source, tmp_path, model_args={"img_size": None})
    model = keras_vit.VisionTransformer.from_preset(path)
    foreign_files.check_unmoved(model, arrays_of(source))
    foreign_files.edit(tmp_path / "config.json", model_args={"no_embed_class": False})
    assert foreign_files.arguments_of(path)["grid"] == (2, 2)


def test_an_image_size_that_does_not_fit_the_positions_is_refused(tmp_path):
    path = foreign_files.timm(make((3, 3)), tmp_path, model_args={"img_size": [8, 8]})
    match = r"`img_size`|image_size=\(8, 8\).*`pos_embed` has 10 positions"
    with pytest.raises(WeightsFileError, match=match):
        keras_vit.VisionTransformer.from_preset(path)


def test_the_grid_of_a_config_overrides_the_models(tmp_path):
    source = make((12, 12))
    config = {"num_heads": 3, "img_size": [24, 24]}
    path = foreign_files.timm(source, tmp_path, model_args=config)
    report = load_checkpoint(make((9, 16)), path, settings="ignore")
    assert "grid (12, 12) to (9, 16)" in str(report)


@pytest.mark.slow
def test_a_published_file_has_a_square_grid(monkeypatch, tmp_path, caplog):
    source = keras_vit.VisionTransformer.from_variant("Ti/16", classes=None)
    path = foreign_files.google(source, tmp_path)
    monkeypatch.setattr("keras_vit.weights.building.fetch", lambda published: path)
    keras_vit.VisionTransformer.from_preset("Ti/16:augreg_in21k", image_size=(112, 448))
    assert "grid (14, 14) to (7, 28)" in caplog.text
    with pytest.raises(CheckpointError, match="pass grid="):
        keras_vit.ViTTi16(weights=path, include_top=False, input_shape=(112, 448, 3))
    model = keras_vit.ViTTi16(
        weights=path, include_top=False, input_shape=(112, 448, 3), grid=(7, 28)
    )
    foreign_files.check_unmoved(model, arrays_of(source))


def test_numpy_reads_only_the_arrays(tmp_path):
    keras_vit.save_checkpoint(make((2, 3)), tmp_path / "m.npz")
    assert all("grid" not in name for name in np.load(tmp_path / "m.npz").files)
    with zipfile.ZipFile(tmp_path / "m.npz") as archive:
        assert archive.comment == b'{"keras_vit.grid": "2x3"}'


@pytest.mark.parametrize("comment", [b"", b"hello", b"[1]", b'{"keras_vit.grid": 3}'])
def test_another_program_s_zip_comment_is_ignored(comment, tmp_path):
    source = make((4, 4))
    keras_vit.save_checkpoint(source, tmp_path / "m.npz")
    with zipfile.ZipFile(tmp_path / "m.npz", "a") as archive:
        archive.comment = comment
    model = keras_vit.VisionTransformer.from_preset(tmp_path / "m.npz")
    foreign_files.check_unmoved(model, arrays_of(source))
