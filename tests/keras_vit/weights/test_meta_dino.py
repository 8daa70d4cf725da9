"""Meta's own files of DINOv2 and DINOv3, which have no config beside them."""

import json

import foreign_files
import foreign_weights as foreign
import ml_dtypes
import numpy as np
import numpy_vit
import pytest
from foreign_files import arrays_of, check_same_options, check_same_weights, needs
from torch_archives import write_state_dict

import keras_vit
from benchmarks import narrow_copies, narrow_meta
from keras_vit.commands import main
from keras_vit.weights import CheckpointError, WeightsFileError, open_checkpoint

SIZE = {"image_size": 16, "patch_size": 4, "classes": None, "pooling": "token"}
DINOV2 = {
    **{**SIZE, "width": 128, "heads": 2, "mlp_dim": 24},
    **{"layer_scale": 0.1, "gelu": "exact", "norm_epsilon": 1e-6},
}
REGISTERS = {**DINOV2, "register_tokens": 4, "prefix_positions": False}
DINOV3 = {
    **{**SIZE, "width": 24, "heads": 3, "mlp_dim": 32},
    **{"layer_scale": 0.1, "gelu": "exact", "norm_epsilon": 1e-5},
    **{"rotary": "centered", "position_embedding": "none", "rotary_pairing": "halves"},
    **{"rotary_axes": "yx", "rotary_temperature": 100.0, "register_tokens": 4},
    "key_bias": False,
}
WITHOUT_BIASES = {**DINOV3, "query_bias": False, "value_bias": False, "swiglu": True}
IMAGES = np.random.default_rng(3).normal(size=(2, 16, 16, 3)).astype("float32")


@pytest.fixture
def dinov2(tiny_vit, tmp_path):
    """A function that writes a file of DINOv2's names: the model, and its path."""

    def write(change=dict, inside=(), **kwargs):
        source = tiny_vit(**{**DINOV2, **kwargs})
        arrays = change(foreign.meta_dinov2(arrays_of(source)))
        return source, write_state_dict(tmp_path / "dinov2.pth", arrays, inside)

    return write


@pytest.fixture
def dinov3(tiny_vit, tmp_path):
    """The same of DINOv3's."""

    def write(change=dict, base=100.0, **kwargs):
        source = tiny_vit(**{**DINOV3, **kwargs})
        arrays = foreign.meta_dinov3(arrays_of(source), source.heads, base)
        return source, write_state_dict(tmp_path / "dinov3.pth", change(arrays))

    return write


@pytest.mark.parametrize(
    "kwargs", [DINOV2, REGISTERS, {**DINOV2, "swiglu": True}], ids=range(3)
)
def test_dinov2_is_built_from_its_arrays(kwargs, dinov2, caplog):
    source, path = dinov2(**kwargs)
    model = keras_vit.open_model(path)
    check_same_options(model, source)
    check_same_weights(model, source)
    numpy_vit.check_outputs(model, IMAGES, source, atol=2e-5)
    assert "no config.json states these, assumed: heads=2" in caplog.text
    assert "not part of the model: mask_token" in caplog.text


@pytest.mark.parametrize(
    "kwargs", [DINOV3, {**DINOV3, "swiglu": True}, WITHOUT_BIASES], ids=range(3)
)
def test_dinov3_is_built_from_its_arrays(kwargs, dinov3, caplog):
    source, path = dinov3(**kwargs)
    model = keras_vit.open_model(path, image_size=16)
    check_same_options(model, source)
    assert (model.rotary, model.rotary_temperature) == ("centered", 100.0)
    assert model.key_bias is False
    check_same_weights(model, source)
    numpy_vit.check_outputs(model, IMAGES, source, atol=2e-5)
    assert "assumed: norm_epsilon=1e-05\n" in f"{caplog.text}\n"


def test_the_periods_state_the_heads_and_the_temperature(dinov3):
    _, path = dinov3(base=20.0, heads=2, width=48)
    model = keras_vit.open_model(path)
    assert (model.heads, model.rotary_temperature) == (2, 20.0)
    assert model.image_size == (224, 224)


def test_rounded_periods_have_the_base_that_was_rounded(dinov3):
    def rounded(arrays):
        periods = arrays["rope_embed.periods"].astype(ml_dtypes.bfloat16)
        return {**arrays, "rope_embed.periods": periods}

    _, path = dinov3(rounded, width=96)  # 8 periods for each head
    assert keras_vit.open_model(path).rotary_temperature == 100.0


