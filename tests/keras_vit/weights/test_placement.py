"""Files that are not quite the model's: grids, tokens, patches, channels, heads."""

import foreign_weights as foreign
import numpy as np
import numpy_vit
import pytest
import scipy.ndimage
from foreign_files import (
    arrays_of,
    big_vision,
    check_same_weights,
    check_unmoved,
    google,
    hugging_face,
    timm,
    write_npz,
    write_safetensors,
)
from tiny_model import numpy

from keras_vit.errors import CheckpointError
from keras_vit.weights.loading import load_checkpoint
from keras_vit.weights.resampling import RESIZES, resample_positions

pytestmark = pytest.mark.backend

POSITIONS = "position_embedding/embedding"
EXACT = {"gelu": "exact"}
SQUARE = {"image_size": (22, 22), "patch_size": 2}


def check_refused(model, path, match, **kwargs):
    before = arrays_of(model)
    with pytest.raises(CheckpointError, match=match) as caught:
        load_checkpoint(model, path, **kwargs)
    check_unmoved(model, before)
    return str(caught.value)


# Positions


def zoomed(positions, old, new):
    """The official code's resampling; the class token's position stays."""
    grid = positions[0, 1:].reshape(*old, -1)
    factors = (new[0] / old[0], new[1] / old[1], 1)
    grid = scipy.ndimage.zoom(grid.astype("float64"), factors, order=1)
    return np.concatenate([positions[0, :1], grid.reshape(new[0] * new[1], -1)])[None]


def test_positions_are_resampled_as_in_the_official_code(tiny_vit, tmp_path):
    source, model = tiny_vit(**SQUARE), tiny_vit(seed=12)
    report = load_checkpoint(model, google(source, tmp_path))
    assert (source.grid, model.grid) == ((11, 11), (11, 7))
    expected = zoomed(arrays_of(source)[POSITIONS], (11, 11), (11, 7))
    np.testing.assert_allclose(arrays_of(model)[POSITIONS], expected, atol=1e-6)
    check_same_weights(model, source, POSITIONS)
    assert report.resampled == {POSITIONS: "grid (11, 11) to (11, 7), method 'google'"}
    assert "resampled position_embedding" in str(report)


@pytest.mark.parametrize("method", tuple(RESIZES))
def test_every_method_resamples_positions_but_not_prefix_tokens(
    method, tiny_vit, tmp_path
):
    kwargs = {**EXACT, "register_tokens": 4}
    source, model = tiny_vit(**kwargs, **SQUARE), tiny_vit(seed=12, **kwargs)
    load_checkpoint(model, timm(source, tmp_path), resample=method)
    old, new = (arrays_of(m)[POSITIONS] for m in (source, model))
    np.testing.assert_array_equal(new[:, :5], old[:, :5])
    expected = resample_positions(old, (11, 11), (11, 7), 5, method)
    np.testing.assert_array_equal(new, expected)


def test_a_grid_that_is_not_square_must_be_given(tiny_vit, tmp_path):
    source, model = tiny_vit(), tiny_vit(seed=12, **SQUARE)
    path = google(source, tmp_path)
    message = check_refused(model, path, "78 positions, no square grid: pass grid=")
    assert "missing" not in message
    check_refused(model, path, r"78 positions, no grid of \(7, 12\)", grid=(7, 12))
    report = load_checkpoint(model, path, grid=(11, 7))
    expected = zoomed(arrays_of(source)[POSITIONS], (11, 7), (11, 11))
    np.testing.assert_allclose(arrays_of(model)[POSITIONS], expected, atol=1e-6)
    assert report.resampled[POSITIONS].startswith("grid (11, 7) to (11, 11)")


def test_a_transposed_grid_is_resampled(tiny_vit, tmp_path):
    source, model = tiny_vit(), tiny_vit(seed=12, image_size=(14, 22))
    load_checkpoint(model, google(source, tmp_path), grid=(11, 7))
    expected = zoomed(arrays_of(source)[POSITIONS], (11, 7), (7, 11))
    np.testing.assert_allclose(arrays_of(model)[POSITIONS], expected, atol=1e-6)


