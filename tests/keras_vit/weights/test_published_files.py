"""Every published checkpoint file: its arrays, its bytes, its places in a model."""

import functools
from typing import NamedTuple

import pytest
from long_cases import long_after
from published_files import (
    inlined,
    parameters,
    prefixed,
    stacked,
    with_adam,
    write_sparse,
)
from shapes_only import shapes_only

import keras_vit
from benchmarks.published_arrays import SIZES, UNITS, big_vision, bit, google
from keras_vit.resnet import ResNet
from keras_vit.weights.checkpoint import open_checkpoint
from keras_vit.weights.config import model_arguments
from keras_vit.weights.loading import load_checkpoint
from keras_vit.weights.placement import Plan, adapt_kernels, adapt_positions

pytestmark = pytest.mark.backend


class Published(NamedTuple):
    """One file; the patch of a hybrid is that on its feature map."""

    name: str
    listed: str | None
    parameters: int
    arrays: int
    size: str
    patch: int
    rows: int
    classes: int
    pre_logits: bool = False
    stem: str | None = None

    @property
    def shapes(self):
        """Its arrays."""
        size, *rest, _ = self[4:]
        return google(SIZES[size], *rest, self.units)

    @property
    def units(self):
        """Units per stage of its ResNet."""
        return None if self.stem is None else UNITS[self.stem]

    @property
    def side(self):
        """Side of a token in pixels."""
        stages = 0 if self.units is None else 1 + len(self.units)
        return self.patch * {0: 1, 1: 4, 4: 16, 5: 32}[stages]


# gs://vit_models, google-research/vision_transformer/README.md: what is listed.
# gs://vit_models/augreg: pre-trained files there; B_8 is not listed. The parameters of
# the others at 224 pixels are in the official models_test.py; at 384 pixels there are
# more positions.
ROWS = [
    ("i21k/ViT-B_16", "393.69 MiB", 103_186_515, 202, "B", 16, 14, 21843, True),
    ("i21k/ViT-B_32", "400.01 MiB", 104_843_091, 202, "B", 32, 7, 21843, True),
    ("i21k/ViT-B_8", "393.72 MiB", 103_195_731, 202, "B", 8, 28, 21843, True),
    ("i21k/ViT-L_16", "1.22 GiB", 326_740_307, 394, "L", 16, 14, 21843, True),
    ("i21k/ViT-L_32", "1.23 GiB", 328_949_075, 394, "L", 32, 7, 21843, True),
    ("i21k/ViT-H_14", "2.46 GiB", 660_385_363, 522, "H", 14, 16, 21843, True),
    ("R50+ViT-B_16", "439.85 MiB", 115_277_971, 358, "B", 1, 14, 21843, True, "R50-3"),
    ("R26+ViT-B_32", "450.23 MiB", 118_002_835, 289, "B", 1, 7, 21843, True, "R26"),
    ("R50+ViT-L_32", "1.31 GiB", 351_408_531, 553, "L", 1, 7, 21843, True, "R50"),
    ("i1k/ViT-B_16", "331.40 MiB", 86_859_496, 200, "B", 16, 24, 1000),
    ("i1k/ViT-B_16-224", "330.29 MiB", 86_567_656, 200, "B", 16, 14, 1000),
    ("i1k/ViT-B_32", "336.89 MiB", 88_297_192, 200, "B", 32, 12, 1000),
    ("i1k/ViT-B_8", "334.78 MiB", 87_744_232, 200, "B", 8, 48, 1000),
    ("i1k/ViT-L_16", "1.14 GiB", 304_715_752, 392, "L", 16, 24, 1000),
    ("i1k/ViT-L_16-224", "1.13 GiB", 304_326_632, 392, "L", 16, 14, 1000),
    ("i1k/ViT-L_32", "1.14 GiB", 306_632_680, 392, "L", 32, 12, 1000),
    ("i1k/R50+B_16", "377.57 MiB", 98_950_952, 356, "B", 1, 24, 1000, False, "R50-3"),
    ("sam/ViT-B_16", "330.30 MiB", 86_567_656, 200, "B", 16, 14, 1000),
    ("sam/ViT-B_32", "336.61 MiB", 88_224_232, 200, "B", 32, 7, 1000),
    ("Ti_16-i21k", "37 MiB", 9_740_115, 200, "Ti", 16, 14, 21843),
    ("S_32-i21k", "118 MiB", 30_903_507, 200, "S", 32, 7, 21843),
    ("S_16-i21k", "115 MiB", 30_075_219, 200, "S", 16, 14, 21843),
    ("B_32-i21k", "398 MiB", 104_252_499, 200, "B", 32, 7, 21843),
    ("B_16-i21k", "391 MiB", 102_595_923, 200, "B", 16, 14, 21843),
    ("B_8-i21k", None, 102_605_139, 200, "B", 8, 28, 21843),
    ("L_16-i21k", "1243 MiB", 325_690_707, 392, "L", 16, 14, 21843),
    ("R_Ti_16-i21k", "40 MiB", 10_360_403, 203, "Ti", 8, 7, 21843, False, "R"),
    ("R26_S_32-i21k", "170 MiB", 44_456_467, 287, "S", 1, 7, 21843, False, "R26"),
    ("R50_L_32-i21k", "1337 MiB", 350_358_931, 551, "L", 1, 7, 21843, False, "R50"),
    ("Ti_16-224", None, 5_717_416, 200, "Ti", 16, 14, 1000),
    ("Ti_16-384", None, 5_790_376, 200, "Ti", 16, 24, 1000),
    ("S_32-224", None, 22_878_952, 200, "S", 32, 7, 1000),
    ("S_32-384", None, 22_915_432, 200, "S", 32, 12, 1000),
    ("S_16-224", None, 22_050_664, 200, "S", 16, 14, 1000),
    ("S_16-384", None, 22_196_584, 200, "S", 16, 24, 1000),
    ("B_8-224", None, 86_576_872, 200, "B", 8, 28, 1000),
    ("R_Ti_16-224", None, 6_337_704, 203, "Ti", 8, 7, 1000, False, "R"),
    ("R_Ti_16-384", None, 6_355_944, 203, "Ti", 8, 12, 1000, False, "R"),
    ("R26_S_32-224", None, 36_431_912, 287, "S", 1, 7, 1000, False, "R26"),
    ("R26_S_32-384", None, 36_468_392, 287, "S", 1, 12, 1000, False, "R26"),
    ("R26_B_32-224", None, 101_383_976, 287, "B", 1, 7, 1000, False, "R26"),
    ("R50_L_32-224", None, 328_994_856, 551, "L", 1, 7, 1000, False, "R50"),
    ("R50_L_32-384", None, 329_092_136, 551, "L", 1, 12, 1000, False, "R50"),
]
FILES = [Published(*row) for row in ROWS]
# Some of the smaller sizes and stems; `make test-all` takes all.
FAST = {"i21k/ViT-B_16", "R26+ViT-B_32", "Ti_16-i21k", "S_32-i21k", "R_Ti_16-i21k"}
# Parameters with 1,000 classes as timm counts them (resnetv2_50x1_bit and so on).
BITS = {
    "R50x1": (UNITS["R50"], 1, 25_549_352),
    "R50x3": (UNITS["R50"], 3, 217_319_080),
    "R101x1": (UNITS["R101"], 1, 44_541_480),
    "R101x3": (UNITS["R101"], 3, 387_934_888),
    "R152x2": (UNITS["R152"], 2, 236_335_208),
    "R152x4": (UNITS["R152"], 4, 936_533_224),
}


