"""Preprocessing configs of timm and transformers: the same pixels as they compute."""

import io
import json
import types

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_sample_image

from keras_vit import ImagePreprocessing, decoding
from keras_vit.weights.families import hugging_face, timm
from keras_vit.weights.families.registry import FAMILIES
from keras_vit.weights.preprocessing_configs import preprocessing_arguments

timm_data = pytest.importorskip("timm.data")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

RATIOS = (1, 5 / 4, 4 / 3, 3 / 2, 16 / 9, 2, 3, 4 / 5, 3 / 4, 2 / 3, 9 / 16, 1 / 2)


def images_for(size):
    """Photographs of twelve ratios: smaller than the model's size, as large, larger."""
    photographs = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    yield photographs[0]
    noise = np.random.default_rng(3).integers(0, 256, (*size, 3)).astype("uint8")
    yield noise
    for index, ratio in enumerate(RATIOS):
        photograph = Image.fromarray(photographs[index % 2])
        for scale in (0.6, 1.0, 2.7):
            short = round(min(size) * scale)
            width, height = round(short * max(ratio, 1)), round(short / min(ratio, 1))
            yield np.asarray(photograph.crop((9, 5, 9 + width, 5 + height)))


def check_pixels(theirs, layer, size):
    """Compare with the layer, and with the graph that decodes and resizes files.

    Two levels apart are a few pixels in a million: torchvision's weights have 16 bits,
    and a half that it rounds in another way in both passes counts twice.
    """

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def served(data):
        return decoding.decode_and_resize(data, layer)

    layer = ImagePreprocessing.from_config({**layer.get_config(), "image_size": size})
    differences = []
    for image in images_for(size):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        expected = theirs(image)
        normalized = np.asarray(layer(image[None]))[0]
        for ours in (
            normalized * np.float32(layer.std) + np.float32(layer.mean),
            served(tf.constant(file.getvalue())).numpy(),
        ):
            assert ours.shape == expected.shape
            differences.append(np.abs(np.round(ours) - np.round(expected)).ravel())
    difference = np.concatenate(differences)
    assert difference.max() <= 2
    assert (difference > 1).mean() < 1e-5
    assert (difference > 0).mean() < 0.01


def policy(family, **files):
    """What is read from JSON documents, by name without suffix."""
    documents = {f"{name}.json": content for name, content in files.items()}
    file = types.SimpleNamespace(
        path="weights",
        config=files["config"],
        beside=lambda name: documents.get(name, {}),
    )
    checkpoint = types.SimpleNamespace(described=FAMILIES[family], file=file)
    return preprocessing_arguments(checkpoint)


def timm_pixels(config):
    """A function from images to timm's pixels from 0 to 255."""
    data = timm_data.resolve_data_config(pretrained_cfg=config)
    transform = timm_data.create_transform(**data, is_training=False)
    mean, std = np.array(data["mean"]), np.array(data["std"])

    def pixels(image):
        normalized = transform(Image.fromarray(image)).numpy().transpose(1, 2, 0)
        return (normalized * std + mean) * 255

    return pixels


def hugging_face_pixels(folder, files):
    """A function from images to transformers' pixels from 0 to 255."""
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    processor = transformers.AutoImageProcessor.from_pretrained(folder)

    def pixels(image):
        outputs = processor(Image.fromarray(image), return_tensors="np")
        values = np.float64(outputs["pixel_values"][0]).transpose(1, 2, 0)
        if processor.do_normalize:
            values = values * processor.image_std + processor.image_mean
        return values / processor.rescale_factor if processor.do_rescale else values

    return pixels


@pytest.mark.parametrize("size", [(64, 64), (48, 64), (70, 42)])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"crop_pct": 0.95, "interpolation": "bilinear", "mean": None},
        {"crop_pct": 0.9, "interpolation": "lanczos", "mean": [0.5, 0.4, 0.3]},
        {"crop_pct": 0.56, "crop_mode": "squash"},
        {"crop_pct": 0.95, "crop_mode": "squash", "interpolation": "bilinear"},
    ],
    ids=str,
)
def test_timms_transforms_give_the_same_pixels(size, config):
    config = {"input_size": [3, *size], **config}
    ours = policy("timm", config={"pretrained_cfg": config})
    layer = ImagePreprocessing(size, **ours)
    check_pixels(timm_pixels(config), layer, size)


