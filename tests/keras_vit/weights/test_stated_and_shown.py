"""What documents state of a checkpoint is what its arrays show, or it is refused.

Every family is written with most of what it can hold. Then one kind of its arrays after
the other is deleted, in all blocks and in the last one: none of it opens.
"""

import contextlib
import json
import re

import foreign_files
import foreign_weights
import numpy as np
import pytest
from foreign_files import arrays_of, edit, write_hdf5, write_safetensors
from tiny_model import small

import keras_vit
from keras_vit.options import SETTINGS
from keras_vit.weights import (
    FAMILIES,
    CheckpointError,
    WeightsFileError,
    open_checkpoint,
)
from keras_vit.weights.saving import WRITERS, save_checkpoint, writer_of

pytest.importorskip("safetensors")

EXACT = {"gelu": "exact"}
WIDE = {"width": 24, "heads": 3, "mlp_dim": 32, "image_size": 16, "patch_size": 4}
BARE = {"classes": None, "pooling": "token", **WIDE, **EXACT}
SEPARATE = {"key_bias": False, "layer_scale": 0.1}
ROTARY = {
    "rotary": "centered",
    "position_embedding": "none",
    "register_tokens": 2,
    "norm_epsilon": 1e-5,
    **SEPARATE,
}
RMS = {
    "norm": "rms",
    "patch_norm": True,
    "swiglu": True,
    "class_token": False,
    "norm_epsilon": 1e-5,
    **dict.fromkeys(
        ("query_bias", "key_bias", "value_bias", "output_bias", "mlp_bias"), False
    ),
}
# A model with most of what each family can hold, by the family's title.
MODELS = {
    "timm ViT": {
        **EXACT,
        "qk_norm": True,
        "layer_scale": 0.1,
        "register_tokens": 2,
        "prefix_positions": False,
        "embedding_norm": True,
        "embedding_bias": False,
    },
    "timm EVA": {
        **EXACT,
        **WIDE,
        **SEPARATE,
        "rotary": "mixed",
        "rotary_temperature": 10.0,
        "rotary_pairing": "neighbors",
        "swiglu": True,
        "mlp_norm": True,
        "attention_norm": True,
        "qk_norm": True,
    },
    "timm NaFlexVit": {
        **WIDE,
        **SEPARATE,
        "image_size": (16, 24),
        "gelu": "quick",
        "class_token": False,
        "register_tokens": 2,
        "prefix_positions": False,
        "rotary": "mixed",
        "rotary_temperature": 10.0,
        "rotary_pairing": "neighbors",
        "swiglu": True,
        "mlp_norm": True,
        "attention_norm": True,
        "qk_norm": True,
        "pooling": "map",
    },
    "timm BEiT": {**EXACT, **SEPARATE, "relative_bias": "every_layer"},
    "Hugging Face ViT": {**EXACT, "norm_epsilon": 1e-12},
    "Hugging Face DeiT": {
        **EXACT,
        "norm_epsilon": 1e-12,
        "register_tokens": 1,
        "distilled": True,
    },
    "Hugging Face MAE": {**BARE, "norm_epsilon": 1e-12},
    "Hugging Face I-JEPA": {**EXACT, "class_token": False, "pooling": "avg"},
    "Hugging Face BEiT": {
        **EXACT,
        **SEPARATE,
        "image_size": 8,
        "relative_bias": "every_layer",
        "position_embedding": "none",
        "fc_norm": True,
        "pooling": "avg",
    },
    "Hugging Face Data2VecVision": {
        **BARE,
        **SEPARATE,
        "relative_bias": "shared",
        "final_norm": False,
    },
    "Hugging Face DINOv2": {
        **BARE,
        "mlp_dim": 48,
        "layer_scale": 0.1,
        "register_tokens": 2,
        "prefix_positions": False,
    },
    "Hugging Face DINOv3": {**BARE, **ROTARY},
    "Hugging Face DINOv3 with SwiGLU": {**BARE, **ROTARY, "swiglu": True},
    "Hugging Face CLIP": {
        **BARE,
        "gelu": "quick",
        "embedding_norm": True,
        "embedding_bias": False,
        "projection": 20,
    },
    "Hugging Face MetaCLIP 2": {
        **BARE,
        "embedding_norm": True,
        "embedding_bias": False,
        "norm_epsilon": 1e-5,
        "projection": 20,
    },
    "Hugging Face RADIO": {
        **BARE,
        "pooling": None,
        "class_token": False,
        "register_tokens": 3,
        "prefix_positions": False,
        "embedding_bias": False,
        "final_norm": False,
    },
    "Hugging Face SigLIP": {**BARE, "pooling": "map", "class_token": False},
    "Hugging Face SigLIP 2": {**BARE, "pooling": "map", "class_token": False},
    "Hugging Face AIMv2": {**BARE, **RMS, "pooling": "query"},
    "keras-hub ViT": {**EXACT, "representation_size": 9, "norm_epsilon": 1e-5},
    "keras-hub DeiT": {**EXACT, "register_tokens": 1},
    "keras-hub DINOv2": {
        **BARE,
        "swiglu": True,
        "layer_scale": 0.1,
        "register_tokens": 2,
        "prefix_positions": False,
    },
    "keras-hub DINOv3": {**BARE, **ROTARY},
    "keras-hub DINOv3 with SwiGLU": {**BARE, **ROTARY, "swiglu": True},
    "keras-hub CLIP": {
        **BARE,
        "gelu": "quick",
        "norm_epsilon": 1e-5,
        "embedding_norm": True,
        "embedding_bias": False,
    },
    "keras-hub SigLIP": {
        **BARE,
        "gelu": "tanh",
        "pooling": "map",
        "class_token": False,
    },
    "Meta DINOv2": {
        **{**BARE, "width": 128, "heads": 2},
        "layer_scale": 0.1,
        "register_tokens": 2,
        "prefix_positions": False,
        "swiglu": True,
    },
    "Meta DINOv3": {**BARE, **ROTARY, "swiglu": True},
}
# Without a config, nothing says how many blocks there are, and whether registers.
NOT_MISSED = {
    "Meta DINOv2": {"register_tokens/tokens", "the last block"},
    "Meta DINOv3": {"register_tokens/tokens"},  # its masks of biases tell of blocks
}


