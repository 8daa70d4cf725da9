"""Preprocessing goes with the weights: into a model, and out into every format."""

import itertools
import json
import re
import types
import warnings

import foreign_files
import keras
import numpy as np
import pytest
from tiny_model import build_vit, numpy

import keras_vit
from keras_vit import ImagePreprocessing
from keras_vit.weights.families.timm import written_preprocessing

pytest.importorskip("safetensors")
from_preset = keras_vit.VisionTransformer.from_preset

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IN_BYTES = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}
# DeiT's in timm, which resizes the shorter side as PIL does.
DEIT = {
    **IN_BYTES,
    "interpolation": "bicubic",
    "antialias": True,
    "crop_fraction": 0.9,
    "resize": "small",
    "convention": "timm",
}
TIMM_DEIT = {
    "mean": list(MEAN),
    "std": list(STD),
    "interpolation": "bicubic",
    "crop_pct": 0.9,
    "crop_mode": "center",
}
OPTIONS = {
    "mean": (127.5, 0.0, IN_BYTES["mean"]),
    "std": (127.5, 1.0, IN_BYTES["std"]),
    "interpolation": ("nearest", "bilinear", "bicubic", "lanczos3"),
    "crop_fraction": (1.0, 0.875, 0.5),
    "resize": ("plain", "small"),
}
CROP = {"do_center_crop": True, "crop_size": 14}
SQUARE = {"image_size": (14, 14), "gelu": "exact", "depth": 1}
FAMILIES = ("timm", "hugging_face")


def policy_of(model):
    config = model.preprocessing.get_config()
    return {name: config[name] for name in ("antialias", "convention", *OPTIONS)}


def timm_folder(model, folder, **preprocessing):
    config = {"model_args": {"num_heads": 5}, "pretrained_cfg": preprocessing}
    return foreign_files.timm(model, folder, **config)


def hugging_face_folder(tiny_vit, folder, **processor):
    model = tiny_vit(**SQUARE, norm_epsilon=1e-12)
    config = {"image_processor_type": "ViTImageProcessor", **processor}
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return foreign_files.hugging_face(model, folder, image_size=14)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_preprocessing_config_survives_a_round_trip(family, tiny_vit, tmp_path):
    source = timm_folder(tiny_vit(**SQUARE), tmp_path, **TIMM_DEIT)
    model = from_preset(source)
    assert policy_of(model) == DEIT
    keras.saving.save_model(model, tmp_path / "m.keras")
    model = keras.models.load_model(tmp_path / "m.keras")
    with warnings.catch_warnings(record=True) as caught:
        keras_vit.save_checkpoint(model, tmp_path / family, family)
    lost = {"timm": [], "hugging_face": ["convention='timm'"]}[family]
    assert [str(each.message).split("'s ")[1] for each in caught] == lost
    if family == "timm":
        config = json.loads((tmp_path / "timm/config.json").read_text())
        written = config["pretrained_cfg"]
        assert {name: written[name] for name in TIMM_DEIT} == TIMM_DEIT
    again = policy_of(from_preset(tmp_path / family))
    if family == "hugging_face":  # which has whole pixels: 14 of 15
        assert again.pop("crop_fraction") == pytest.approx(14 / 15)
        assert again.pop("convention") == "hugging_face"
    assert again.items() <= DEIT.items()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_preprocessing_survives_a_round_trip(family, tmp_path):
    model = build_vit(**SQUARE)
    policies = [
        dict(zip(OPTIONS, values, strict=True))
        for values in itertools.product(*OPTIONS.values())
    ]
    for policy in policies[:: 23 if family == "timm" else 29]:
        policy |= {"antialias": True, "convention": family}
        layer = ImagePreprocessing((14, 14), **policy)
        model.preprocessing, model.include_preprocessing = layer, False
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            keras_vit.save_checkpoint(model, tmp_path, family)
        assert policy_of(from_preset(tmp_path)) == policy