def test_the_config_determines_the_grid(tiny_vit, tmp_path):
    source, model = tiny_vit(**EXACT), tiny_vit(seed=12, **EXACT, **SQUARE)
    arguments = {"num_heads": 5, "img_size": [22, 14]}
    report = load_checkpoint(model, timm(source, tmp_path, model_args=arguments))
    assert report.resampled[POSITIONS].startswith("grid (11, 7) to (11, 11)")


# Prefix tokens


@pytest.mark.parametrize("registers", [0, 4])
@pytest.mark.parametrize("merged", [True, False])
def test_prefix_tokens_positions_in_them_or_apart_are_the_same(
    merged, registers, tiny_vit, images, tmp_path
):
    kwargs = {**EXACT, "register_tokens": registers} if registers else {}
    source = tiny_vit(prefix_positions=merged, **kwargs)
    model = tiny_vit(seed=12, prefix_positions=not merged, **kwargs)
    write = timm if registers else google if merged else big_vision
    report = load_checkpoint(model, write(source, tmp_path))
    numpy_vit.check_outputs(model, images(), source, atol=2e-5)
    if registers:
        return
    if merged:
        assert report.adapted == {
            "class_token/token": "its position was added to it",
            POSITIONS: "without those of 1 prefix tokens",
        }
    else:
        assert report.adapted == {
            POSITIONS: "zeros for 1 prefix tokens without a position"
        }


def deit(model, folder):
    """A file of timm's DeiT: the distillation token is the model's one register."""
    arrays = foreign.timm(arrays_of(model))
    arrays["dist_token"] = arrays.pop("reg_token")
    arrays["head_dist.weight"] = arrays["head.weight"] + 1
    arrays["head_dist.bias"] = arrays["head.bias"] + 1
    return write_safetensors(folder / "model.safetensors", arrays)


def test_a_distillation_token_is_a_register_with_a_classifier_of_its_own(
    tiny_vit, images, tmp_path
):
    kwargs = {**EXACT, "register_tokens": 1}
    source = tiny_vit(**kwargs)
    path = deit(source, tmp_path)
    model = tiny_vit(seed=12, **kwargs)
    check_refused(model, path, "without a weight: head_dist.weight, head_d")
    report = load_checkpoint(model, path, strict=False)
    assert report.unused == ["head_dist.weight", "head_dist.bias"]
    assert report.used["register_tokens/tokens"] == "dist_token"
    numpy_vit.check_outputs(model, images(), source, atol=2e-5)
    both = tiny_vit(seed=12, **kwargs, distilled=True)
    load_checkpoint(both, path)
    check_same_weights(both, source, "head_dist/kernel", "head_dist/bias")


def test_a_classifier_policy_applies_to_both_classifiers_of_deit(tiny_vit, tmp_path):
    kwargs = {**EXACT, "register_tokens": 1}
    source = tiny_vit(**kwargs)
    model = tiny_vit(seed=12, **kwargs, classes=None)
    report = load_checkpoint(model, deit(source, tmp_path), classifier="drop")
    assert sorted(report.dropped) == [
        *("head.bias", "head.weight", "head_dist.bias", "head_dist.weight")
    ]
    check_same_weights(model, source)


# Patches and channels


def test_patch_kernels_are_resized_by_the_pseudo_inverse(tiny_vit, images, tmp_path):
    """What was a patch, enlarged, gives the token that it gave (FlexiViT)."""
    source = tiny_vit(image_size=(11, 7), patch_size=1)
    model = tiny_vit(seed=12, image_size=(22, 14), patch_size=2)
    report = load_checkpoint(model, google(source, tmp_path))
    pixels = np.random.default_rng(0).uniform(-1, 1, (2, 11, 7, 3))
    enlarged = pixels.repeat(2, axis=1).repeat(2, axis=2)
    expected = numpy_vit.forward(source, pixels)
    np.testing.assert_allclose(numpy(model(enlarged)), expected, rtol=0, atol=2e-5)
    assert report.resampled == {
        "embedding/kernel": "patches of (1, 1) to (2, 2) pixels, pseudo-inverse "
        "resize, method 'bilinear'"
    }


