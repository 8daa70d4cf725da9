"""Image files to pixels, compared with Pillow."""

import io
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from image_bytes import image_bytes as encode
from long_cases import long_after
from PIL import Image
from sklearn.datasets import load_sample_image

from keras_vit import ImagePreprocessing, decoding
from keras_vit.image_files import bmp, formats


@pytest.fixture(scope="module")
def photograph():
    return load_sample_image("flower.jpg")[100:180, 200:330]  # [80, 130, 3]


def decode(data, channels=3):
    return decoding.decode_image(tf.constant(data), channels).numpy()


@pytest.mark.parametrize("format_", ["PNG", "BMP", "GIF"])
def test_lossless_formats_decode_to_the_same_pixels(photograph, format_):
    image = Image.fromarray(photograph).quantize(64).convert("RGB")
    decoded = decode(encode(image, format_))
    np.testing.assert_array_equal(decoded, np.asarray(image))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 30}])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_jpeg_equals_pillow(photograph, subsampling, options):
    data = encode(
        Image.fromarray(photograph), "JPEG", subsampling=subsampling, **options
    )
    expected = np.asarray(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(decode(data), expected)


def test_sixteen_bits_become_eight():
    values = np.arange(0, 65536, 257, dtype="uint16").reshape(16, 16)
    data = encode(Image.fromarray(values), "PNG")
    np.testing.assert_array_equal(decode(data)[..., 1], values // 257)


def test_cmyk_becomes_rgb(photograph):
    image = Image.fromarray(photograph).convert("CMYK")
    data = encode(image, "JPEG", quality=95, subsampling=0)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), "int32")
    assert np.abs(decode(data) - expected).max() <= 1


def test_transparency_is_dropped(photograph):
    alpha = np.full((80, 130, 1), 7, "uint8")
    image = Image.fromarray(np.concatenate([photograph, alpha], -1), "RGBA")
    np.testing.assert_array_equal(decode(encode(image, "PNG")), photograph)


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "GIF"])
def test_a_gray_file_keeps_every_gray_in_one_and_three_channels(format_):
    ramp = np.repeat(np.arange(256, dtype="uint8"), 8).reshape(32, 64)
    data = encode(
        Image.fromarray(ramp),
        format_,
        **({"quality": 100} if format_ == "JPEG" else {}),
    )
    for channels in (1, 3):
        gray = decode(data, channels)
        assert gray.shape == (32, 64, channels)
        difference = np.abs(gray.astype("int32") - ramp[..., np.newaxis]).max()
        assert difference <= (4 if format_ == "JPEG" else 0)


def test_color_becomes_the_luma_of_bt601(photograph):
    data = encode(Image.fromarray(photograph), "PNG")
    expected = np.asarray(Image.fromarray(photograph).convert("L"), "int32")
    assert np.abs(decode(data, 1)[..., 0] - expected).max() <= 1


def test_resizing_rounds_to_bytes_and_crops(photograph):
    preprocessing = ImagePreprocessing((20, 30), crop_fraction=0.5)
    resized = decoding.decode_and_resize(
        tf.constant(encode(Image.fromarray(photograph), "PNG")), preprocessing
    )
    whole = tf.image.resize(photograph, (40, 60))[10:30, 15:45].numpy()
    assert resized.dtype == tf.uint8
    assert np.abs(resized.numpy() - whole).max() <= 0.5001


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("resize", ["plain", "small"])
@pytest.mark.parametrize("size", [(80, 130), (20, 30), (24, 24)])
@pytest.mark.parametrize("convention", ImagePreprocessing.CONVENTIONS)
def test_the_pipeline_and_the_layer_resize_alike(
    photograph, size, resize, interpolation, antialias, convention
):
    preprocessing = ImagePreprocessing(
        size,
        mean=0.0,
        std=1.0,
        resize=resize,
        interpolation=interpolation,
        antialias=antialias,
        convention=convention,
        crop_fraction=0.9,
    )
    for image in (photograph, photograph.transpose(1, 0, 2)):
        outside = decoding.resize_image(tf.constant(image), preprocessing)
        inside = preprocessing(image[None])[0]
        np.testing.assert_array_equal(outside, inside)


