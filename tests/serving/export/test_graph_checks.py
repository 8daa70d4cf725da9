"""Input checks of the exported graph, run as a server runs it."""

import struct
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from few_formats import few_formats
from hostile_images import scans_of_one_color, texts
from image_bytes import image_bytes
from PIL import Image
from saved_models import SavedModel, examples, pictures, png_files, strings

from keras_vit.image_files.formats import count_pixels
from serving.export import signatures
from serving.export.options import ExportOptions

COUNT_PIXELS = tf.function(count_pixels)
OF_FILES = ["serving_default", "embed", "attention", "classify"]
LIMITS = {"max_images": 6, "max_image_bytes": 3000, "max_image_pixels": 7000}


@pytest.fixture(
    scope="module",
    params=["graph", pytest.param("none", marks=pytest.mark.slow)],
)
def served(request, tiny_vit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("version") / "1"
    options = ExportOptions(batching=request.param, max_batch_size=4, **LIMITS)
    signatures.save(tiny_vit(depth=1), folder, options)
    model = SavedModel(folder)
    yield model
    model.close()


def ask(served, name, files):
    return served.run(name, examples(files) if name == "classify" else strings(files))


def refusal(served, name, given):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        served.run(name, given)
    return caught.value.message


def file_refusal(served, name, files):
    given = examples(files) if name == "classify" else strings(files)
    return refusal(served, name, given)


def encoded(kind, height, width, **kwargs):
    random = np.random.default_rng(2)
    rows = random.integers(0, 256, (height, width, 3)).astype("uint8")
    return image_bytes(Image.fromarray(rows), kind, **kwargs)


def input_name(signature):
    return "inputs" if signature == "classify" else "image_bytes"


@pytest.mark.parametrize("name", OF_FILES)
def test_a_request_has_1_to_max_images_files(served, name):
    [png] = png_files(pictures(3, 1))
    assert ask(served, name, [png] * 6)
    for count in (0, 7):
        message = file_refusal(served, name, [png] * count)
        assert f"`{input_name(name)}` must hold 1 to 6 images" in message
        assert f"[{count}]" in message


@pytest.mark.parametrize(
    ("name", "dtype"), [("serve_images", "uint8"), ("serve_pixels", "float32")]
)
def test_a_request_has_1_to_max_images_tensors(served, name, dtype):
    alias = "images" if name == "serve_images" else "pixel_values"
    images = np.zeros((7, 22, 14, 3), dtype)
    assert len(served.run(name, images[:6])) >= 2
    for count in (0, 7):
        message = refusal(served, name, images[:count])
        assert f"`{alias}` must hold 1 to 6 images. Received:] [{count}]" in message


@pytest.mark.parametrize(
    "shape", [(2, 14, 22, 3), (2, 22, 14, 1), (22, 14, 3), (), (0,)]
)
@pytest.mark.parametrize(
    ("name", "dtype"), [("serve_images", "uint8"), ("serve_pixels", "float32")]
)
def test_a_wrong_shape_is_reported_with_the_expected_one(served, name, dtype, shape):
    message = refusal(served, name, np.zeros(shape, dtype))
    assert ("images" if name == "serve_images" else "pixel_values") in message
    received = f"[{','.join(map(str, shape))}]"
    assert f"{received} is not compatible with expected shape [?,22,14,3]" in message


@pytest.mark.parametrize("name", OF_FILES)
def test_files_are_a_vector(served, name):
    given = png_files(pictures(3, 2))
    given = examples(given) if name == "classify" else given
    for wrong in (given.reshape(1, 2), given[0]):
        message = refusal(served, name, np.array(wrong, object))
        assert "expected shape [?]" in message or "Expected serialized" in message


@pytest.mark.parametrize("name", OF_FILES)
def test_each_file_has_1_to_max_image_bytes_bytes(served, name):
    [png] = png_files(pictures(3, 1))
    assert ask(served, name, [png, png.ljust(3000, b"\0")])
    for bad in (b"", png.ljust(3001, b"\0")):
        message = file_refusal(served, name, [png, bad])
        limit = f"Each image of `{input_name(name)}` must have 1 to 3000 bytes"
        assert limit in message
        assert f"[{len(bad)}] [bytes at index] [1]" in message


def test_each_file_has_at_most_max_image_pixels_pixels(served):
    [png] = png_files(pictures(3, 1))
    for name in OF_FILES:
        assert ask(served, name, [png, encoded_blank(70, 100)])
        message = file_refusal(served, name, [png, encoded_blank(71, 100)])
        limit = f"Each image of `{input_name(name)}` must have 1 to 7000 pixels"
        assert limit in message
        assert "[7100] [pixels at index] [1]" in message


def encoded_blank(height, width, kind="png", **kwargs):
    return image_bytes(Image.new("L", (width, height)), kind, **kwargs)


@pytest.mark.parametrize("name", OF_FILES)
@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (b"no image", "One of JPEG, PNG, GIF, BMP, WebP required.] [At index] [0]"),
        (b"\xff\x0a" + bytes(30), "One of JPEG, PNG, GIF, BMP, WebP required"),
        (png_files(pictures(3, 1))[0][:60], "Invalid PNG data"),
        (encoded("jpeg", 22, 14)[:80], "Invalid JPEG data"),
        (encoded("gif", 22, 14)[:20], "A GIF file must have a frame"),
        (b"BM", "must have 1 to 7000 pixels, height times width. Received:] [0]"),
        (
            b"RIFF1234WEBP",
            "must have 1 to 7000 pixels, height times width. Received:] [0]",
        ),
    ],
)
def test_a_file_that_is_not_an_image_is_refused(served, name, bad, text):
    assert text in file_refusal(served, name, [bad])


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (scans_of_one_color(encoded("jpeg", 22, 14), 65), "at most 64 scans"),
        (texts(encoded("png", 22, 14), 17, size=9), "at most 16 chunks of text"),
        (b"no image", "One of JPEG, PNG, GIF, BMP, WebP required"),
    ],
)
def test_what_is_refused_undecoded_is_named_with_its_index(served, bad, text):
    [png] = png_files(pictures(3, 1))
    for name in OF_FILES:
        message = file_refusal(served, name, [png, bad])
        assert text in message
        assert "t index] [1]" in message


