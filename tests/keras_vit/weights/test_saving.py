"""What we write other code can read, and reading it gives the same bits."""

import json
import os
import pathlib
import warnings

import foreign_weights as foreign
import keras
import numpy as np
import pytest
from foreign_files import (
    arrays_of,
    check_same_options,
    check_same_weights,
    check_unmoved,
)
from long_cases import long_after
from tiny_model import NO_QKV_BIASES

import keras_vit
from keras_vit.errors import CheckpointError
from keras_vit.option_rows import rows
from keras_vit.options import REQUIRED
from keras_vit.resnet import ResNet
from keras_vit.weights import saving
from keras_vit.weights.loading import load_checkpoint
from keras_vit.weights.saving import WRITERS

pytestmark = pytest.mark.backend

EXACT = {"gelu": "exact"}
HUGGING_FACE = {"gelu": "exact", "norm_epsilon": 1e-12}
HYBRID = {"image_size": (64, 32), "resnet_blocks": (2, 2, 2, 2), "patch_size": 1}
ONE = {"depth": 1}

FORMS = [
    ("google", {}),
    ("google", {"pooling": "avg", "class_token": False, **ONE}),
    ("timm", EXACT),
    ("timm", {"register_tokens": 4, "prefix_positions": False, **EXACT}),
    ("timm", {"layer_scale": 0.1, "qk_norm": True, **EXACT, **ONE}),
    ("timm", {"pooling": "map", "class_token": False, "register_tokens": 2}),
    ("hugging_face", HUGGING_FACE),
    ("hugging_face", {"classes": None, **HUGGING_FACE}),
    ("keras_hub", {"representation_size": 9, **EXACT}),
    ("google", {"representation_size": 9}),
    ("google", {"classes": None}),
    ("google", {**HYBRID, **ONE}),
    ("timm", {}),
    ("timm", {"pooling": "avg", "class_token": False, "fc_norm": True, **EXACT}),
    ("timm", {"pooling": "map", "class_token": False, **EXACT, **ONE}),
    ("timm", {"layer_scale": 0.1, "prefix_positions": False, **EXACT}),
    ("timm", {**NO_QKV_BIASES, **EXACT, **ONE}),
    ("timm", {"layer_scale": 0.1, "swiglu": True, **EXACT}),
    ("timm", {**HYBRID, **EXACT, **ONE}),
    ("timm", {"pooling": None}),
    ("timm", {"pooling": "avg", **ONE}),
    ("timm", {"fc_norm": True, "layer_scale": 0.0, **ONE}),
    ("timm", {"pooling": "avg", "class_token": False, "prefix_positions": True}),
    ("timm", {"classes": None, **ONE}),
    ("hugging_face", {**NO_QKV_BIASES, **HUGGING_FACE}),
    (
        "hugging_face",
        {"classes": None, "representation_size": 15, **HUGGING_FACE, **ONE},
    ),
    ("keras_hub", {"pooling": "avg", "class_token": False, **EXACT, **ONE}),
    ("keras_hub", {"mlp_bias": False, "embedding_bias": False, **EXACT, **ONE}),
]


def place(folder, family):
    """Where a family's checkpoint goes; timm and Hugging Face need safetensors."""
    if family == "google":
        return folder / "model.npz"
    if family != "keras_hub":
        pytest.importorskip("safetensors")
    return folder / "model"


@pytest.mark.parametrize(("family", "kwargs"), long_after(9, FORMS))
def test_a_model_survives_a_round_trip(family, kwargs, tiny_vit, tmp_path):
    """Built from the file, then loaded again into a model with other weights."""
    source = tiny_vit(**kwargs)
    path = place(tmp_path, family)
    keras_vit.save_checkpoint(source, path, family)
    needed = {"image_size": source.image_size, "grid": source.grid}
    model = keras_vit.VisionTransformer.from_preset(
        path, **needed if family == "google" else {}
    )
    check_same_options(model, source)
    check_same_weights(model, source)
    for weight in model.weights:
        weight.assign(np.zeros(weight.shape))
    report = load_checkpoint(model, path)
    assert report.family == family
    assert report.adapted == report.resampled == {}
    check_same_weights(model, source)


@pytest.mark.parametrize("family", long_after(1, ["google", "timm"]))
def test_a_resnet_survives_a_round_trip(family, tmp_path):
    keras.utils.set_random_seed(5)
    # timm has the published sizes only.
    blocks = (3, 4, 6, 3) if family == "timm" else (1, 2)
    source = ResNet(blocks=blocks, image_size=32, classes=7)
    head = source.get_layer("head").kernel
    head.assign(keras.random.normal(head.shape))
    path, before = place(tmp_path, family), arrays_of(source)
    keras_vit.save_checkpoint(source, path, family)
    for weight in source.weights:
        weight.assign(np.zeros(weight.shape))
    load_checkpoint(source, path)
    check_unmoved(source, before)