def families():
    """Those of the projects whose files have documents, and Meta's."""
    projects = [("timm", "vit"), ("hugging_face", "vit"), ("keras_hub", "vit")]
    written = [family for project in projects for family in WRITERS[project]]
    return [*written, FAMILIES["meta_dinov2"], FAMILIES["meta_dinov3"]]


def written(family, folder, monkeypatch):
    """A model and its folder, written as this family and no other of its project."""
    model = small(**MODELS[family.title])
    if family.project == "meta":
        weights = arrays_of(model)
        if "position_embedding/embedding" in weights:
            arrays = foreign_weights.meta_dinov2(weights)
        else:
            arrays = foreign_weights.meta_dinov3(weights, model.heads)
        write_safetensors(folder / "model.safetensors", arrays)
        return model
    key = (family.project, family.model)
    monkeypatch.setitem(WRITERS, key, [family])
    save_checkpoint(model, folder, family.project)
    return model


def arrays_in(folder):
    with open_checkpoint(folder) as checkpoint:
        arrays = checkpoint.file.arrays
        return {name: np.array(each.read()) for name, each in arrays.items()}


def write_arrays(folder, arrays):
    """Replace the arrays in a folder."""
    if (folder / "model.safetensors").exists():
        write_safetensors(folder / "model.safetensors", arrays)
    else:
        (folder / "task.weights.h5").unlink(missing_ok=True)
        write_hdf5(folder / "model.weights.h5", arrays)


def kinds(folder):
    """Names of a model's arrays by kind: in all blocks, and in the last block alone."""
    found, whole = {}, []
    with open_checkpoint(folder) as checkpoint:
        for path, entry in checkpoint.entries.items():
            kind = re.sub(r"^encoder_block_\d+/", "encoder_block_{i}/", path)
            found.setdefault(kind, []).append(entry.name)
            if entry.other is not None:
                found.setdefault(f"{kind}, other half", []).append(entry.other.name)
            if path.startswith("encoder_block_1/"):
                whole += [entry.name, *([entry.other.name] if entry.other else [])]
    last = {
        f"{kind} of the last block": [names[-1]]
        for kind, names in found.items()
        if len(names) > 1
    }
    return {**found, **last, "the last block": whole}