@pytest.mark.parametrize("family", ["google", *FAMILIES])
def test_preprocessing_that_a_format_cannot_express_gives_a_warning(
    family, tiny_vit, tmp_path
):
    size = {"image_size": (22, 14), "gelu": "tanh"}
    policy = {**DEIT, "antialias": False, "interpolation": "lanczos5"}
    layer = ImagePreprocessing((22, 14), **policy)
    model = tiny_vit(**size, preprocessing=layer)
    unsaid = {
        "google": ["mean=(123.675", "std=", "lanczos5", "crop_fraction", "'small'"],
        "timm": ["lanczos5", "antialias=False"],
        "hugging_face": [
            *("lanczos5", "antialias=False", "'small' of images", "'timm'"),
        ],
    }[family]
    with pytest.warns(UserWarning, match="cannot state") as caught:
        keras_vit.save_checkpoint(
            model, tmp_path / ("m.npz" if family == "google" else "m"), family
        )
    for words in unsaid:
        assert words in str(caught[0].message)


def test_googles_statistics_need_no_warning(tiny_vit, tmp_path):
    model = tiny_vit(preprocessing=ImagePreprocessing((22, 14)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        keras_vit.save_checkpoint(model, tmp_path / "m.npz")


def test_preprocessed_images_are_those_of_the_other_project(tiny_vit, images, tmp_path):
    source = tiny_vit(**SQUARE)
    path = timm_folder(source, tmp_path, **TIMM_DEIT)
    pixels = np.random.default_rng(3).uniform(0, 255, (2, 14, 14, 3))
    normalized = ((pixels / 255 - MEAN) / STD).astype("float32")
    expected = numpy(source(normalized))
    model = from_preset(path)
    assert not model.reads_raw_pixels
    np.testing.assert_allclose(model(normalized), expected, atol=1e-6)
    model = from_preset(path, include_preprocessing=True)
    assert model.reads_raw_pixels
    np.testing.assert_allclose(model(pixels.astype("float32")), expected, atol=1e-4)
    larger = keras_vit.with_image_size(model, 28)
    assert policy_of(larger) == DEIT
    assert larger.preprocessing.image_size == (28, 28)


def test_googles_files_mean_minus_one_to_one(tiny_vit, tmp_path):
    path = foreign_files.google(tiny_vit(image_size=(14, 14), depth=1), tmp_path)
    assert from_preset(path).preprocessing is None
    model = from_preset(path, include_preprocessing=True)
    assert (model.preprocessing.mean, model.preprocessing.std) == (127.5, 127.5)


def test_statistics_that_differ_from_the_weights_are_reported(
    tiny_vit, tmp_path, caplog
):
    path = timm_folder(tiny_vit(**SQUARE), tmp_path, **TIMM_DEIT)
    layer = ImagePreprocessing((14, 14), **IN_BYTES)
    assert from_preset(path, preprocessing=layer).reads_raw_pixels
    assert "trained on" not in caplog.text
    google = ImagePreprocessing((14, 14))
    from_preset(path, preprocessing=google)
    assert "trained on pixels with mean=(123.675, 116.28" in caplog.text


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"crop_fraction": 1.0, "resize": "plain", "mean": 127.5}),
        ({"do_normalize": False}, {"mean": 0.0, "std": 255.0}),
        ({"do_normalize": False, "do_rescale": False}, {"mean": 0.0, "std": 1.0}),
        (
            {"size": {"shortest_edge": 16}, "do_center_crop": True, "crop_size": 14},
            {"crop_fraction": 0.875, "resize": "small"},
        ),
        ({"size": {"height": 14, "width": 14}, "resample": 3}, {"resize": "plain"}),
        ({"image_mean": MEAN, "image_std": STD}, IN_BYTES),
        ({"resample": 0}, {"interpolation": "nearest"}),
        (
            {"size": 16, "default_to_square": False, **CROP},
            {"crop_fraction": 0.875, "resize": "small"},
        ),
        (
            {"image_processor_type": "CLIPImageProcessor", "size": 16, "crop_size": 14},
            {"crop_fraction": 0.875, "resize": "small"},
        ),
        (
            {
                "image_processor_type": None,
                "feature_extractor_type": "DeiTFeatureExtractor",
                "size": 16,
                "crop_size": 14,
            },
            {"crop_fraction": 0.875, "resize": "plain", "interpolation": "bicubic"},
        ),
        (
            {
                "image_processor_type": "ConvNextImageProcessorFast",
                "size": {"shortest_edge": 14},
            },
            {"crop_fraction": 0.875, "resize": "small"},
        ),
        (
            {
                "image_processor_type": "ConvNextImageProcessorPil",
                "size": {"shortest_edge": 384},
            },
            {"crop_fraction": 1.0, "resize": "plain"},
        ),
    ],
)
def test_hugging_faces_processors_are_read(config, expected, tiny_vit, tmp_path):
    path = hugging_face_folder(tiny_vit, tmp_path, **config)
    found = policy_of(from_preset(path))
    for name, value in expected.items():
        assert found[name] == pytest.approx(value), name