@pytest.mark.parametrize(
    "kwargs", long_after(2, [{}, {"representation_size": 9}, HYBRID])
)
def test_googles_files_have_the_expected_arrays(kwargs, tiny_vit, tmp_path):
    model = tiny_vit(**kwargs)
    keras_vit.save_checkpoint(model, tmp_path / "model.npz")
    check_arrays(np.load(tmp_path / "model.npz"), foreign.google(arrays_of(model), 5))


@pytest.mark.parametrize(
    ("family", "kwargs"),
    [
        ("timm", {**EXACT, "register_tokens": 4, "layer_scale": 0.1, "qk_norm": True}),
        ("timm", {**EXACT, "pooling": "map", "class_token": False}),
        ("hugging_face", HUGGING_FACE),
        ("hugging_face", {"classes": None, "representation_size": 15, **HUGGING_FACE}),
    ],
)
def test_safetensors_files_have_the_expected_arrays(family, kwargs, tiny_vit, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    model = tiny_vit(**kwargs)
    keras_vit.save_checkpoint(model, tmp_path, family)
    found = safetensors.load_file(tmp_path / "model.safetensors")
    check_arrays(found, getattr(foreign, family)(arrays_of(model)))


def check_arrays(found, expected):
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_a_class_token_without_position_gets_zeros(tiny_vit, images, tmp_path):
    source = tiny_vit(prefix_positions=False)
    keras_vit.save_checkpoint(source, tmp_path / "model.npz")
    name = "Transformer/posembed_input/pos_embedding"
    positions = np.load(tmp_path / "model.npz")[name]
    assert positions.shape == (1, 1 + 77, 15)
    assert not positions[:, 0].any()
    model = tiny_vit(seed=12)
    load_checkpoint(model, tmp_path / "model.npz")
    np.testing.assert_allclose(model(images()), source(images()), rtol=0, atol=1e-5)


# Of timm's `VisionTransformer`, which takes no other.
TIMM_ARGUMENTS = {
    *("img_size", "patch_size", "in_chans", "embed_dim", "depth", "num_heads"),
    *("mlp_ratio", "qkv_bias", "qk_norm", "init_values", "class_token", "reg_tokens"),
    *("no_embed_class", "global_pool", "pool_include_prefix", "fc_norm", "act_layer"),
}


def test_configs_hold_the_settings_that_follow_from_no_array(tiny_vit, tmp_path):
    pytest.importorskip("safetensors")
    preprocessing = keras_vit.ImagePreprocessing((22, 14))
    options = {"preprocessing": preprocessing, "class_names": list("abcdefg")}
    model = tiny_vit(gelu="tanh", norm_epsilon=1e-5, **options)
    files = keras_vit.save_checkpoint(model, tmp_path / "hf", "hugging_face")
    names = ["config.json", "model.safetensors", "preprocessor_config.json"]
    assert sorted(file.name for file in files) == names
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config["hidden_act"] == "gelu_pytorch_tanh"
    assert (config["layer_norm_eps"], config["image_size"]) == (1e-5, [22, 14])
    assert config["id2label"] == dict(zip("0123456", "abcdefg", strict=True))
    processor = json.loads((tmp_path / "hf/preprocessor_config.json").read_text())
    assert processor["size"] == {"height": 22, "width": 14}
    assert processor["image_mean"] == pytest.approx([0.5] * 3)

    model = tiny_vit(gelu="tanh", register_tokens=2, **options)
    files = keras_vit.save_checkpoint(model, tmp_path / "timm", "timm")
    assert sorted(file.name for file in files) == names[:2]
    config = json.loads((tmp_path / "timm/config.json").read_text())
    arguments = config["model_args"]
    assert arguments.keys() <= TIMM_ARGUMENTS
    assert (config["num_classes"], arguments["act_layer"]) == (7, "gelu_tanh")
    assert (arguments["img_size"], arguments["reg_tokens"]) == ([22, 14], 2)
    assert int(arguments["embed_dim"] * arguments["mlp_ratio"]) == 23
    assert config["pretrained_cfg"]["input_size"] == [3, 22, 14]
    assert config["pretrained_cfg"]["std"] == pytest.approx([0.5] * 3)


REFUSED = {
    "google": [
        (
            {**EXACT, "pooling": "map", "norm_epsilon": 1e-5},
            [
                "gelu must be 'tanh'",
                "norm_epsilon must be 1e-06",
                "pooling must not be",
            ],
        ),
        (
            {"position_embedding": "relative"},
            ["position_embedding must be 'learned_1d'"],
        ),
        ({"pooling": "avg"}, ["class token"]),
        ({"register_tokens": 2}, ["register_tokens"]),
        ({"swiglu": True}, ["swiglu must be False"]),
        ({**EXACT, "qk_norm": True}, ["gelu must be", "query_norm"]),
        ({"key_bias": False}, ["key_bias must be True"]),
        ({"output_bias": False}, ["output_bias must be True"]),
    ],
    "timm": [
        ({"swiglu": True, "pooling": "map"}, ["swiglu must be False in a"]),
        pytest.param(
            {"swiglu": True, **HYBRID},
            ["swiglu must be False in a hybrid"],
            marks=pytest.mark.slow,
        ),
        ({"representation_size": 9}, ["representation_size must be None"]),
        ({"norm_epsilon": 1e-4}, ["norm_epsilon"]),
        ({"position_placement": "shared"}, ["position_placement must be 'stem'"]),
        ({"pooling": "map", "register_tokens": 2}, ["no class token beside"]),
        ({"output_bias": False}, ["output_bias must be True"]),
        ({"output_bias": False, "key_bias": False}, ["output_bias must be True"]),
    ],
    "hugging_face": [
        ({"pooling": "avg"}, ["pooling must be 'token'"]),
        ({"representation_size": 15}, ["representation_size must be None"]),
        (HYBRID, ["resnet_blocks must be None"]),
        ({"layer_scale": 0.1}, ["Hugging Face BEiT", "key_bias must be False"]),
        ({"swiglu": True}, ["swiglu must be False"]),
        ({"register_tokens": 2}, ["register_tokens must be 0"]),
        ({"pooling": None, "representation_size": 15}, ["representation_size must"]),
        ({"output_bias": False}, ["output_bias must be True"]),
        ({"key_bias": False, "qk_norm": True}, ["qk_norm must be False"]),
    ],
    "keras_hub": [
        ({}, ["gelu must be 'exact'"]),
        ({**EXACT, "pooling": "avg"}, ["pooling must be 'token' or None"]),
        ({**EXACT, "key_bias": False}, ["key_bias must be True"]),
        ({**EXACT, "qk_norm": True}, ["qk_norm must be False", "query_norm/gamma"]),
        (
            {**EXACT, "classes": None, "representation_size": 9},
            ["representation_size must be None without classes"],
        ),
        ({**HYBRID, **EXACT}, ["resnet_blocks must be None"]),
    ],
}


@pytest.mark.parametrize(
    ("family", "kwargs", "reasons"),
    [
        pytest.param(family, *row.values, marks=row.marks)
        if hasattr(row, "marks")
        else (family, *row)
        for family, rows in REFUSED.items()
        for row in rows
    ],
)
def test_a_model_that_a_family_cannot_represent_is_refused_with_all_reasons(
    family, kwargs, reasons, tiny_vit, tmp_path
):
    path = tmp_path / ("model.npz" if family == "google" else "model")
    with pytest.raises(CheckpointError) as caught:
        keras_vit.save_checkpoint(tiny_vit(**kwargs, **ONE), path, family)
    for reason in reasons:
        assert reason in str(caught.value)
    assert list(tmp_path.iterdir()) == []


WIDE = {"width": 24, "heads": 3}
OF_A_GRID = {"rotary": "grid", **WIDE}
# Another value of every option that weights depend on, and what goes with it.
OTHER = {
    "gelu": EXACT,
    "swiglu": {"swiglu": True},
    "query_bias": {"query_bias": False},
    "key_bias": {"key_bias": False},
    "value_bias": {"value_bias": False},
    "output_bias": {"output_bias": False},
    "qk_norm": {"qk_norm": True},
    "attention_norm": {"attention_norm": True},
    "mlp_norm": {"mlp_norm": True},
    "mlp_bias": {"mlp_bias": False},
    "norm": {"norm": "rms"},
    "norm_epsilon": {"norm_epsilon": 1e-5},
    "layer_scale": {"layer_scale": 0.1},
    "post_norm": {"post_norm": True},
    "parallel": {"parallel": True},
    "branches": {"branches": 2},
    "rotary": {"rotary": "centered", **WIDE},
    "rotary_pairing": {"rotary_pairing": "neighbors"},
    "rotary_axes": {"rotary_axes": "xy"},
    "rotary_temperature": {"rotary_temperature": 9.0},
    "rotary_offset": {**OF_A_GRID, "rotary_offset": 1.0},
    "rotary_reference_grid": {**OF_A_GRID, "rotary_reference_grid": (3, 2)},
    "embedding_bias": {"embedding_bias": False},
    "patch_norm": {"patch_norm": True},
    "embedding_norm": {"embedding_norm": True},
    "final_norm": {"final_norm": False},
    "relative_bias": {"relative_bias": "shared"},
    "pool_heads": {"pool_heads": 3, "pooling": "map"},
    "pool_mlp_dim": {"pool_mlp_dim": 9, "pooling": "map"},
    "class_token": {"class_token": False, "pooling": "avg"},
    "register_tokens": {"register_tokens": 1},
    "position_embedding": {"position_embedding": "none"},
    "position_placement": {"position_placement": "shared"},
    "prefix_positions": {"prefix_positions": False},
    "fc_norm": {"fc_norm": True},
    "attention": {"attention": "axial", "class_token": False, "pooling": "avg"},
    "resnet_blocks": HYBRID,
    "resnet_width_factor": {**HYBRID, "resnet_width_factor": 2},
}


@pytest.mark.slow
def test_what_a_family_does_not_claim_to_hold_is_refused(tiny_vit, monkeypatch):
    """So is an option that is new, until the family says how it states it."""
    options = keras_vit.VisionTransformer.options_class
    structure = {name for name, row in rows(options).items() if not row.adaptable}
    assert OTHER.keys() == structure - set(REQUIRED)
    families = [each for key, of in WRITERS.items() if key[1] == "vit" for each in of]
    for name, kwargs in OTHER.items():
        model = tiny_vit(**kwargs, **ONE)
        for family in families:
            if name not in family.holds and family.always.get(name) != kwargs[name]:
                alone = {(family.project, "vit"): [family]}
                monkeypatch.setattr(saving, "WRITERS", alone)
                reasons = " ".join(saving.incompatibilities(model, family.project))
                assert f"{name} must be" in reasons, (family.title, name)


@pytest.mark.parametrize("family", ["google", "timm", "hugging_face", "keras_hub"])
def test_a_failed_write_leaves_the_old_files(family, tiny_vit, tmp_path, monkeypatch):
    kwargs = {"hugging_face": HUGGING_FACE, "keras_hub": EXACT}.get(family, {})
    path = place(tmp_path, family)
    keras_vit.save_checkpoint(tiny_vit(**kwargs), path, family)
    before = contents(tmp_path)

    def fail(*arguments, **options):
        raise OSError("No space left on device")

    if family == "google":
        monkeypatch.setattr(np.lib.format, "write_array", fail)
    else:
        monkeypatch.setattr(pathlib.Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space"):
        keras_vit.save_checkpoint(tiny_vit(seed=12, **kwargs), path, family)
    assert contents(tmp_path) == before


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_are_renamed_into_place(tiny_vit, tmp_path, monkeypatch):
    keras_vit.save_checkpoint(tiny_vit(), tmp_path / "model.npz")
    reader = (tmp_path / "model.npz").open("rb")
    old = (tmp_path / "model.npz").read_bytes()
    (path,) = keras_vit.save_checkpoint(tiny_vit(seed=12), tmp_path / "model.npz")
    assert path == tmp_path / "model.npz"
    with reader:  # who has it open goes on reading the old one
        assert reader.read() == old
    assert os.listdir(tmp_path) == ["model.npz"]


@pytest.mark.parametrize("family", ["google", "keras_hub"])
def test_class_names_without_a_place_give_a_warning(family, tiny_vit, tmp_path):
    kwargs = EXACT if family == "keras_hub" else {}
    model = tiny_vit(**kwargs, class_names=list("abcdefg"))
    with pytest.warns(UserWarning, match=f"{family} cannot state class_names"):
        keras_vit.save_checkpoint(model, place(tmp_path, family), family)


@pytest.mark.parametrize("family", ["google", "timm", "hugging_face", "keras_hub"])
def test_an_activation_without_a_place_gives_a_warning(family, tiny_vit, tmp_path):
    kwargs = {"hugging_face": HUGGING_FACE, "keras_hub": EXACT}.get(family, {})
    model = tiny_vit(**kwargs, classifier_activation="sigmoid")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        keras_vit.save_checkpoint(model, place(tmp_path, family), family)
    told = "classifier_activation='sigmoid', and gives logits" in str(
        [str(each.message) for each in found]
    )
    assert told == (family != "keras_hub")
    opened = keras_vit.open_model(place(tmp_path, family), heads=model.heads)
    assert opened.classifier_activation == (None if told else "sigmoid")


def test_names_and_families_are_checked(tiny_vit, tmp_path):
    model = tiny_vit()
    with pytest.raises(ValueError, match="must be an .npz file for family='google'"):
        keras_vit.save_checkpoint(model, tmp_path / "folder")
    for suffix in (".npz", ".safetensors", ".keras", ".h5"):
        with pytest.raises(ValueError, match="must be a folder for family='timm'"):
            keras_vit.save_checkpoint(model, tmp_path / f"model{suffix}", "timm")
    with pytest.raises(ValueError, match="`family` must be one of.*'open_clip'"):
        keras_vit.save_checkpoint(model, tmp_path / "model", "open_clip")
    assert saving.WRITTEN == ("google", "timm", "hugging_face", "keras_hub")
