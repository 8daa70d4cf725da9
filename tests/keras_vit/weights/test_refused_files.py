"""Whatever is wrong with a file: a clear error, and not one weight has moved."""

import json
import random
import warnings

import foreign_weights as foreign
import keras
import numpy as np
import pytest
from foreign_files import (
    arrays_of,
    big_vision,
    check_unmoved,
    edit,
    google,
    hugging_face,
    keras_hub,
    timm,
    write_npz,
    write_safetensors,
)
from long_cases import long_after
from tiny_model import NO_QKV_BIASES, build_vit

import keras_vit
from keras_vit.errors import CheckpointError, WeightsFileError
from keras_vit.resnet import ResNet
from keras_vit.weights.loading import load_checkpoint

pytestmark = pytest.mark.backend

EXACT = {"gelu": "exact"}
HUGGING_FACE = {"gelu": "exact", "norm_epsilon": 1e-12}
DINOV2 = {"classes": None, "layer_scale": 0.1, **EXACT}
ATTENTION = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1"


@pytest.fixture(scope="module")
def source():
    return build_vit()


@pytest.fixture(scope="module")
def model():
    """Refused files leave it as it is, so that all tests share it."""
    return build_vit(seed=12)


@pytest.fixture(scope="module")
def hugging_face_pair():
    """A model with Hugging Face's settings, and another one to load it into."""
    return build_vit(**HUGGING_FACE), build_vit(seed=12, **HUGGING_FACE)


def check_refused(model, path, match, error=ValueError):
    """The error has this text, and the model is as it was."""
    before = arrays_of(model)
    with pytest.raises(error, match=match) as caught:
        load_checkpoint(model, path)
    check_unmoved(model, before)
    return str(caught.value)


def test_damage_in_the_last_array_is_found_before_the_first_is_used(
    source, model, tmp_path
):
    path = google(source, tmp_path)
    data = bytearray(path.read_bytes())
    last = data.rindex(b"PK\3\4")
    data[last + 300] ^= 64
    path.write_bytes(data)
    check_refused(model, path, "checksum|corrupt", WeightsFileError)


def changed(source, folder, name, change):
    """The source as a Google file with one array changed."""
    arrays = foreign.google(arrays_of(source), 5)
    arrays[name] = change(arrays[name])
    return write_npz(folder / "g.npz", arrays)


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        (
            "head/bias",
            lambda a: a[:-1],
            r"head/bias is \(7,\), and `head/bias`.*\(6,\)",
        ),
        (
            "embedding/kernel",
            lambda a: a.transpose(3, 2, 0, 1),
            r"Patches must be square.*\(15, 3\)",
        ),
        ("cls", lambda a: np.float32(1), "cls|class_token"),
        ("head/kernel", lambda a: a.T, "15 classes, the model's 7"),
        (
            "Transformer/posembed_input/pos_embedding",
            lambda a: a[..., :4],
            "pos_embedding|position",
        ),
    ],
)
def test_wrong_shapes_are_refused(name, change, match, source, model, tmp_path):
    check_refused(model, changed(source, tmp_path, name, change), match)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "complex64", "<U3"])
def test_an_array_of_another_type_is_refused(dtype, source, model, tmp_path):
    def change(array):
        return np.zeros(array.shape, dtype)

    path = changed(source, tmp_path, "head/bias", change)
    check_refused(model, path, "`head/bias` must hold floats", CheckpointError)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_weights_are_loaded_with_a_warning(
    value, source, tiny_vit, tmp_path
):
    def change(array):
        array = array.copy()
        array[3, 1, 2] = value
        return array

    model = tiny_vit(seed=12)
    path = changed(source, tmp_path, f"{ATTENTION}/query/kernel", change)
    match = f"not all numbers are finite in {ATTENTION}/query/kernel"
    with pytest.warns(UserWarning, match=match):
        report = load_checkpoint(model, path)
    assert any("finite" in note for note in report.notes)
    kernel = arrays_of(model)["encoder_block_1/attention/query/kernel"]
    np.testing.assert_array_equal(kernel[3, 1 * 3 + 2], np.float32(value))