@pytest.mark.parametrize("family", families(), ids=lambda family: family.title)
def test_a_model_of_each_family_round_trips(family, tmp_path, monkeypatch):
    model = written(family, tmp_path, monkeypatch)
    again = keras_vit.open_model(tmp_path, pooling=model.pooling)
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.described.mark == family.mark
    before = arrays_of(model)
    for path, array in arrays_of(again).items():
        np.testing.assert_array_equal(array, before[path], err_msg=path)
    for name in SETTINGS:
        if name == "gelu" and model.swiglu:
            continue  # nothing computes it
        assert getattr(again, name) == getattr(model, name), name


@pytest.mark.parametrize("family", families(), ids=lambda family: family.title)
def test_no_file_opens_that_lacks_arrays(family, tmp_path, monkeypatch):
    model = written(family, tmp_path, monkeypatch)
    arrays = arrays_in(tmp_path)
    opened = []
    for kind, names in kinds(tmp_path).items():
        rest = {name: each for name, each in arrays.items() if name not in names}
        write_arrays(tmp_path, rest)
        with contextlib.suppress(WeightsFileError, CheckpointError):
            keras_vit.open_model(tmp_path, pooling=model.pooling)
            opened.append(kind)
    assert set(opened) == NOT_MISSED.get(family.title, set())


def test_a_key_of_another_model_is_refused_by_its_name(tmp_path, monkeypatch):
    [family] = [each for each in families() if each.title == "Hugging Face DINOv3"]
    written(family, tmp_path, monkeypatch)
    edit(tmp_path / "config.json", window_size=7)
    match = r"keys that are known here.*Received: `window_size` in the config"
    with pytest.raises(WeightsFileError, match=match):
        keras_vit.open_model(tmp_path)
    edit(tmp_path / "config.json", window_size=False)
    keras_vit.open_model(tmp_path)


def test_timms_unknown_argument_is_refused_by_its_name(tiny_vit, tmp_path):
    arguments = {"attn_drop_rate": 0.1, "window_size": 7}
    path = foreign_files.timm(tiny_vit(**EXACT), tmp_path, model_args=arguments)
    with pytest.raises(WeightsFileError, match=r"Received: `model_args.window_size`"):
        keras_vit.open_model(path)


def test_an_architecture_gives_what_its_name_implies(tiny_vit, tmp_path):
    """As many heads as timm's, which are not those of the paper's B/16."""
    source = tiny_vit(
        **EXACT, width=768, heads=16, class_token=False, pooling="avg", mlp_dim=9
    )
    given = {"mlp_ratio": 9.5 / 768, "depth": 2, "img_size": [22, 14], "patch_size": 2}
    unsaid = ("num_heads", "embed_dim", "class_token", "fc_norm", "global_pool")
    arguments = {**dict.fromkeys(unsaid), **given}
    architecture = "vit_base_patch16_gap_224"
    path = foreign_files.timm(
        source, tmp_path, architecture=architecture, model_args=arguments
    )
    config = json.loads((tmp_path / "config.json").read_text())
    assert "num_heads" not in config["model_args"]
    model = keras_vit.open_model(path)
    assert (model.heads, model.pooling) == (16, "avg")
    assert (model.class_token, model.fc_norm) == (False, False)


def bare(folder, **options):
    """Arrays of timm's without their config."""
    model = small(**{**EXACT, **options})
    save_checkpoint(model, folder, "timm")
    (folder / "config.json").unlink()
    return model


def test_without_a_config_architectures_alike_say_what_they_share(tmp_path):
    """Two of timm's of 768 without a class token differ in their heads."""
    wide = {"width": 768, "depth": 12, "heads": 12, "mlp_dim": 3072, "image_size": 16}
    gap = {"class_token": False, "pooling": "avg", "fc_norm": False}
    bare(tmp_path / "gap", **wide, **gap, patch_size=8)
    with pytest.raises(ValueError, match="`heads` must be given"):
        keras_vit.open_model(tmp_path / "gap")
    bare(tmp_path / "token", **wide, patch_size=8)
    assert keras_vit.open_model(tmp_path / "token").heads == 12


@pytest.mark.parametrize(
    "options",
    [
        {"rotary": "grid", "rotary_pairing": "neighbors", **SEPARATE},
        {**SEPARATE, "swiglu": True, "mlp_norm": True},
    ],
)
def test_arrays_of_eva_without_a_config_are_refused(options, tmp_path):
    """They do not say whether the model rotates, and no architecture has this size."""
    bare(tmp_path, **WIDE, **options)
    match = r"must have its config.json.*differ in norm_epsilon, rotary"
    with pytest.raises(WeightsFileError, match=match):
        keras_vit.open_model(tmp_path, heads=3)


