"""Configs and models at the borders of what other libraries compute."""

import json
import os
import stat

import foreign_files
import numpy as np
import pytest
from foreign_files import arguments_of, arrays_of, edit, needs
from long_cases import long_after
from tiny_model import NO_QKV_BIASES

import keras_vit
from keras_vit.commands import main
from keras_vit.weights import CheckpointError, WeightsFileError

EXACT = {"gelu": "exact"}


# Reading: what only a config tells


@pytest.mark.parametrize(
    ("kwargs", "options", "pooling"),
    long_after(
        9,
        [
            ({}, {"global_pool": "token"}, "token"),
            ({}, {"global_pool": "avg"}, "avg"),
            ({}, {"global_pool": "max"}, "'max' of the patches"),
            ({}, {"global_pool": "avgmax"}, "'avgmax' of the patches"),
            ({}, {"global_pool": ""}, "'token' of the patches"),
            ({"classes": None}, {"global_pool": ""}, None),
            ({}, {"global_pool": "avg", "pool_include_prefix": True}, "'avg' of all"),
            ({"pooling": "map"}, {"pool_include_prefix": True}, "map"),
            ({"pooling": "map"}, {"pool_include_prefix": None}, "'map' of the patches"),
            ({"pooling": "map", "class_token": False}, {}, "map"),
            (
                {"pooling": "map", "register_tokens": 2},
                {"pool_include_prefix": True},
                "'map' of all",
            ),
            ({"fc_norm": True}, {"global_pool": "token"}, "token"),
        ],
    ),
)
def test_the_pooling_is_the_configs_where_we_compute_it(
    kwargs, options, pooling, tiny_vit, tmp_path
):
    source = tiny_vit(**EXACT, **kwargs)
    args = {"num_heads": 5, "img_size": [22, 14], **options}
    path = foreign_files.timm(source, tmp_path, model_args=args)
    if (pooling or "").startswith("'"):
        assert arguments_of(path)["pooling"].startswith(pooling)
        with pytest.raises(ValueError, match="`pooling` must be one of"):
            keras_vit.VisionTransformer.from_preset(path)
    else:
        assert keras_vit.VisionTransformer.from_preset(path).pooling == pooling


def test_an_unsupported_pooling_does_not_prevent_a_new_classifier(tiny_vit, tmp_path):
    source = tiny_vit(**EXACT)
    args = {"num_heads": 5, "img_size": [22, 14], "global_pool": "max"}
    path = foreign_files.timm(source, tmp_path, model_args=args)
    model = keras_vit.VisionTransformer.from_preset(path, pooling="token")
    assert not np.any(arrays_of(model)["head/kernel"])
    with pytest.raises(
        CheckpointError, match=r"'max' of the patches.*classifier='keep'"
    ):
        keras_vit.load_checkpoint(tiny_vit(**EXACT), path)


def test_keras_hub_pools_the_class_token_too(tiny_vit, tmp_path):
    path = foreign_files.keras_hub(tiny_vit(pooling="avg"), tmp_path)
    assert arguments_of(path)["pooling"] == "'gap' of all tokens"
    edit(tmp_path / "task.json", config={"pooling": "token"})
    assert arguments_of(path)["pooling"] == "token"


@pytest.mark.parametrize(
    ("architecture", "gelu"),
    [
        ("vit_base_patch16_siglip_256", "exact"),
        ("vit_large_patch16_siglip_384", "exact"),
        ("vit_large_patch16_siglip_gap_256", "exact"),
        ("vit_large_patch16_siglip_512", "tanh"),
        ("vit_large_patch16_siglip_gap_512", "tanh"),
        ("vit_base_patch32_siglip_256", "tanh"),
        ("vit_so400m_patch14_siglip_378", "exact"),
        ("vit_so400m_patch16_siglip_gap_384", "tanh"),
        ("vit_giantopt_patch16_siglip_256", "tanh"),
    ],
)
def test_timms_siglip_has_the_gelu_of_its_size(architecture, gelu, tiny_vit, tmp_path):
    path = foreign_files.timm(tiny_vit(), tmp_path, architecture=architecture)
    assert arguments_of(path)["gelu"] == gelu


@pytest.mark.parity
@needs("timm")
def test_the_gelu_of_every_siglip_is_timms(tiny_vit, tmp_path):
    import timm
    import torch

    for architecture in timm.list_models("vit_*siglip*"):
        with torch.device("meta"):
            twin = timm.create_model(architecture, depth=1)
        tanh = "tanh" in type(twin.blocks[0].mlp.act).__name__.lower()
        path = foreign_files.timm(tiny_vit(), tmp_path, architecture=architecture)
        assert arguments_of(path)["gelu"] == ("tanh" if tanh else "exact")


def test_another_activation_of_the_pooler_is_refused(tiny_vit, tmp_path):
    path = foreign_files.hugging_face(tiny_vit(), tmp_path, pooler_act="relu")
    with pytest.raises(WeightsFileError, match=r"`pooler_act` must be 'tanh'.*'relu'"):
        keras_vit.VisionTransformer.from_preset(path)


