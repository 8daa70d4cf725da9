"""The registry of published files: its rows against sizes in closed form."""

import re
import urllib.parse

import pytest

import keras_vit
from keras_vit.costs import variant_costs
from keras_vit.weights import building
from keras_vit.weights.presets import find_weights, list_weights

pytestmark = pytest.mark.backend


ROWS = list_weights()


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_the_parameters_are_those_of_the_model(row):
    count = variant_costs(row.variant, row.image_size, classes=row.classes).parameters
    if row.name in ("orig_in21k", "hf://google/vit-base-patch16-224-in21k"):
        width = keras_vit.parse_variant(row.variant)[0].width
        count += width * width + width  # the hidden layer before the classifier
    assert row.parameters == count + additions(row)


def additions(row):
    """Weights of DeiT III and DINOv2 beyond the paper's model, by hand.

    Two layer scales in each block; four registers; no position of the class token in
    DeiT III and in timm's files with registers.
    """
    if not re.search("deit3|dinov2", row.url):
        return 0
    spec, _ = keras_vit.parse_variant(row.variant)
    registers = 4 * bool(re.search("reg4|registers", row.url))
    positions = 0
    if "deit3" in row.url or (registers and row.family == "timm"):
        positions = -1
    return spec.width * (2 * spec.depth + registers + positions)


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_a_published_size_is_that_of_its_parameters(row):
    """Names and headers come on top, about 300 bytes for each of about 200 arrays."""
    arrays = 4 * row.parameters + 200 * 300
    if (row.variant, row.name) == ("S/16", "sam_in1k"):
        arrays *= 3  # holds the optimizer's two moments too
    assert row.has_size(arrays)


def test_a_download_of_another_size_is_another_file():
    for row in ROWS:
        assert row.has_size(row.bytes), row
        for size in (0, row.bytes // 2, row.bytes * 2):
            assert not row.has_size(size), row


def test_a_row_can_be_found():
    for row in ROWS:
        assert find_weights(row.variant, row.name) is row
        assert row in list_weights(row.variant)
        assert repr(row).startswith(f"<{row.variant} {row.name!r}: ")


def test_a_file_is_in_a_bucket_or_repository_of_its_project():
    for row in ROWS:
        url = urllib.parse.urlsplit(row.url)
        if url.scheme == "hf":
            assert url.netloc in ("google", "facebook", "timm"), row
        else:
            assert url.netloc == "storage.googleapis.com", row
            assert url.path.split("/")[1] in ("vit_models", "bit_models"), row
            assert url.path.endswith(".npz"), row


def test_a_published_name_determines_the_resolution():
    for row in ROWS:
        if "-res_" in row.url:
            assert f"-res_{row.image_size}.npz" in row.url, row
        if row.family != "bit" and not row.name.startswith("hf://"):
            marked = row.name.endswith(f"@{row.image_size}")
            assert marked == (row.image_size != 224), row


def test_files_and_names_are_unique():
    assert len({row.url for row in ROWS}) == len(ROWS)
    assert len({(row.variant, row.name) for row in ROWS}) == len(ROWS)


def test_sampled_rows_equal_the_published_values():
    best = find_weights("R50+L/32", "augreg_recommended_in21k_ft_in1k@384")
    assert (best.top1, best.classes, best.classifier) == (85.99, 1000, "valid")
    original = find_weights("B/16", "orig_in21k")
    assert (original.classifier, original.classes) == ("zeros", 21843)
    assert original.bytes == pytest.approx(393.69 * 2**20, abs=1)
    dino = find_weights("g-dinov2/14", "dinov2_lvd142m@518")
    assert (dino.parameters, dino.classifier) == (1_136_479_232, "none")
    deit = find_weights("H/14", "deit3_fb_in22k_ft_in1k")
    assert (deit.top1, deit.parameters) == (87.186, 632_126_440)
    distilled = find_weights("R50x1", "goog_distilled_in1k@160")
    assert "80.5 % (README" in repr(distilled)


def test_an_unpublished_variant_is_an_error_with_the_choices():
    with pytest.raises(ValueError, match=r"one of 'Ti/16'.*'R50x1'.*variant='X/16'"):
        list_weights("X/16")
    with pytest.raises(ValueError, match=r"one of 'sam_in1k', .* for S/16, or a path"):
        find_weights("S/16", "augreg")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("B/16:augreg_in21", "augreg_in21k"),
        ("L16:augreg_in21k", "L/16"),
        ("S/32:augreg_in21k_ft_in1k_384", "augreg_in21k_ft_in1k@384"),
        ("augreg2_in21k_ft_in1k", "B/8:augreg2_in21k_ft_in1k"),
        ("vit_base_patch8_224", "B/8:orig_in21k"),
        ("ViT-H-14", "H/14:orig_in21k"),
        ("hf:google/vit-base-patch16-224", "B/16:hf://google/vit-base-patch16-224"),
    ],
)
def test_a_misspelled_preset_is_an_error_with_the_one_that_was_meant(name, meant):
    with pytest.raises(ValueError, match=rf"Did you mean {re.escape(meant)}\?$"):
        keras_vit.VisionTransformer.from_preset(name)


def test_every_listed_preset_is_taken_as_it_is_listed(monkeypatch):
    taken = []
    monkeypatch.setattr(building, "fetch", lambda row: taken.append(row) or 1 / 0)
    for row in ROWS:
        with pytest.raises(ZeroDivisionError):
            keras_vit.VisionTransformer.from_preset(f"{row.variant}:{row.name}")
    assert taken == ROWS


def test_a_preset_of_another_size_is_an_error_before_it_is_downloaded():
    with pytest.raises(ValueError, match=r"of the size S/16.*'B/16:augreg_in21k'"):
        building.build_preset(
            keras_vit.VisionTransformer, "B/16:augreg_in21k", {}, variant="S/16"
        )