def test_large_weights_give_no_warning(source, tiny_vit, tmp_path):
    model = tiny_vit(seed=12)
    path = changed(source, tmp_path, "head/kernel", lambda a: a * 0 + 3e38)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_checkpoint(model, path)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"width": 20}, "the size of the model.*width=15 instead of 20$"),
        ({"depth": 3}, "without an array: encoder_block_2/norm1/gamma"),
        ({"depth": 1}, "without a weight: Transformer/encoderblock_1/LayerNorm_0"),
        ({"mlp_dim": 29}, "the size of the model.*mlp_dim=23 instead of 29$"),
        ({"register_tokens": 4}, "without an array: register_tokens/tokens"),
        ({"layer_scale": 0.1}, "without an array: encoder_block_0/layer_scale1/gamma"),
        ({"qk_norm": True}, "encoder_block_0/attention/key_norm/beta and 4 more"),
        ({"fc_norm": True}, "without a weight: Transformer/encoder_norm/scale"),
        ({"class_token": False, "pooling": "avg"}, "without a weight: cls"),
        ({"position_embedding": "none"}, "posembed_input/pos_embedding"),
        (
            {"position_placement": "every_layer"},
            "without an array: position_embedding_",
        ),
        ({"resnet_blocks": (1,), "image_size": (32, 32)}, "stem_conv/kernel"),
    ],
)
def test_a_model_of_another_architecture_is_refused(
    kwargs, match, source, tiny_vit, tmp_path
):
    path = google(source, tmp_path)
    check_refused(tiny_vit(seed=12, **kwargs), path, match, CheckpointError)


def small_resnet():
    return ResNet(image_size=32, blocks=(1,), classes=7)


def test_another_model_class_is_refused(source, model, tmp_path):
    resnet = small_resnet()
    path = write_npz(tmp_path / "bit.npz", foreign.bit(arrays_of(resnet)))
    check_refused(model, path, "must be a ResNet for.*Received: VisionTransformer")
    path = google(source, tmp_path)
    check_refused(resnet, path, "must be a VisionTransformer for.*Received: ResNet")
    for other in (keras.Sequential([keras.layers.Dense(2)]), None):
        with pytest.raises(TypeError, match="must be a VisionTransformer"):
            load_checkpoint(other, path)


def test_an_unknown_family_is_refused(model, tmp_path):
    arrays = {
        "layer4.2.conv1.weight": np.ones((2, 3), "float32"),
        "fc.bias": np.ones(2),
    }
    path = write_npz(tmp_path / "resnet50.npz", arrays)
    message = check_refused(model, path, "2 arrays: layer4.2", WeightsFileError)
    assert "Hugging Face ViT" in message


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"hidden_act": "relu"}, "`hidden_act` must be one of.*'relu'"),
        ({"hidden_act": 3}, "`hidden_act` must be one of.*3"),
        ({"rope_theta": 100.0}, "keys that are known here.*Received: `rope_theta` in"),
        ({"image_size": "large"}, "are malformed"),
        ({"image_size": [-1, 2]}, "are malformed"),
        ({"image_size": {"height": 22, "width": 14}}, "are malformed"),
        ({"num_attention_heads": "five"}, "`heads` must be an integer.*'five'"),
        ({"layer_norm_eps": "tiny"}, "epsilon.*must be a positive number.*'tiny'"),
        ({"layer_norm_eps": -1.0}, "epsilon.*must be a positive number.*-1.0"),
        (
            {"patch_size": [2, 4]},
            r"`patch_size` must be an integer.*\(2, 4\) by `patch_size`",
        ),
    ],
)
def test_an_invalid_config_is_refused(config, match, hugging_face_pair, tmp_path):
    source, model = hugging_face_pair
    check_refused(model, hugging_face(source, tmp_path, **config), match)