def test_a_header_with_a_side_of_0_is_refused_before_decoding(served):
    [png] = png_files(pictures(3, 1))
    bad = png[:16] + bytes(4) + png[20:]
    message = file_refusal(served, "serving_default", [bad])
    assert "must have 1 to 7000 pixels" in message
    assert "[0] [pixels at index] [0]" in message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_pixel_values_are_finite(served, value):
    pixels = np.zeros((3, 22, 14, 3), "float32")
    pixels[1, 2, 3, 1] = value
    message = refusal(served, "serve_pixels", pixels)
    assert "`pixel_values` must be finite.] [At index] [1]" in message


def test_examples_need_the_image_feature(served):
    message = refusal(served, "classify", strings([b""]))
    assert "Feature: image/encoded (data type: string) is required" in message
    assert "parse" in refusal(served, "classify", strings([b"no example"]))


@pytest.mark.slow
def test_a_model_with_nan_outputs_returns_an_error(tiny_vit, tmp_path, only):
    names = ["serve_images", "serve_pixels", "embed", "attention"]
    only(*names)
    model = tiny_vit(depth=1)
    model.get_layer("encoder_block_0").attention.query.bias.assign(np.full(15, np.nan))
    with few_formats():
        signatures.save(model, tmp_path / "1", ExportOptions())
    served = SavedModel(tmp_path / "1")
    images = pictures(3)
    assert set(served.signatures) == set(names)
    for name in names:
        given = png_files(images)
        if name == "serve_images":
            given = images
        elif name == "serve_pixels":
            given = images.astype("float32")
        message = refusal(served, name, given)
        assert "The model produced non-finite values" in message
        hint = "Are these `pixel_values` normalized, about -1 to 1?"
        assert (hint in message) is (name == "serve_pixels")
        assert "the request itself is valid" in message


FILES = {
    "jpeg": encoded("jpeg", 50, 70),
    "progressive jpeg": encoded("jpeg", 50, 70, progressive=True),
    "png": encoded("png", 50, 70),
    "lossy webp": encoded("webp", 50, 70),
    "lossless webp": encoded("webp", 50, 70, lossless=True),
    "extended webp": encoded(
        "webp", 50, 70, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"
    ),
    "large": encoded_blank(3000, 4000),
    "large webp": encoded_blank(3000, 4000, "webp", lossless=True),
    "wide": encoded("png", 1, 300),
}


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_pixels_in_the_header_equal_the_decoded_pixels(data):
    image = tf.io.decode_image(data, channels=3, expand_animations=False)
    assert COUNT_PIXELS(tf.constant(data)) == image.shape[0] * image.shape[1]


def bombs():
    gif = encoded_blank(10, 20, "gif")
    canvas = gif[:6] + struct.pack("<HH", 7000, 7000) + gif[10:]
    return {
        "png": encoded_blank(7000, 7000),
        "jpeg": encoded_blank(7000, 7000, "jpeg"),
        "gif": encoded_blank(7000, 7000, "gif"),
        "gif, canvas": canvas,
        "webp": encoded_blank(7000, 7000, "webp", lossless=True),
    }


@pytest.mark.slow
def test_a_decompression_bomb_allocates_no_memory(tiny_vit, tmp_path, only):
    """49 million pixels: 147 MB decoded."""
    only("serving_default")
    signatures.save(tiny_vit(), tmp_path / "1", ExportOptions())
    for name, data in bombs().items():
        (tmp_path / f"{name}.bomb").write_bytes(data)
    code = """
        import pathlib, sys
        sys.path[:0] = sys.argv[2:]
        import tensorflow as tf
        from saved_models import SavedModel, strings
        served = SavedModel(sys.argv[1] + "/1")
        def ask(data):
            try:
                served.run("serving_default", strings([data]))
            except tf.errors.InvalidArgumentError as error:
                print(error.message.splitlines()[0])
        ask(b"warm-up")
        def memory(key):
            lines = pathlib.Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith(key))
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        before = memory("VmRSS:")
        for path in sorted(pathlib.Path(sys.argv[1]).glob("*.bomb")):
            ask(path.read_bytes())
        print((memory("VmHWM:") - before) // 1024)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path, *sys.path],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    _, *refusals, growth = result.stdout.splitlines()
    assert len(refusals) == 5
    for refused in refusals:
        assert "must have 1 to 40000000 pixels" in refused
        assert "[4900" in refused
    assert int(growth) < 50  # MiB