def build(model_class, checkpoint):
    """The model that a file describes, without values."""
    arguments = model_arguments(checkpoint)
    arguments.pop("grid", None)
    return built(model_class, **arguments)


@functools.lru_cache(maxsize=1)  # the next file is often of the same model
def built(model_class, **arguments):
    with shapes_only():
        return model_class(**arguments)


def planned(model, checkpoint):
    """The report of what would be loaded, and what does not fit."""
    plan = Plan(model, checkpoint, model_arguments(checkpoint))
    plan.compare_settings(required=True)
    plan.load_classifier()
    adapt_kernels(plan, "google")
    adapt_positions(plan, "google")
    plan.place_the_rest("load")
    return plan.report, plan.problems


def check_all_used(model, checkpoint, arrays):
    report, problems = planned(model, checkpoint)
    assert problems == []
    assert sorted(report.used.values()) == sorted(arrays)
    assert sorted(report.used) == sorted(weight.path for weight in model.weights)
    nothing = (report.unused, report.missing, report.outside, report.dropped)
    assert not any((*nothing, report.resampled, report.adapted, report.notes))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            row, id=row.name, marks=() if row.name in FAST else pytest.mark.slow
        )
        for row in FILES
    ],
)
def published(request, tmp_path_factory):
    """A row of the table, and its file."""
    path = tmp_path_factory.mktemp("published") / "weights.npz"
    write_sparse(path, request.param.shapes)
    yield request.param, path
    path.unlink()


def test_a_published_file_has_the_arrays_and_bytes_that_are_listed(published):
    row, path = published
    assert parameters(row.shapes) == row.parameters
    assert len(row.shapes) == row.arrays
    if row.listed is not None:
        check_listed(path, row.listed)


def check_listed(path, listed):
    number, unit = listed.split()
    size = path.stat().st_size / {"MiB": 2**20, "GiB": 2**30}[unit]
    step = 10.0 ** -len(number.partition(".")[2])
    # Some are rounded, some cut off.
    assert float(number) - step / 2 <= size < float(number) + step