@pytest.mark.parametrize(
    ("writer", "name", "option", "shown"),
    [
        (timm, "embed_dim", "width", 15),
        (timm, "depth", "depth", 2),
        (timm, "in_chans", "channels", 3),
        (timm, "patch_size", "patch_size", 2),
        (timm, "class_token", "class_token", True),
        (timm, "proj_bias", "mlp_bias", True),
        (keras_hub, "hidden_dim", "width", 15),
        (keras_hub, "num_layers", "depth", 2),
        (keras_hub, "mlp_dim", "mlp_dim", 23),
        (keras_hub, "num_heads", "heads", 5),
        (keras_hub, "patch_size", "patch_size", 2),
        (hugging_face, "qkv_bias", "query_bias", True),
        (hugging_face, "patch_size", "patch_size", 2),
        (hugging_face, "hidden_size", "width", 15),
        (hugging_face, "num_hidden_layers", "depth", 2),
        (hugging_face, "intermediate_size", "mlp_dim", 23),
        (hugging_face, "num_channels", "channels", 3),
    ],
)
def test_a_config_that_contradicts_the_arrays_is_refused(
    writer, name, option, shown, tiny_vit, tmp_path
):
    """The option by our name, what the arrays show, what the config states."""
    path = writer(tiny_vit(gelu="exact"), tmp_path)
    stated = not shown if isinstance(shown, bool) else shown + 1
    change = {name: stated}
    if writer is not hugging_face:
        change = {"model_args" if writer is timm else "config": change}
    edit(tmp_path / "config.json", **change)
    match = rf"`{name}` states {option}={stated}, .* show {option}={shown}, by `"
    match = match if writer is not timm else match[1:]
    with pytest.raises(WeightsFileError, match=match):
        keras_vit.VisionTransformer.from_preset(path)


@pytest.mark.parametrize("write", [google, big_vision])
@pytest.mark.parametrize("option", ["key_bias", "output_bias"])
def test_a_bias_that_the_models_of_a_project_always_have_must_be_there(
    write, option, tiny_vit, tmp_path
):
    path = write(tiny_vit(**{option: False}), tmp_path)
    match = f"where every .* states {option}=True, .* show {option}=False, without `"
    with pytest.raises(WeightsFileError, match=match):
        keras_vit.VisionTransformer.from_preset(path)


def test_keras_hubs_bias_is_that_of_all_projections(tiny_vit, tmp_path):
    path = keras_hub(tiny_vit(gelu="exact", **NO_QKV_BIASES), tmp_path)
    edit(tmp_path / "config.json", config={"use_mha_bias": False})
    match = "`use_mha_bias` states output_bias=False, .* show output_bias=True, by"
    with pytest.raises(WeightsFileError, match=match):
        keras_vit.VisionTransformer.from_preset(path)


# Of transformers; each has arrays of a ViT's names, and computes something else.
OTHER_TYPES = ("audio-spectrogram-transformer", "vit_hybrid", "vivit", "yolos")


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_a_config_of_another_model_type_is_refused(kind, hugging_face_pair, tmp_path):
    source, model = hugging_face_pair
    path = hugging_face(source, tmp_path, model_type=kind)
    match = f"Hugging Face ViT, .*whose config names '{kind}' of Hugging Face"
    check_refused(model, path, match, WeightsFileError)
    with pytest.raises(WeightsFileError, match=match):
        keras_vit.VisionTransformer.from_preset(path, grid=(11, 7))


@pytest.mark.parametrize(
    "config", [{"model_type": ""}, {"auto_map": {"AutoModel": "hf_model.RADIOModel"}}]
)
def test_a_model_of_code_beside_its_weights_is_refused_by_its_class(
    config, hugging_face_pair, tmp_path
):
    source, _ = hugging_face_pair
    path = hugging_face(source, tmp_path)
    config = {"architectures": ["RADIOModel"], "args": {"amp": True}, **config}
    (tmp_path / "config.json").write_text(json.dumps(config))
    match = r"names 'RADIOModel' of Hugging Face; .*hf://timm/vit_base_patch16_radio"
    with pytest.raises(WeightsFileError, match=match):
        keras_vit.open_model(path)