PROCESSORS = [
    ("ViT", {}, (224, 224)),
    ("ViT", {"size": 64, "resample": 3}, (64, 64)),
    ("ViT", {"size": {"height": 48, "width": 64}, "resample": 1}, (48, 64)),
    ("ViT", {"size": [48, 64], "resample": 0, "do_normalize": False}, (48, 64)),
    ("ViT", {"do_rescale": False, "image_mean": 99.0, "image_std": 9.0}, (224, 224)),
    ("DeiT", {}, (224, 224)),
    ("DeiT", {"size": 67, "crop_size": 64, "do_normalize": None}, (64, 64)),
    ("DeiT", {"size": [64, 80], "crop_size": {"height": 48, "width": 60}}, (48, 60)),
    ("Bit", {}, (224, 224)),
    ("Bit", {"size": {"shortest_edge": 73}, "crop_size": 64, "resample": 2}, (64, 64)),
    ("CLIP", {"size": 64, "crop_size": 64}, (64, 64)),
    ("ConvNext", {}, (384, 384)),
    ("ConvNext", {"size": {"shortest_edge": 64}}, (64, 64)),
    ("ConvNext", {"size": 64, "crop_pct": 0.95, "resample": 2}, (64, 64)),
    ("Siglip", {}, (224, 224)),
    ("DINOv3ViT", {"size": {"height": 64, "width": 48}}, (64, 48)),
    ("Beit", {"size": 70, "crop_size": 64, "do_center_crop": True}, (64, 64)),
]


@pytest.mark.parametrize(("kind", "config", "size"), PROCESSORS, ids=str)
def test_transformers_processors_give_the_same_pixels(kind, config, size, tmp_path):
    config = {"image_processor_type": f"{kind}ImageProcessor", **config}
    files = {"preprocessor_config": config, "config": {"model_type": "vit"}}
    layer = ImagePreprocessing(size, **policy("hugging_face", **files))
    check_pixels(hugging_face_pixels(tmp_path, files), layer, size)


@pytest.mark.parametrize(
    "files",
    [
        {"preprocessor_config": {"size": 64}, "config": {"model_type": "vit"}},
        {
            "preprocessor_config": {"crop_size": 60, "size": 64},
            "config": {"model_type": "deit"},
        },
        {
            "preprocessor_config": {"crop_size": 60, "size": {"shortest_edge": 64}},
            "config": {"model_type": "dinov2"},
        },
        {
            "preprocessor_config": {"feature_extractor_type": "DeiTFeatureExtractor"},
            "config": {"model_type": "vit"},
        },
        {
            "preprocessor_config": {"image_processor_type": "ViTImageProcessorFast"},
            "processor_config": {
                "image_processor": {
                    "image_processor_type": "DeiTImageProcessorFast",
                    "crop_size": 60,
                    "size": 64,
                }
            },
            "config": {"model_type": "vit"},
        },
    ],
    ids=str,
)
def test_the_same_file_and_class_are_chosen_as_by_transformers(files, tmp_path):
    arguments = policy("hugging_face", **files)
    theirs = hugging_face_pixels(tmp_path, files)
    size = theirs(load_sample_image("china.jpg")).shape[:2]
    check_pixels(theirs, ImagePreprocessing(size, **arguments), size)


POLICIES = [
    {"resize": "small", "crop_fraction": 0.95},
    {"resize": "small", "crop_fraction": 64 / 69},
    {"resize": "plain", "crop_fraction": 64 / 69},
    {"resize": "plain", "mean": (99.0, 98.0, 97.0)},
]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("arguments", POLICIES, ids=str)
@pytest.mark.parametrize("family", ["timm", "hugging_face"])
def test_written_configs_mean_the_same_pixels(
    family, arguments, interpolation, tmp_path
):
    size = (64, 64)
    layer = ImagePreprocessing(
        size,
        interpolation=interpolation,
        antialias=True,
        convention=family,
        **arguments,
    )
    model = types.SimpleNamespace(preprocessing=layer, image_size=size, channels=3)
    assert FAMILIES[family].lost_preprocessing(layer) == []
    if family == "timm":
        config = timm.written_preprocessing(model)
        theirs = timm_pixels({"input_size": [3, *size], **config})
    else:
        config = hugging_face.written_preprocessing(model)
        files = {"preprocessor_config": config, "config": {"model_type": "vit"}}
        theirs = hugging_face_pixels(tmp_path, files)
    check_pixels(theirs, layer, size)