def test_another_width_of_heads_must_be_given(dinov2):
    _, path = dinov2(width=24, heads=3)
    with pytest.raises(ValueError, match="`heads` must be given"):
        keras_vit.open_model(path)
    assert keras_vit.open_model(path, heads=3).heads == 3


def test_keys_have_a_bias_where_no_mask_takes_it_away(dinov3):
    def unmasked(arrays):
        return {name: each for name, each in arrays.items() if "mask" not in name}

    source, path = dinov3(unmasked, key_bias=True)
    model = keras_vit.open_model(path, image_size=16)
    assert model.key_bias
    check_same_weights(model, source)


def test_norms_of_small_crops_change_nothing(dinov3, caplog):
    def with_norms(arrays):
        norms = {f"local_cls_norm.{part}": np.ones(24) for part in ("weight", "bias")}
        return {**arrays, **norms}

    source, path = dinov3(with_norms)
    check_same_weights(keras_vit.open_model(path, image_size=16), source)
    assert "not part of the model" in caplog.text
    assert "local_cls_norm" in caplog.text


def test_the_teacher_of_a_training_is_opened_without_its_heads(dinov2, caplog):
    """Chunks of two blocks, which are numbered through."""

    def as_in_training(arrays):
        inside = {f"backbone.{n}": each for n, each in arrays.items()}
        chunks = {
            name.replace("blocks.", f"blocks.{int(name.split('.')[2]) // 2}.")
            if ".blocks." in name
            else name: array
            for name, array in inside.items()
        }
        return {**chunks, "dino_head.mlp.0.weight": np.ones((5, 3), "float32")}

    source, path = dinov2(as_in_training, ["teacher"], depth=3)
    with open_checkpoint(path) as checkpoint:
        assert "backbone.blocks.1.2.norm1.bias" in checkpoint.file.arrays
        assert checkpoint.outside == ["backbone.mask_token", "dino_head.mlp.0.weight"]
    check_same_weights(keras_vit.open_model(path), source)
    assert "read from its entry 'teacher', not 'epoch'" in caplog.text