@pytest.mark.parametrize("convention", ImagePreprocessing.CONVENTIONS)
@pytest.mark.parametrize("wide", [True, False])
def test_of_a_very_long_image_only_the_crop_is_computed(convention, wide):
    """The whole one would have 37 x 740,000 pixels."""
    preprocessing = ImagePreprocessing(
        32, resize="small", antialias=True, crop_fraction=0.86, convention=convention
    )
    pixels = np.random.default_rng(1).integers(0, 256, (1, 20_000, 3), "uint8")
    pixels = pixels if wide else pixels.transpose(1, 0, 2)
    whole = preprocessing.resize_size(*pixels.shape[:2])
    corner = preprocessing.corner([int(side) for side in whole])
    top, left = (
        c / s * n for c, s, n in zip(corner, whole, pixels.shape, strict=False)
    )
    down, right = (32 / s * n for s, n in zip(whole, pixels.shape, strict=False))
    box = left, top, left + right, top + down
    image = Image.fromarray(pixels).resize((32, 32), Image.Resampling.BILINEAR, box)
    found = decoding.resize_image(tf.constant(pixels), preprocessing).numpy()
    assert np.abs(found.astype(int) - np.asarray(image, int)).max() <= 1


def test_a_very_long_image_is_refused_where_it_would_be_resized_whole():
    preprocessing = ImagePreprocessing(224, resize="small")
    resize = tf.function(lambda x: decoding.resize_image(x, preprocessing))
    with pytest.raises(tf.errors.InvalidArgumentError, match="too long and thin"):
        resize(tf.zeros((1, 20_000, 3), tf.uint8))


@pytest.mark.parametrize("convention", ImagePreprocessing.CONVENTIONS)
@pytest.mark.parametrize(
    "size", [pytest.param((224, 224), marks=pytest.mark.slow), (70, 42)]
)
def test_a_graph_rounds_sizes_as_python_does(size, convention):
    """Halves are common: 42 x 63 pixels to a height of 77 are 115.5 in width."""
    preprocessing = ImagePreprocessing(
        size, crop_fraction=0.9, resize="small", convention=convention
    )
    sides = np.mgrid[20:220, 20:220].reshape(2, -1).astype("float64")

    @tf.function(input_signature=[tf.TensorSpec([2, None], tf.float64)])
    def resized(sides):
        return preprocessing.resize_size(sides[0], sides[1], tf)

    expected = [preprocessing.resize_size(int(h), int(w)) for h, w in sides.T]
    np.testing.assert_array_equal(np.transpose(resized(sides)), expected)


@pytest.mark.parametrize("antialias", long_after(1, [False, True]))
@pytest.mark.parametrize("resize", ["plain", "small"])
@pytest.mark.parametrize("convention", ImagePreprocessing.CONVENTIONS)
def test_a_pipeline_resizes_images_of_unknown_size(
    photograph, resize, convention, antialias
):
    preprocessing = ImagePreprocessing(
        (24, 20),
        crop_fraction=0.8,
        resize=resize,
        convention=convention,
        antialias=antialias,
    )
    pictures = [photograph, photograph[:50], photograph[:, :33]]
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(pictures),
        output_signature=tf.TensorSpec([None, None, 3], tf.uint8),
    ).map(lambda image: decoding.resize_image(image, preprocessing))
    for picture, resized in zip(pictures, dataset.as_numpy_iterator(), strict=True):
        expected = decoding.resize_image(tf.constant(picture), preprocessing)
        np.testing.assert_array_equal(resized, expected)


KINDS = {
    "JPEG": ("RGB", {"subsampling": 0}),
    "progressive JPEG": ("RGB", {"subsampling": 0, "progressive": True}),
    "CMYK JPEG": ("CMYK", {"subsampling": 0}),
    "gray JPEG": ("L", {}),
    "PNG": ("RGB", {}),
    "GIF": ("P", {}),
    "BMP": ("RGB", {}),
    "WEBP": ("RGB", {"lossless": True}),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_a_file_is_a_part_of_its_image(photograph, kind, channels):
    mode, options = KINDS[kind]
    data = encode(
        Image.fromarray(photograph).convert(mode), kind.split()[-1], **options
    )
    shapes = []

    def choose(shape):
        shapes.append(shape[:2].numpy().tolist())
        return tf.constant([13, 21, 37, 53])

    part = decoding.decode_and_crop(tf.constant(data), choose, channels)
    assert shapes == [[80, 130]]
    assert part.shape == (37, 53, channels)
    np.testing.assert_array_equal(part, decode(data, channels)[13:50, 21:74])


def test_a_part_is_the_same_in_a_pipeline(photograph):
    def part(data):
        return decoding.decode_and_crop(
            data, lambda shape: shape[0] // [8, 7, 2, 3] // 1
        )

    files = [encode(Image.fromarray(photograph), kind) for kind in ("PNG", "JPEG")]
    dataset = tf.data.Dataset.from_tensor_slices(files).map(part)
    for data, result in zip(files, dataset.as_numpy_iterator(), strict=True):
        np.testing.assert_array_equal(result, part(tf.constant(data)))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", ""),
        (b"no image", ""),
        (b"\x89PNG\r\n\x1a\n broken", ""),
        (encode(Image.linear_gradient("L"), "JPEG")[:-900], ""),
        (b"RIFF\x24\0\0\0WAVEfmt " + bytes(60), ".*Unknown image file format"),
        (b"RIFF", ".*Unknown image file format"),
    ],
)
def test_an_unreadable_file_is_named(tmp_path, content, reason):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.png: not a readable image: {reason}"):
        decoding.load_image(tmp_path / "a.png")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.png: cannot be read: No such file"):
        decoding.load_image(tmp_path / "none.png")


