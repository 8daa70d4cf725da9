"""WebP files with transparency and animation, compared with Pillow."""

import io

import numpy as np
import pytest
import tensorflow as tf
from image_bytes import image_bytes
from PIL import Image

from keras_vit import decoding

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 4), "uint8")
PIXELS[:10, :, 3] = 0


def webp(mode, animated, **options):
    frames = [Image.fromarray(p, "RGBA").convert(mode) for p in (PIXELS, 255 - PIXELS)]
    more = {"save_all": True, "append_images": frames[1:]} if animated else {}
    return image_bytes(frames[0], "WEBP", **more, **options)


@pytest.mark.parametrize(
    "options", [{}, {"lossless": True}, {"lossless": True, "exact": True}]
)
@pytest.mark.parametrize("animated", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_webp_file_is_read_as_pillow_reads_it(mode, animated, options):
    data = webp(mode, animated, **options)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    decoded = decoding.decode_image(tf.constant(data))
    np.testing.assert_array_equal(decoded, expected)


@pytest.mark.parametrize("length", range(8, 40))
def test_a_truncated_webp_file_is_refused_without_its_bytes(tmp_path, length):
    (tmp_path / "a.webp").write_bytes(webp("RGB", animated=True)[:length])
    with pytest.raises(ValueError, match=r"not a readable image: [\x20-\x7e]*$"):
        decoding.load_image(tmp_path / "a.webp")