def test_keras_hubs_converters_are_read(tiny_vit, tmp_path):
    folder = foreign_files.keras_hub(tiny_vit(image_size=(14, 14), depth=1), tmp_path)
    scales = [1 / (255 * std) for std in STD]
    config = {
        "scale": scales,
        "offset": [-mean / std for mean, std in zip(MEAN, STD, strict=True)],
        "interpolation": "bicubic",
        "antialias": True,
        "crop_to_aspect_ratio": False,
    }
    (folder / "image_converter.json").write_text(json.dumps({"config": config}))
    found = policy_of(from_preset(folder))
    assert found["mean"] == pytest.approx(IN_BYTES["mean"])
    assert found["std"] == pytest.approx(IN_BYTES["std"])
    assert (found["interpolation"], found["resize"]) == ("bicubic", "plain")


@pytest.mark.parametrize(
    "change",
    [
        {"crop_mode": "border"},
        {"interpolation": "hamming"},
        {"std": [0.1, 0.0, 0.1]},
        {"mean": "gray"},
        {"crop_pct": 1.1},
    ],
)
def test_a_policy_that_we_do_not_compute_is_left_out(
    change, tiny_vit, tmp_path, caplog
):
    path = timm_folder(tiny_vit(**SQUARE), tmp_path, **{**TIMM_DEIT, **change})
    assert from_preset(path).preprocessing is None
    assert "ignoring its preprocessing config" in caplog.text
    assert "what config.json states" in caplog.text


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"do_resize": False}, "do_resize=False"),
        ({"do_pad": True}, "do_pad=True"),
        ({"resample": 4}, "resample=4"),
        ({"size": {"longest_edge": 14}}, "size={'longest_edge': 14}"),
        ({"size": {"shortest_edge": 14}}, "do_center_crop=False"),
        (
            {"size": 16, "do_center_crop": True, "crop_size": [14, 10]},
            r"size=\(16, 16\) with crop_size=\(14, 10\)",
        ),
        (
            {"size": 14, "do_center_crop": True, "crop_size": 16},
            r"crop_size=\(16, 16\) of smaller images, size=\(14, 14\): it pads",
        ),
        ({"do_flip_channel_order": True}, "do_flip_channel_order=True"),
        ({"use_square_size": True}, "use_square_size=True"),
        ({"image_mean": None}, "image_mean=None"),
        ({"rescale_factor": None}, "rescale_factor=None"),
        ({"rescale_factor": 0}, "ZeroDivisionError"),
        (
            {"image_processor_type": "SamImageProcessor"},
            "image_processor_type='SamImageProcessor'",
        ),
        (
            {
                "image_processor_type": "ConvNextImageProcessor",
                "do_center_crop": True,
                "crop_size": 14,
            },
            "do_center_crop=True",
        ),
    ],
    ids=str,
)
def test_a_processor_that_we_do_not_compute_is_named_with_its_keys(
    config, words, tiny_vit, tmp_path, caplog
):
    path = hugging_face_folder(tiny_vit, tmp_path, **config)
    assert from_preset(path).preprocessing is None
    assert re.search(f"what preprocessor_config.json states .*{words}", caplog.text)


def test_the_processor_inside_of_processor_config_is_read(tiny_vit, tmp_path):
    """Release 5 of transformers writes it alone; it comes before the other file."""
    path = hugging_face_folder(tiny_vit, tmp_path, image_mean=[0.1, 0.2, 0.3])
    inner = {"image_processor_type": "ViTImageProcessor", "image_mean": MEAN}
    document = json.dumps({"image_processor": inner})
    (tmp_path / "processor_config.json").write_text(document)
    assert from_preset(path).preprocessing.mean == pytest.approx(IN_BYTES["mean"])