def test_other_channels_are_refused(photograph):
    with pytest.raises(ValueError, match="`channels` must be 1 or 3.*channels=4"):
        decode(encode(Image.fromarray(photograph), "PNG"), 4)


@pytest.mark.parametrize("interpolation", ["bicubic", "lanczos3"])
def test_interpolation_overshoot_is_clipped(interpolation):
    edge = np.repeat([[0, 0, 0, 255, 255, 255]], 6, axis=0).astype("uint8")
    image = np.repeat(edge[..., np.newaxis], 3, axis=-1)
    preprocessing = ImagePreprocessing(24, interpolation=interpolation)
    resized = decoding.resize_image(tf.constant(image), preprocessing).numpy()
    exact = tf.image.resize(image, (24, 24), method=interpolation).numpy()
    assert exact.min() < -1
    assert exact.max() > 256
    assert np.abs(resized - exact.clip(0, 255)).max() <= 0.5001


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "CMYK", "YCbCr"])
@pytest.mark.parametrize("channels", [1, 3])
def test_tiff_files_are_read_as_png(photograph, tmp_path, mode, channels):
    image = Image.fromarray(photograph).convert(mode)
    image.save(tmp_path / "image.tif")
    with Image.open(tmp_path / "image.tif") as stored:
        stored.convert("RGB").save(tmp_path / "image.png")
    read = [
        decoding.load_image(tmp_path / name, channels)
        for name in ("image.tif", "image.png")
    ]
    np.testing.assert_array_equal(*read)


def test_the_first_page_of_a_tiff_of_sixteen_bits_is_read(tmp_path):
    values = np.arange(0, 65536, 257, dtype="uint16").reshape(16, 16)
    pages = [Image.fromarray(values), Image.fromarray(values[::-1])]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    read = decoding.load_image(tmp_path / "a.tif", 1)
    np.testing.assert_array_equal(read[..., 0], values // 257)


def test_bigtiff_is_read(photograph, tmp_path):
    Image.fromarray(photograph).save(tmp_path / "a.tif", big_tiff=True)
    assert (tmp_path / "a.tif").read_bytes()[:4] == b"II+\0"
    np.testing.assert_array_equal(decoding.load_image(tmp_path / "a.tif"), photograph)


def tiff(mode, tag=None, kind=3, value=None):
    """A TIFF file, one of whose tags has this type, and this value."""
    data = bytearray(encode(Image.new(mode, (8, 6)), "TIFF"))
    [directory] = struct.unpack_from("<I", data, 4)
    entry = data.find(struct.pack("<H", tag or 0x100), directory + 2)
    if tag is not None:
        struct.pack_into("<H", data, entry + 2, kind)
    if value is not None:
        struct.pack_into("<II", data, entry + 4, 1, value)
    return bytes(data)


END = len(tiff("RGB"))
BITS = "must have 16 or up to 8 unsigned bits for each channel. Received: "
UNCONVERTED = "a TIFF file that cannot be converted: "


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, about damaged tags
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"II*\0" + bytes(9), UNCONVERTED + "its tags are damaged$"),
        (tiff("RGB", 273, kind=2), UNCONVERTED + "'str' object"),
        (tiff("RGB", 273, kind=12), UNCONVERTED + "'float' object"),
        (tiff("RGB", 273, 16, END) + b"\xff" * 8, UNCONVERTED + ".* too large"),
        (tiff("L", 256, 4, 2**31 - 1), UNCONVERTED + "Image size .* exceeds limit"),
        (tiff("I"), BITS + "32 .Pillow's mode I"),
        (tiff("F"), BITS + "32 .Pillow's mode F"),
        (tiff("L", 258, value=12), BITS + "12 .Pillow's mode I;16"),
    ],
)
def test_a_tiff_that_cannot_be_read_is_named(tmp_path, data, message):
    (tmp_path / "a.tif").write_bytes(data)
    with pytest.raises(ValueError, match=f"a.tif: not a readable image: .*{message}"):
        decoding.load_image(tmp_path / "a.tif")