@pytest.mark.parametrize("writer", [google, big_vision, timm, hugging_face, keras_hub])
@pytest.mark.parametrize("sides", [(2, 4), (4, 2)])
def test_rectangular_patches_are_refused(sides, writer, source, tmp_path, monkeypatch):
    """Whatever the family, with the model's width and number of positions."""
    arrays = arrays_of(source)
    kernel = np.ones((*sides, 3, 15), "float32")
    stretched = {**arrays, "embedding/kernel": kernel}
    monkeypatch.setattr("foreign_files.arrays_of", lambda model: stretched)
    path = writer(source, tmp_path)
    monkeypatch.undo()
    match = rf"Patches must be square.*\({sides[0]}, {sides[1]}\)"
    with pytest.raises(WeightsFileError, match=match):
        keras_vit.VisionTransformer.from_preset(path, grid=(11, 7), heads=5)
    check_refused(source, path, match, WeightsFileError)


def test_pooling_that_follows_from_the_architecture_name_is_known(tiny_vit, tmp_path):
    source = tiny_vit(pooling="map", class_token=False, register_tokens=1, **EXACT)
    arguments = {"pool_include_prefix": None}
    name = "test_vit3.r160_in1k"
    path = timm(source, tmp_path, architecture=name, model_args=arguments)
    match = "pooling=.*'map' of all tokens"
    with pytest.raises(ValueError, match="`pooling` must be one of.*all tokens"):
        keras_vit.VisionTransformer.from_preset(path, grid=(11, 7))
    check_refused(source, path, match)


def test_two_arrays_for_one_weight_are_refused(tiny_vit, tmp_path):
    model = tiny_vit(seed=12, **EXACT, register_tokens=1)
    arrays = foreign.timm(arrays_of(tiny_vit(**EXACT, register_tokens=1)))
    arrays["dist_token"] = arrays["reg_token"]
    path = write_safetensors(tmp_path / "model.safetensors", arrays)
    check_refused(model, path, "without a weight: dist_token", CheckpointError)


CHANGES = [
    lambda array, dice: array.T,
    lambda array, dice: array[None],
    lambda array, dice: array.reshape(-1),
    lambda array, dice: array[:0],
    lambda array, dice: array[: dice.randint(0, 3)],
    lambda array, dice: array.sum(0),
    lambda array, dice: np.float32(2),
    lambda array, dice: np.zeros((2,) * dice.randint(1, 6), "float32"),
    lambda array, dice: array.astype("int32"),
]


@pytest.mark.parametrize(
    "family",
    long_after(
        2, ["google", "hugging_face_dinov2", "big_vision", "timm", "hugging_face"]
    ),
)
def test_any_change_of_any_array_loads_or_is_refused(family, tiny_vit, tmp_path):
    """Dropped, renamed or reshaped: no error but the two that are promised."""
    kwargs = {
        "google": {"representation_size": 9},
        "big_vision": {"pooling": "map", "class_token": False},
        "timm": {**EXACT, "register_tokens": 2, "qk_norm": True},
        "hugging_face": HUGGING_FACE,
        "hugging_face_dinov2": DINOV2,
    }[family]
    model = tiny_vit(seed=12, depth=1, **kwargs)
    arguments = (5,) if family in ("google", "big_vision") else ()
    good = getattr(foreign, family)(arrays_of(tiny_vit(depth=1, **kwargs)), *arguments)
    good.pop("embeddings.mask_token", None)  # no model reads it
    dice = random.Random(6)
    before = arrays_of(model)
    for index, name in enumerate(good):
        arrays = dict(good)
        array = arrays.pop(name)
        if index % 4:
            arrays[name] = dice.choice(CHANGES)(array, dice)
        elif index % 8:
            arrays[name[:-1]] = array
        path = write_npz(tmp_path / "changed.npz", arrays)
        try:
            load_checkpoint(model, path)
        except (WeightsFileError, CheckpointError):
            check_unmoved(model, before)
        else:
            assert arrays[name].shape == array.shape, name
            before = arrays_of(model)
