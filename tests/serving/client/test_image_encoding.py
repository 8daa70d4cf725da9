"""Encoding of images: paths, bytes, arrays and PIL images."""

import io

import numpy as np
import PIL.Image
import pytest

from serving.client.image_encoding import encode_image, encode_images


@pytest.fixture
def pixels():
    return np.random.default_rng(5).integers(0, 256, (7, 5, 3), dtype="uint8")


def decoded(content):
    assert content.startswith(b"\x89PNG")
    return np.asarray(PIL.Image.open(io.BytesIO(content)))


def test_files_and_bytes_are_unchanged(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"not decoded here")
    assert encode_images([path, str(path), b"raw"]) == [
        b"not decoded here",
        b"not decoded here",
        b"raw",
    ]


@pytest.mark.parametrize("shape", [(7, 5), (7, 5, 1), (7, 5, 3), (7, 5, 4)])
def test_arrays_keep_every_pixel(shape):
    pixels = np.random.default_rng(5).integers(0, 256, shape, dtype="uint8")
    np.testing.assert_array_equal(decoded(encode_image(pixels)), np.squeeze(pixels))


def test_arrays_need_not_be_contiguous(pixels):
    flipped = pixels[:, ::-1]
    np.testing.assert_array_equal(decoded(encode_image(flipped)), flipped)


def test_a_batch_of_pixels_is_a_list_of_images(pixels):
    first, second = encode_images(np.stack([pixels, pixels + 1]))
    np.testing.assert_array_equal(decoded(first), pixels)
    np.testing.assert_array_equal(decoded(second), pixels + 1)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "HSV"])
def test_pil_images_of_every_mode_become_png(mode, pixels):
    image = PIL.Image.fromarray(pixels).convert(mode)
    sent = PIL.Image.open(io.BytesIO(encode_image(image)))
    assert sent.format == "PNG"
    np.testing.assert_array_equal(sent.convert("RGB"), image.convert("RGB"))


def test_a_pil_image_of_a_photograph_is_sent_upright(pixels):
    tags = PIL.Image.Exif()
    tags[0x0112] = 6
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "PNG", exif=tags)
    sent = PIL.Image.open(io.BytesIO(encode_image(PIL.Image.open(file))))
    np.testing.assert_array_equal(sent, np.rot90(pixels, -1))
    assert 0x0112 not in sent.getexif()


DAMAGED = {
    "no header": b"garbage!",
    "half a header": b"II*\0",
    "tags beyond the end": b"II*\0\xff\xff\xff\x7f",
    "half a tag": b"II*\0\x08\0\0\0\5\0\x12\1",
}


@pytest.mark.parametrize("tags", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("format_", ["PNG", "WEBP"])
def test_a_pil_image_with_damaged_exif_is_sent_as_it_is(pixels, format_, tags):
    file = io.BytesIO()
    image = PIL.Image.fromarray(pixels)
    image.save(file, format_, lossless=True, exif=b"Exif\0\0" + tags)
    sent = decoded(encode_image(PIL.Image.open(file)))
    np.testing.assert_array_equal(sent, pixels)


def test_a_damaged_pil_image_is_not_sent(pixels):
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).resize((99, 99)).save(file, "JPEG")
    half = io.BytesIO(file.getvalue()[:700])
    with pytest.raises(OSError, match="truncated"):
        encode_image(PIL.Image.open(half))


def test_pil_images_keep_sixteen_bits():
    pixels = np.arange(35, dtype="uint16").reshape(7, 5) * 1871
    sent = PIL.Image.open(io.BytesIO(encode_image(PIL.Image.fromarray(pixels))))
    assert sent.mode == "I;16"
    np.testing.assert_array_equal(np.asarray(sent), pixels)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pil_images_without_a_range_are_refused(mode):
    with pytest.raises(ValueError, match=f"8 or 16 bits .* Received: mode '{mode}'"):
        encode_image(PIL.Image.new(mode, (5, 7)))


def test_floats_are_refused_with_advice():
    pixels = np.full((7, 5, 3), 0.5, "float32")
    with pytest.raises(ValueError, match="no agreed range") as caught:
        encode_image(pixels)
    assert '(255 * pixels).round().astype("uint8")' in str(caught.value)
    assert decoded(encode_image((255 * pixels).round().astype("uint8"))).max() == 128


@pytest.mark.parametrize(
    "array", [np.zeros((7, 5, 3)), np.zeros((7, 5, 2), "uint8"), np.zeros(7, "uint8")]
)
def test_arrays_of_other_shapes_and_types_are_refused(array):
    with pytest.raises(ValueError, match=r"must be uint8 .* Received: "):
        encode_image(array)


@pytest.mark.parametrize("image", ["a.png", b"raw", np.zeros((7, 5, 3), "uint8")])
def test_a_single_image_must_be_in_a_list(image):
    with pytest.raises(TypeError, match=r"write \[image\]"):
        encode_images(image)


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="Received: int"):
        encode_image(3)


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        encode_image("nothing-here.png")