def test_what_is_assumed_of_rotary_positions_is_said(tmp_path, caplog):
    """DINOv3's arrays in timm: all its architectures of them rotate alike."""
    wide = {"width": 384, "depth": 12, "heads": 6, "mlp_dim": 1536, "classes": None}
    model = small(**{**ROTARY, **EXACT, **wide, "register_tokens": 4})
    save_checkpoint(model, tmp_path, "timm")
    (tmp_path / "config.json").unlink()
    again = keras_vit.open_model(tmp_path, image_size=model.image_size, pooling="token")
    assert (again.rotary, again.rotary_temperature) == ("centered", 100.0)
    assert again.norm_epsilon == 1e-5
    assert "no config.json states these, assumed: " in caplog.text
    assert "rotary='centered'" in caplog.text


@pytest.mark.parametrize(
    ("title", "changes"),
    [
        ("Hugging Face DINOv3", {"rotary": None}),
        ("Hugging Face DINOv3", {"rotary": "grid"}),
        ("Hugging Face DINOv3", {"rotary_pairing": "neighbors"}),
        ("Hugging Face DINOv3", {"rotary_temperature": 10.0}),
        ("timm EVA", {"rotary_axes": "xy"}),
        ("Hugging Face AIMv2", {"pool_heads": 6}),
        ("Hugging Face SigLIP", {"pool_heads": 6}),
        ("Hugging Face CLIP", {"gelu": "exact"}),
        ("timm ViT", {"position_placement": "shared"}),
        ("Hugging Face MAE", {"rotary": "centered"}),
    ],
)
def test_a_model_that_computes_otherwise_is_not_filled(
    title, changes, tmp_path, monkeypatch
):
    """Its weights have the file's shapes."""
    [family] = [each for each in families() if each.title == title]
    written(family, tmp_path, monkeypatch)
    [name] = changes
    model = small(**{**MODELS[title], **changes})
    before = arrays_of(model)
    with pytest.raises(CheckpointError, match=rf"this one has {name}="):
        keras_vit.load_checkpoint(model, tmp_path)
    foreign_files.check_unmoved(model, before)
    report = keras_vit.load_checkpoint(model, tmp_path, settings="ignore")
    assert any(name in note for note in report.notes)


def test_a_config_that_names_no_model_is_not_read(tiny_vit, tmp_path, caplog):
    path = foreign_files.timm(tiny_vit(**EXACT), tmp_path)
    (tmp_path / "config.json").write_text('{"learning_rate": 0.1}')
    keras_vit.open_model(path, heads=5, grid=(11, 7))
    assert "its config.json names no model and is not read" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {**BARE, "register_tokens": 2, "prefix_positions": False, "pooling": None},
        {**BARE, "class_token": False, "register_tokens": 2, "pooling": None},
        {**BARE, **SEPARATE, "pooling": None, "layer_scale": None},
        {**BARE, "embedding_norm": True, "embedding_bias": False, "pooling": None},
        {**BARE, **SEPARATE, "relative_bias": "shared", "image_size": (16, 24)},
    ],
)
def test_what_transformers_would_compute_otherwise_is_not_written(options, tmp_path):
    with pytest.raises(CheckpointError, match="must be one that hugging_face can"):
        save_checkpoint(small(**options), tmp_path / "x", "hugging_face")
    assert not (tmp_path / "x").exists()


def test_an_initial_scale_of_zero_is_one_for_timm(tmp_path):
    model = small(**{**WIDE, **EXACT, **SEPARATE, "layer_scale": 0.0})
    save_checkpoint(model, tmp_path, "timm")
    foreign_files.check_same_weights(keras_vit.open_model(tmp_path), model)


def test_attention_pooling_by_a_query_has_no_place_in_timm(tmp_path):
    with pytest.raises(CheckpointError, match="pooling must be one of"):
        save_checkpoint(small(**EXACT, pooling="query"), tmp_path, "timm")


def test_the_family_with_the_fewest_reasons_gives_them():
    model = small(**{**MODELS["Hugging Face DINOv2"], "qk_norm": True})
    family, problems = writer_of(model, "hugging_face")
    assert family.title == "Hugging Face DINOv2"
    assert problems[0] == "qk_norm must be False"
