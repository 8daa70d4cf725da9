"""Keras, the SavedModel, REST and gRPC agree on every kind of image file."""

import concurrent.futures

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from saved_models import SavedModel, strings
from server_requests import local_server

import keras_vit
from keras_vit.decoding import load_image, resize_image
from serving.client import GrpcClient, InvalidArgument, RestClient
from serving.export import signatures
from serving.export.options import ExportOptions

CONCURRENT = 32
CLASSES = 7
NAMES = ["serving_default", "serve_pixels"]


def scene(seed=0):
    """A picture [90, 120, 3] that is not the same upside down or mirrored."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:90, :120]
    waves = np.stack([np.sin(x / (7 + seed)), np.cos(y / 11), np.sin(x * y / 900)], -1)
    pixels = 128 + 100 * waves + random.normal(scale=15, size=waves.shape)
    return pixels.clip(0, 255).astype("uint8")


IMAGE = Image.fromarray(scene())
TURNED = Image.Exif()
TURNED[0x0112] = 6  # turn it by 90 degrees
ANIMATED = {
    "save_all": True,
    "append_images": [Image.fromarray(scene(seed)) for seed in (1, 2)],
}
FILES = {
    "picture.png": (IMAGE, {}),
    "picture.jpg": (IMAGE, {"quality": 90}),
    "gray.jpg": (IMAGE.convert("L"), {}),
    "cmyk.jpg": (IMAGE.convert("CMYK"), {}),
    "animated.gif": (IMAGE, ANIMATED),
    "rotated.jpg": (IMAGE, {"exif": TURNED}),
    "rotated.webp": (IMAGE, {"exif": TURNED}),
    "palette.bmp": (IMAGE.quantize(200), {}),
    "transparent.gif": (IMAGE.quantize(200), {"transparency": 7}),
    "animated.webp": (IMAGE, ANIMATED),
}


def write_files(folder):
    """Write eleven kinds of image files; returns their paths."""
    for name, (image, options) in FILES.items():
        image.save(folder / name, **options)
    deep = scene().astype("uint16") * 257 + 100
    (folder / "deep.png").write_bytes(tf.io.encode_png(deep).numpy())
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def everywhere(tiny_vit, tmp_path_factory):
    """A Keras model, its SavedModel, a client of each transport, and the files."""
    folder = tmp_path_factory.mktemp("agreement")
    preprocessing = keras_vit.ImagePreprocessing((22, 14), crop_fraction=0.875)
    model = tiny_vit(depth=1, preprocessing=preprocessing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signatures, "signature_names", lambda _: NAMES)
        signatures.save(model, folder / "m" / "1", ExportOptions(top_k=CLASSES))
    (folder / "files").mkdir()
    files = write_files(folder / "files")
    with (
        local_server({"m": folder / "m"}) as server,
        RestClient(server.rest_url, "m", timeout=120) as rest,
        GrpcClient(server.grpc_address, "m", timeout=120) as grpc,
    ):
        yield model, SavedModel(folder / "m" / "1"), rest, grpc, files


def keras_scores(model, path):
    image = resize_image(load_image(path), model.preprocessing)
    return tf.nn.softmax(model(image[None], training=False))[0].numpy()


def by_class(answer, row=0):
    """Scores in the order of the classes."""
    scores = np.zeros(CLASSES, "float32")
    scores[answer["class_ids"][row]] = answer["scores"][row]
    return scores


@pytest.mark.parametrize("name", [*FILES, "deep.png"])
def test_keras_savedmodel_rest_and_grpc_agree(everywhere, name):
    model, served, rest, grpc, files = everywhere
    [path] = [path for path in files if path.name == name]
    data = path.read_bytes()
    expected = keras_scores(model, path)
    answers = {
        "SavedModel": served.run("serving_default", strings([data])),
        "REST": rest.predict({"image_bytes": [data]}),
        "gRPC": grpc.predict({"image_bytes": [data]}),
    }
    for way, answer in answers.items():
        scores = by_class(answer)
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5, err_msg=way)
    assert np.ptp(expected) > 1e-3


@pytest.mark.parametrize(
    ("transport", "damage"),
    [("REST", "no image"), pytest.param("gRPC", "truncated", marks=pytest.mark.slow)],
)
def test_one_bad_image_in_32_concurrent_requests_fails_alone(
    everywhere, transport, damage
):
    model, _, rest, grpc, files = everywhere
    client = rest if transport == "REST" else grpc
    requests = [files[index % len(files)] for index in range(CONCURRENT)]
    contents = [path.read_bytes() for path in requests]
    bad = 17
    contents[bad] = b"no image" if damage == "no image" else contents[bad][:200]
    with concurrent.futures.ThreadPoolExecutor(CONCURRENT) as threads:
        answers = [
            threads.submit(client.predict, {"image_bytes": [data]}) for data in contents
        ]
    assert isinstance(answers[bad].exception(), InvalidArgument)
    for index, (path, answer) in enumerate(zip(requests, answers, strict=True)):
        if index != bad:
            expected = keras_scores(model, path)
            scores = by_class(answer.result())
            np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("transport", ["REST", "gRPC"])
def test_errors_of_the_graph_reach_the_client(everywhere, transport):
    _, _, rest, grpc, files = everywhere
    client = rest if transport == "REST" else grpc
    for count in (0, 65):
        with pytest.raises(InvalidArgument, match="must hold 1 to 64 images"):
            client.predict({"image_bytes": [files[0].read_bytes()] * count})
    with pytest.raises(InvalidArgument, match="One of JPEG, PNG, GIF, BMP, WebP"):
        client.predict({"image_bytes": [b"no image"]})
    pixels = np.full((1, 22, 14, 3), np.nan, "float32")
    with pytest.raises(InvalidArgument, match="`pixel_values` must be finite"):
        client.predict({"pixel_values": pixels}, "serve_pixels")