def test_one_channel_gives_the_logits_of_three_equal_ones(tiny_vit, images, tmp_path):
    source, model = tiny_vit(), tiny_vit(seed=12, channels=1)
    report = load_checkpoint(model, google(source, tmp_path))
    gray = images(1)
    expected = numpy_vit.forward(source, gray.repeat(3, axis=-1))
    np.testing.assert_allclose(numpy(model(gray)), expected, rtol=0, atol=2e-5)
    assert report.adapted == {"embedding/kernel": "3 to 1 channels"}


def test_a_hybrids_first_convolution_is_adapted_to_the_channels(tiny_vit, tmp_path):
    kwargs = {"image_size": (32, 64), "resnet_blocks": (), "patch_size": 2}
    source, model = tiny_vit(**kwargs), tiny_vit(seed=12, channels=1, **kwargs)
    report = load_checkpoint(model, google(source, tmp_path))
    summed = arrays_of(source)["stem_conv/kernel"].sum(2, keepdims=True)
    adapted = arrays_of(model)["stem_conv/kernel"]
    np.testing.assert_allclose(adapted, summed, rtol=1e-5, atol=1e-6)
    assert report.adapted == {"stem_conv/kernel": "3 to 1 channels"}


# Classifiers


NEEDED = "7 classes, the model's 4: pass classifier='keep'"
SUITABLE = "is for a model with a classifier"


@pytest.mark.parametrize(
    ("kwargs", "policy", "match"),
    [
        ({"classes": 4}, "load", NEEDED),
        ({"pooling": "avg"}, "load", "the model's for pooling='avg': pass classifier="),
        ({"classes": None}, "load", "a classifier, the model none: pass classifier='d"),
        ({}, "drop", "'drop' is for a model wit"),
        ({"classes": None}, "keep", f"'keep' {SUITABLE}"),
        ({"classes": None}, "reset", f"'reset' {SUITABLE}"),
    ],
)
def test_a_classifier_policy_is_needed_and_must_suit_the_model(
    kwargs, policy, match, tiny_vit, tmp_path
):
    model, path = tiny_vit(seed=12, **kwargs), google(tiny_vit(), tmp_path)
    message = check_refused(model, path, match, classifier=policy)
    assert match is not NEEDED or "without" not in message


@pytest.mark.parametrize("classes", [7, 4])
def test_keep_keeps_the_models_classifier(classes, tiny_vit, tmp_path):
    source, model = tiny_vit(), tiny_vit(seed=12, classes=classes)
    before = arrays_of(model)
    report = load_checkpoint(model, google(source, tmp_path), classifier="keep")
    after = arrays_of(model)
    for path in ("head/kernel", "head/bias"):
        assert after[path].tobytes() == before[path].tobytes()
    check_same_weights(model, source, "head/kernel", "head/bias")
    assert sorted(report.dropped) == ["head/bias", "head/kernel"]
    assert report.missing == []


def test_reset_gives_the_classifier_its_initial_values(tiny_vit, images, tmp_path):
    source = tiny_vit(representation_size=9)
    model = tiny_vit(seed=12, classes=4, head_bias_init=-6.9)
    report = load_checkpoint(model, google(source, tmp_path), classifier="reset")
    np.testing.assert_allclose(numpy(model(images())), np.full((2, 4), -6.9), rtol=1e-6)
    check_same_weights(model, source, "head/kernel", "head/bias")
    dropped = ["head/bias", "head/kernel", "pre_logits/bias", "pre_logits/kernel"]
    assert sorted(report.dropped) == dropped
    assert report.adapted["head/bias"] == "new, all -6.9"


def test_drop_leaves_the_classifier_out(tiny_vit, tmp_path):
    source, model = tiny_vit(), tiny_vit(seed=12, classes=None)
    load_checkpoint(model, google(source, tmp_path), classifier="drop")
    check_same_weights(model, source)