def test_an_architecture_with_other_blocks_is_reported(tiny_vit, tmp_path):
    model = tiny_vit()
    arrays = foreign_files.foreign.hugging_face(arrays_of(model), 4)
    arrays = {n.replace("layernorm_before", "norm1"): a for n, a in arrays.items()}
    path = foreign_files.write_safetensors(tmp_path / "d.safetensors", arrays)
    with pytest.raises(WeightsFileError, match="encoder_block_0/norm1/gamma"):
        keras_vit.VisionTransformer.from_preset(path, heads=5)


def test_assumptions_without_a_config_are_reported(tiny_vit, tmp_path, caplog, capsys):
    path = foreign_files.timm(tiny_vit(**EXACT), tmp_path)
    (tmp_path / "config.json").unlink()
    keras_vit.VisionTransformer.from_preset(path, heads=5, grid=(11, 7))
    assert "no config.json states these, assumed: gelu='exact', " in caplog.text
    assert main(["info", str(path)]) == 0
    unsaid = "gelu, heads, norm_epsilon, pooling, post_norm"
    assert unsaid in capsys.readouterr().out


# Another pooling


@pytest.mark.parametrize("pooling", ["avg", None])
def test_attention_pooling_is_left_out_for_another_pooling(pooling, tiny_vit, tmp_path):
    source = tiny_vit(pooling="map", class_token=False, classes=None)
    path = foreign_files.big_vision(source, tmp_path)
    model = keras_vit.VisionTransformer.from_preset(
        path, pooling=pooling, image_size=(22, 14), grid=(11, 7)
    )
    np.testing.assert_array_equal(
        arrays_of(model)["encoder_norm/gamma"], arrays_of(source)["encoder_norm/gamma"]
    )


def test_weights_that_are_not_loaded_are_reported(tiny_vit, tmp_path):
    model = tiny_vit(pooling="map", seed=12)
    path = foreign_files.google(tiny_vit(), tmp_path)
    report = keras_vit.load_checkpoint(model, path, classifier="reset")
    assert "not loaded, unchanged: attention_pooling" in report.notes


# Writing


def test_other_models_are_refused(tiny_vit, tmp_path):
    import keras

    inner = tiny_vit()
    model = keras.Sequential([inner])
    for call in (
        lambda: keras_vit.save_checkpoint(model, tmp_path / "x.npz"),
        lambda: keras_vit.with_image_size(model, 22),
    ):
        with pytest.raises(TypeError, match=r"`model` must be a VisionTransformer"):
            call()


def test_a_method_must_be_known_even_where_nothing_is_resampled(tiny_vit):
    with pytest.raises(ValueError, match="`resample` must be one of"):
        keras_vit.with_image_size(tiny_vit(position_embedding="none"), 22, resample="x")


@pytest.mark.parametrize("family", ["timm", "hugging_face"])
def test_files_have_the_users_permissions(family, tiny_vit, tmp_path):
    mask = os.umask(0o027)
    try:
        files = keras_vit.save_checkpoint(tiny_vit(), tmp_path / "x", family)
    finally:
        os.umask(mask)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o640}


@pytest.mark.parity
@needs("timm")
@pytest.mark.parametrize(
    "kwargs",
    [
        {"pooling": "map"},
        {"pooling": "map", "class_token": False, "register_tokens": 2},
        {"layer_scale": 0.0},
        {"fc_norm": True},
        {**NO_QKV_BIASES, "qk_norm": True},
        {"resnet_blocks": (3, 4, 9), "patch_size": 2, "image_size": (64, 32)},
    ],
)
def test_timm_computes_what_we_write(kwargs, tiny_vit, tmp_path):
    import timm
    import torch

    source = tiny_vit(**kwargs)
    keras_vit.save_checkpoint(source, tmp_path, "timm")
    twin = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    shape = (2, *source.image_size, 3)
    pixels = np.random.default_rng(3).uniform(-1, 1, shape).astype("float32")
    with torch.no_grad():
        logits = twin(torch.tensor(pixels.transpose(0, 3, 1, 2))).numpy()
    np.testing.assert_allclose(logits, source(pixels), rtol=0, atol=1e-4)


@pytest.mark.parity
@needs("timm")
@pytest.mark.parametrize(
    "kwargs",
    [{}, {"resnet_blocks": (), "image_size": (64, 32)}],
    ids=["plain", "hybrid"],
)
def test_timm_adapts_what_we_write_to_other_classes_and_channels(
    kwargs, tiny_vit, tmp_path
):
    import timm

    keras_vit.save_checkpoint(tiny_vit(**kwargs, patch_size=2), tmp_path, "timm")
    name = f"local-dir:{tmp_path}"
    assert (
        timm.create_model(name, pretrained=True, num_classes=3).head.out_features == 3
    )
    whole = timm.create_model(name, pretrained=True).state_dict()
    first = "backbone.conv" if kwargs else "proj"
    first = f"patch_embed.{first}.weight"
    one = timm.create_model(name, pretrained=True, in_chans=1).state_dict()
    gap = (one[first] - whole[first].sum(1, keepdim=True)).abs().max()
    assert float(gap) < 1e-6