def announcing(format_, place, sizes):
    """A small file whose header announces these sizes, packed, at a place."""
    data = bytearray(
        encode(Image.new("P" if format_ == "GIF" else "RGB", (8, 6)), format_)
    )
    place = data.index(b"\xff\xc0") + 5 if format_ == "JPEG" else place
    data[place : place + len(sizes)] = sizes
    return bytes(data)


HUGE = {
    "JPEG": announcing("JPEG", 0, struct.pack(">HH", 65_000, 65_000)),
    "PNG": announcing("PNG", 16, struct.pack(">II", 65_000, 65_000)),
    "GIF": announcing("GIF", 6, struct.pack("<HH", 65_000, 65_000)),
    "BMP": announcing("BMP", 18, struct.pack("<ii", 65_000, 65_000)),
    "BMP of the largest integers": announcing("BMP", 18, b"\xff\xff\xff\xff\0\0\0\x80"),
    "WEBP": b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\xff\xff\0\xff\xff\0",
}


@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
def pixel_in_a_graph(data):
    return decoding.decode_and_crop(data, lambda _: [0, 0, 1, 1])


@pytest.mark.parametrize("data", HUGE.values(), ids=HUGE)
def test_an_image_of_too_many_pixels_is_refused_in_words(tmp_path, data):
    """A GIF of 400 bytes would fill the memory with its canvas."""
    limit = r"An image must have at most 178956970 pixels. Received: \d{10,}$"
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ValueError, match=f"a: not a readable image: {limit}"):
        decoding.load_image(tmp_path / "a")
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 178956970 pix"):
        pixel_in_a_graph(data)


def test_threads_trace_one_graph(monkeypatch, tmp_path):
    """Each further one takes seconds, and makes TensorFlow warn of retracing."""
    Image.new("RGB", (8, 6)).save(tmp_path / "a.png")
    traced, barrier = [], threading.Barrier(6, timeout=60)

    def decode(data, kind):
        traced.append(kind)
        return tf.io.decode_png(data, 3)

    def load(path):
        barrier.wait()
        return decoding.load_image(path)

    monkeypatch.setattr(formats, "decode", decode)
    decoding._graph.cache_clear()
    try:
        with ThreadPoolExecutor(6) as pool:
            images = list(pool.map(load, [tmp_path / "a.png"] * 6))
    finally:
        decoding._graph.cache_clear()
    assert [image.shape for image in images] == [(6, 8, 3)] * 6
    assert traced == ["png"]


HEADS = ("\xff\xd8\xff", "\x89PNG\r\n\x1a\n", "GIF89a", "BM", "RIFF\0\0\0\0WEBP")


@pytest.mark.parametrize(
    "head", [*HEADS, *(head[:-1] for head in HEADS), "", "RIFF\0\0\0\0WAVE", "II*\0"]
)
def test_the_format_that_selects_a_graph_is_that_of_all_formats(head):
    data = head.encode("latin-1") + b"\0"
    of_kind = {k: lambda k=k: tf.constant(k) for k in formats._SIGNATURES}
    try:
        expected = formats.by_format(tf.constant(data), **of_kind).numpy().decode()
    except tf.errors.InvalidArgumentError:
        expected = None
    assert formats.format_of(data) == expected


def test_files_as_python_bytes_are_not_traced_each(photograph):
    traced, photograph = [], photograph.copy()
    for pixel in range(3):
        photograph[0, 0] = pixel
        data = encode(Image.fromarray(photograph), "BMP")
        np.testing.assert_array_equal(decoding.decode_image(data), photograph)
        assert formats.count_pixels(data) == 80 * 130
        decoding.decode_and_crop(data, lambda _: [0, 0, 1, 1])
        functions = (bmp.decode_bmp, bmp.bmp_pixels)
        traced.append([f.experimental_get_tracing_count() for f in functions])
    assert traced[0] == traced[2]