def test_a_hidden_layer_before_the_classifier_loads_or_is_named(tiny_vit, tmp_path):
    source = tiny_vit(representation_size=9)
    path = google(source, tmp_path)
    match = "without a weight: pre_logits/kernel"
    message = check_refused(tiny_vit(seed=12), path, match)
    assert "(9, 7)" in message  # the classifier's inputs
    model = tiny_vit(seed=12, classes=None, representation_size=9)
    load_checkpoint(model, path, classifier="drop")
    check_same_weights(model, source)


# Settings


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"gelu": "exact"}, "gelu='tanh', this one has gelu='exact': build it"),
        (
            {"norm_epsilon": 1e-12},
            "norm_epsilon=1e-06, this one has norm_epsilon=1e-12",
        ),
        ({"heads": 3}, "heads=5, this one has heads=3"),
    ],
)
def test_settings_that_follow_from_no_array_must_match(
    kwargs, match, tiny_vit, tmp_path
):
    source, model = tiny_vit(), tiny_vit(seed=12, **kwargs)
    path = google(source, tmp_path)
    check_refused(model, path, match)
    report = load_checkpoint(model, path, settings="ignore")
    check_same_weights(model, source)
    ((name, value),) = kwargs.items()
    assert any(f"{name}={value!r} of the model stays" in n for n in report.notes)


def test_sine_and_absent_positions_are_distinguished(tiny_vit, tmp_path):
    waves = {"position_embedding": "sincos2d", "width": 20}
    path = big_vision(tiny_vit(**waves), tmp_path)
    model = tiny_vit(seed=12, position_embedding="none", width=20)
    check_refused(model, path, "position_embedding='sincos2d', this one has")


def test_the_config_of_hugging_face_determines_its_settings(tiny_vit, tmp_path):
    kwargs = {"gelu": "tanh", "norm_epsilon": 1e-5}
    source, model = tiny_vit(**kwargs), tiny_vit(seed=12, **kwargs)
    config = {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-5}
    load_checkpoint(model, hugging_face(source, tmp_path, **config))
    check_same_weights(model, source)
    path = hugging_face(source, tmp_path, hidden_act="gelu")
    check_refused(model, path, "gelu='exact', this one has gelu='tanh'")


def test_without_a_config_the_report_says_what_is_not_known(tiny_vit, tmp_path):
    kwargs = {"gelu": "exact", "norm_epsilon": 1e-12}
    source, model = tiny_vit(**kwargs), tiny_vit(seed=12, **kwargs)
    path = hugging_face(source, tmp_path)
    (tmp_path / "config.json").unlink()
    report = load_checkpoint(model, path)
    check_same_weights(model, source)
    note = "the file does not say how many heads it has; the model has 5"
    assert note in report.notes


# Strictness


def test_strict_lists_unused_arrays_and_missing_weights(tiny_vit, tmp_path):
    source, model = tiny_vit(), tiny_vit(seed=12)
    arrays = foreign.google(arrays_of(source), 5)
    del arrays["Transformer/encoderblock_1/LayerNorm_2/bias"], arrays["head/bias"]
    path = write_npz(tmp_path / "g.npz", {**arrays, "ema/decay": np.ones(3)})
    before = arrays_of(model)
    message = check_refused(model, path, "weights without an array")
    assert "encoder_block_1/norm2/beta, head/bias" in message
    assert "arrays without a weight: ema/decay" in message
    report = load_checkpoint(model, path, strict=False)
    assert report.unused == ["ema/decay"]
    assert report.missing == ["encoder_block_1/norm2/beta", "head/bias"]
    after = arrays_of(model)
    for name in report.missing:
        assert after[name].tobytes() == before[name].tobytes()


@pytest.mark.parametrize("name", ["classifier", "resample", "settings"])
def test_arguments_are_among_their_choices(name, tiny_vit, tmp_path):
    path = google(tiny_vit(), tmp_path)
    with pytest.raises(ValueError, match=f"`{name}` must be one of.*Received"):
        load_checkpoint(tiny_vit(seed=12), path, **{name: "other"})