@pytest.mark.parity
@needs("timm")
def test_timm_fine_tunes_a_resnet_that_we_write(tmp_path):
    import timm

    model = keras_vit.ResNet(image_size=64, classes=5, pooling=None)
    keras_vit.save_checkpoint(model, tmp_path / "none", "timm")
    twin = timm.create_model(f"local-dir:{tmp_path / 'none'}", pretrained=True)
    assert twin.head.global_pool.pool_type == ""
    assert keras_vit.ResNet.from_preset(tmp_path / "none").pooling is None
    model = keras_vit.ResNet(image_size=64, classes=5)
    keras_vit.save_checkpoint(model, tmp_path / "gap", "timm")
    name = f"local-dir:{tmp_path / 'gap'}"
    assert timm.create_model(name, pretrained=True, num_classes=3).num_classes == 3


NARROW = {
    **{"img_size": 28, "patch_size": 7, "embed_dim": 24, "depth": 2, "num_heads": 3},
    "num_classes": 7,
}


@pytest.mark.parity
@needs("timm")
@pytest.mark.parametrize(
    "options",
    [
        {"fc_norm": True},
        {"qkv_bias": False},
        {"proj_bias": False},
        {"class_token": True},
    ],
)
def test_what_timm_makes_is_read(tmp_path, options):
    import timm
    import torch

    args = {**NARROW, **options}
    twin = timm.models.VisionTransformer(**args).eval()
    arrays = {name: value.numpy() for name, value in twin.state_dict().items()}
    foreign_files.write_safetensors(tmp_path / "model.safetensors", arrays)
    config = {"architecture": "vit_base_patch16_224", "model_args": args}
    (tmp_path / "config.json").write_text(json.dumps(config))
    pixels = np.random.default_rng(3).uniform(-1, 1, (2, 28, 28, 3)).astype("float32")
    with torch.no_grad():
        logits = twin(torch.tensor(pixels.transpose(0, 3, 1, 2))).numpy()
    model = keras_vit.VisionTransformer.from_preset(tmp_path)
    np.testing.assert_allclose(model(pixels), logits, rtol=0, atol=1e-5)


@pytest.mark.parity
@needs("keras_hub")
@pytest.mark.parametrize("biased", [True, False])
def test_what_keras_hub_makes_is_read(tmp_path, biased):
    import keras_hub

    twin = keras_hub.models.ViTBackbone(
        image_shape=(28, 28, 3), patch_size=7, num_layers=2, num_heads=3,
        hidden_dim=24, mlp_dim=48, use_mha_bias=biased,
    )  # fmt: skip
    random = np.random.default_rng(3)
    for weight in twin.trainable_weights:
        weight.assign(random.normal(scale=0.2, size=weight.shape))
    twin.save_to_preset(str(tmp_path))
    model = keras_vit.VisionTransformer.from_preset(tmp_path, pooling=None)
    assert (model.query_bias, model.output_bias) == (biased, biased)
    pixels = random.uniform(-1, 1, (2, 28, 28, 3)).astype("float32")
    np.testing.assert_allclose(model(pixels), twin(pixels), rtol=0, atol=1e-5)


# The command line


def test_a_model_with_unknown_layers_is_reported_without_a_traceback(tmp_path, capsys):
    import keras

    @keras.saving.register_keras_serializable(package="elsewhere")
    class Odd(keras.layers.Layer):
        pass

    path = tmp_path / "odd.keras"
    keras.Sequential([keras.Input((3,)), Odd()]).save(path)
    keras.saving.get_custom_objects().pop("elsewhere>Odd")
    assert main(["convert", str(path), str(tmp_path / "x.npz")]) == 1
    assert "Odd" in capsys.readouterr().err
    assert not (tmp_path / "x.npz").exists()


def test_a_full_disk_is_reported_and_keeps_the_old_files(
    tiny_vit, tmp_path, capsys, monkeypatch
):
    source, out = tmp_path / "in.keras", tmp_path / "out"
    model = tiny_vit()
    model.save(source)
    keras_vit.save_checkpoint(model, out, "timm")
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    assert main(["convert", str(source), str(out), "--to", "timm"]) == 1
    assert "No space left" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_keras_s_own_weights_files_are_not_mistaken_for_checkpoints(tiny_vit, tmp_path):
    tiny_vit().save_weights(tmp_path / "x.weights.h5")
    with pytest.raises(WeightsFileError, match="load_weights"):
        keras_vit.VisionTransformer.from_preset(tmp_path / "x.weights.h5")