def test_a_config_for_another_size_than_the_models_is_warned_of(
    tiny_vit, tmp_path, caplog
):
    """transformers and timm take the config's size, and then refuse such images."""
    said = "is for images of {0}x{0} pixels, and the model for 14x14"
    from_preset(hugging_face_folder(tiny_vit, tmp_path, size=16, **CROP))
    assert caplog.text == ""
    from_preset(hugging_face_folder(tiny_vit, tmp_path, size=16))
    assert f"preprocessor_config.json {said.format(16)}" in caplog.text
    path = foreign_files.timm(
        tiny_vit(**SQUARE),
        tmp_path,
        model_args={"num_heads": 5, "img_size": 14},
        pretrained_cfg={**TIMM_DEIT, "input_size": [3, 21, 21]},
    )
    from_preset(path)
    assert f"config.json {said.format(21)}" in caplog.text


def test_other_pixels_than_a_projects_are_warned_of(tiny_vit, tmp_path, caplog):
    nearest = {**TIMM_DEIT, "interpolation": "nearest"}
    from_preset(timm_folder(tiny_vit(**SQUARE), tmp_path, **nearest))
    assert 'config.json resizes by interpolation="nearest"' in caplog.text
    folder = tmp_path / "keras_hub"
    folder.mkdir()
    folder = foreign_files.keras_hub(tiny_vit(image_size=(14, 14), depth=1), folder)
    config = {"scale": 1 / 127.5, "offset": -1, "crop_to_aspect_ratio": True}
    (folder / "image_converter.json").write_text(json.dumps({"config": config}))
    from_preset(folder)
    assert "image_converter.json crops before it resizes" in caplog.text


@pytest.mark.parametrize("whole", range(14, 60))
def test_timm_gets_the_whole_size_from_what_is_written(whole):
    """It corrects no floating-point error: 14 / (14 / 25) is less than 25."""
    layer = ImagePreprocessing(14, crop_fraction=14 / whole)
    model = types.SimpleNamespace(preprocessing=layer, channels=3)
    assert int(14 / written_preprocessing(model)["crop_pct"]) == whole


def test_timms_defaults_hold_for_what_a_config_leaves_out(tiny_vit, tmp_path):
    path = timm_folder(tiny_vit(**SQUARE), tmp_path, input_size=[3, 14, 14])
    found = policy_of(from_preset(path))
    assert found == DEIT | {"crop_fraction": 0.875}


def test_statistics_of_three_channels_are_not_for_one(tiny_vit, tmp_path, caplog):
    path = timm_folder(tiny_vit(**SQUARE), tmp_path, **TIMM_DEIT)
    assert from_preset(path, channels=1).preprocessing is None
    assert "not for 1 channels" in caplog.text
    with pytest.raises(ValueError, match="`preprocessing` must be given for 1 channel"):
        from_preset(path, channels=1, include_preprocessing=True)
    (tmp_path / "config.json").write_text('{"model_args": {"num_heads": 5}}')
    with pytest.raises(ValueError, match="nothing beside the file describes it"):
        from_preset(path, include_preprocessing=True)


@pytest.mark.parametrize("name", ["mean", "std"])
def test_a_model_needs_a_number_for_each_channel(name, tiny_vit):
    layer = ImagePreprocessing((22, 14), **{name: (1.0, 2.0)})
    message = rf"one {name}, or one for each.*\(1.0, 2.0\), channels=3"
    with pytest.raises(ValueError, match=message):
        tiny_vit(preprocessing=layer)


@pytest.mark.parametrize(
    "arguments",
    [
        {"mean": "a"},
        {"mean": (1.0, float("nan"), 1.0)},
        {"mean": ()},
        {"std": 0},
        {"std": (1.0, -1.0, 1.0)},
        {"std": None},
    ],
)
def test_a_layer_needs_numbers(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=rf"`{name}` must be one \w+ number, or one"):
        ImagePreprocessing(8, **arguments)


def test_a_resize_rounds_down_as_timm_does():
    assert ImagePreprocessing(224, crop_fraction=0.9).resize_size(9, 9) == (248, 248)
    for whole in range(224, 600):
        layer = ImagePreprocessing(224, crop_fraction=224 / whole)
        assert layer.resize_size(9, 9) == (whole, whole)