def test_a_published_file_fills_the_official_architecture_completely(published):
    row, path = published
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.family == "google"
        model = build(keras_vit.VisionTransformer, checkpoint)
        check_all_used(model, checkpoint, row.shapes)
    assert model.count_params() == row.parameters
    size = (model.width, model.depth, model.mlp_dim, model.heads)
    assert size == SIZES[row.size]
    assert model.representation_size == (model.width if row.pre_logits else None)
    assert (model.patch_size, model.classes) == (row.patch, row.classes)
    assert model.image_size == (row.rows * row.side,) * 2
    assert (model.resnet_blocks, model.resnet_width_factor) == (row.units, 1)
    assert (model.pooling, model.gelu, model.norm_epsilon) == ("token", "tanh", 1e-6)


@pytest.mark.parametrize("classes", [1000, pytest.param(21843, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", long_after(2, BITS))
def test_a_bit_file_fills_its_resnet_completely(name, classes, tmp_path):
    units, factor, count = BITS[name]
    shapes = bit(units, factor, classes)
    count += (classes - 1000) * (2048 * factor + 1)
    assert parameters(shapes) == count
    write_sparse(tmp_path / "weights.npz", shapes)
    with open_checkpoint(tmp_path / "weights.npz") as checkpoint:
        assert checkpoint.family == "bit"
        model = build(ResNet, checkpoint)
        check_all_used(model, checkpoint, shapes)
    assert model.count_params() == count
    assert (model.blocks, model.width_factor) == (units, factor)


def test_a_training_checkpoint_gives_the_model_and_names_the_rest(tmp_path):
    arrays = google(SIZES["S"], 16, 14, 1000)
    path = tmp_path / "weights.npz"
    write_sparse(path, with_adam(arrays))
    check_listed(path, "252.57 MiB")  # gs://vit_models/sam/ViT-S_16.npz
    with open_checkpoint(path) as checkpoint:
        model = build(keras_vit.VisionTransformer, checkpoint)
        report, problems = planned(model, checkpoint)
    assert problems == report.unused == report.missing == []
    assert model.count_params() == 22_050_664
    assert sorted(report.used.values()) == sorted(prefixed("opt/target/", arrays))
    assert len(report.outside) == 2 * len(arrays) + 1


# SigLIP's image towers: parameters as timm counts them (vit_base_patch16_siglip_224).
@pytest.mark.parametrize("change", ["module", "inlined", "stacked"])
@pytest.mark.parametrize(
    ("size", "rows", "count"),
    long_after(1, [("B", 14, 92_884_224), ("L", 16, 315_956_224)]),
)
def test_a_big_vision_tower_fills_a_model_completely(
    size, rows, count, change, tmp_path
):
    arrays = big_vision(SIZES[size], 16, rows, pooling="map")
    assert parameters(arrays) == count
    if change == "inlined":
        arrays = inlined(arrays)
    elif change == "stacked":
        arrays = stacked(arrays, lambda all_: (len(all_), *all_[0]))
    text = {"params/txt/head/bias": (768,), "params/t": (1,), "params/b": (1,)}
    arrays = prefixed("params/img/", arrays)
    write_sparse(tmp_path / "weights.npz", {**arrays, **text})
    with open_checkpoint(tmp_path / "weights.npz") as checkpoint:
        assert checkpoint.family == "big_vision"
        model = build(keras_vit.VisionTransformer, checkpoint)
        report, problems = planned(model, checkpoint)
    assert problems == report.unused == report.missing == []
    assert set(report.used.values()) == set(arrays)
    assert sorted(report.outside) == sorted(text)
    assert model.count_params() == count
    assert (model.pooling, model.class_token, model.classes) == ("map", False, None)
    assert (model.heads, model.image_size) == (SIZES[size][3], (16 * rows,) * 2)


def test_big_vision_without_position_arrays_has_sine_positions(tmp_path):
    # gs://big_vision/vit_s16_i1k_90ep.npz (arXiv:2205.01580)
    arrays = big_vision(SIZES["S"], 16, 14, 1000)
    del arrays["pos_embedding"]
    write_sparse(tmp_path / "weights.npz", arrays)
    with open_checkpoint(tmp_path / "weights.npz") as checkpoint:
        model = build(keras_vit.VisionTransformer, checkpoint)
        check_all_used(model, checkpoint, arrays)
    assert (model.position_embedding, model.pooling) == ("sincos2d", "avg")
    assert model.count_params() == 22_049_896 - 196 * 384


def test_the_all_zero_classifier_of_the_paper_is_reported(tmp_path):
    arrays = google((6, 2, 10, 3), 4, 3, 5, pre_logits=True)
    write_sparse(tmp_path / "weights.npz", arrays)
    with open_checkpoint(tmp_path / "weights.npz") as checkpoint:
        arguments = model_arguments(checkpoint)
    model = keras_vit.VisionTransformer(**arguments)
    with pytest.warns(UserWarning, match="classifier is all zeros"):
        report = load_checkpoint(model, tmp_path / "weights.npz")
    assert any("all zeros" in note for note in report.notes)