MASK = "blocks.1.attn.qkv.bias_mask"
PERIODS = "rope_embed.periods"
REFUSED = {
    "a mask of all": ({MASK: np.ones(72)}, f"keys' biases alone.*another `{MASK}`"),
    "a mask never set": ({MASK: np.full(72, np.nan)}, f"another `{MASK}`"),
    "a mask of other length": ({MASK: np.ones(5)}, f"another `{MASK}`"),
    "a mask without a bias": (
        {MASK: None, "blocks.1.attn.qkv.bias": None, "blocks.2" + MASK[8:]: [1, 0, 1]},
        "a bias beside each mask",
    ),
    "other periods": ({PERIODS: np.array([1.0, 2, 9])}, f"powers.*`{PERIODS}`"),
    "one period": ({PERIODS: np.array([1.0])}, "powers"),
    "no period": ({PERIODS: np.zeros(0)}, "powers"),
    "negative periods": ({PERIODS: np.array([1.0, -10])}, "powers"),
    "infinite periods": ({PERIODS: np.array([1.0, np.inf])}, "powers"),
    "periods of other heads": (
        {PERIODS: 100 ** (np.arange(5) / 5)},
        "5 periods in each of its heads",
    ),
    "no class token": ({"cls_token": None}, "2 periods in each of its heads"),
    "a norm of the class token": (
        {"cls_norm.weight": np.ones(24)},
        r"one norm for all tokens.*another `cls_norm\.weight`",
    ),
    "RMS norms": (
        dict.fromkeys(
            ["norm.bias", *(f"blocks.{i}.norm{n}.bias" for i in "01" for n in "12")]
        ),
        "`norm` must be the same",
    ),
    "an output without a bias": (
        dict.fromkeys(f"blocks.{i}.attn.proj.bias" for i in "01"),
        "`output_bias` must be the same",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_model_of_dinov3_is_refused(name, dinov3):
    changes, message = REFUSED[name]

    def changed(arrays):
        arrays = {**arrays, **changes}
        return {
            name: np.asarray(array, "float32")
            for name, array in arrays.items()
            if array is not None
        }

    _, path = dinov3(changed)
    with pytest.raises(WeightsFileError, match=message):
        keras_vit.open_model(path, image_size=16)


def test_fewer_blocks_than_metas_models_have_are_said(dinov2, caplog):
    _, path = dinov2(width=384, heads=6)
    keras_vit.open_model(path, image_size=16)
    assert "2 blocks, where Meta's of width 384 have 12" in caplog.text
    caplog.clear()
    _, path = dinov2()
    keras_vit.open_model(path, image_size=16)
    assert "blocks, where Meta's" not in caplog.text


def test_an_array_that_is_not_known_is_refused_by_its_name(dinov2):
    _, path = dinov2(lambda arrays: {**arrays, "gate": np.ones(3, "float32")})
    with pytest.raises(CheckpointError, match="gate"):
        keras_vit.open_model(path)


def test_a_linear_head_alone_is_of_no_known_family(tmp_path):
    arrays = {"weight": np.ones((7, 24)), "bias": np.ones(7)}
    path = write_state_dict(tmp_path / "dinov2_vits14_linear_head.pth", arrays)
    with pytest.raises(WeightsFileError, match="known family.*2 arrays: weight, bias"):
        keras_vit.open_model(path)


def test_timms_names_are_of_timm(tiny_vit, tmp_path):
    """Of DINOv2 without registers: those of Meta but for the mask token."""
    source = tiny_vit(**DINOV2)
    arrays = foreign.timm(arrays_of(source))
    path = write_state_dict(tmp_path / "timm.pth", arrays)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.family == "timm"
    check_same_weights(keras_vit.open_model(path, heads=2), source)
    path = write_state_dict(tmp_path / "a.pth", {**arrays, "mask_token": np.ones(3)})
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.family == "meta_dinov2"


def test_a_config_of_timm_beside_metas_arrays_is_a_contradiction(dinov2, tmp_path):
    source, path = dinov2()
    foreign_files.timm(source, tmp_path)
    with pytest.raises(WeightsFileError, match="with arrays of a Meta DINOv2"):
        keras_vit.open_model(path)
    (tmp_path / "config.json").write_text(json.dumps({"learning_rate": 0.1}))
    check_same_weights(keras_vit.open_model(path), source)


def test_the_preprocessing_is_that_of_metas_code(dinov2, dinov3):
    _, path = dinov2()
    layer = keras_vit.open_model(path).preprocessing
    assert layer.mean == pytest.approx((123.675, 116.28, 103.53))
    assert layer.std == pytest.approx((58.395, 57.12, 57.375))
    assert (layer.interpolation, layer.resize) == ("bicubic", "small")
    assert layer.crop_fraction == 224 / 256
    _, path = dinov3()  # of photographs or of satellites, which no array shows
    assert keras_vit.open_model(path).preprocessing is None


@pytest.mark.parametrize("target", ["hugging_face", "timm"])
def test_a_file_is_described_and_converted(target, dinov3, tmp_path, capsys):
    source, path = dinov3()
    assert main(["info", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "Meta DINOv3, torch" in printed
    assert "norm_epsilon: there is no config.json" in " ".join(printed.split())
    assert main(["convert", str(path), str(tmp_path / "new"), "--to", target]) == 0
    check_same_weights(keras_vit.open_model(tmp_path / "new", image_size=16), source)


def test_a_model_that_is_there_is_filled(dinov2, tiny_vit):
    source, path = dinov2(**REGISTERS)
    model = tiny_vit(seed=12, **REGISTERS)
    report = keras_vit.load_checkpoint(model, path)
    assert report.family == "meta_dinov2"
    check_same_weights(model, source)
    with pytest.raises(CheckpointError, match="has heads=4"):
        keras_vit.load_checkpoint(tiny_vit(**{**REGISTERS, "heads": 4}), path)


@pytest.mark.parity
@needs("timm")
@pytest.mark.parametrize("case", narrow_meta.META, ids=lambda case: case.title)
def test_a_model_that_timm_converts_gives_the_same_outputs(case, tmp_path):
    result = narrow_meta.compare_meta(case, tmp_path)
    assert result.refused == ""
    assert result.difference.keys() == set(narrow_copies.DTYPES)
    assert max(result.difference.values()) < narrow_copies.TOLERANCE
