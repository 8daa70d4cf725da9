"""Files that announce few pixels, or few bytes, and cost much memory or time."""

import json
import os
import pathlib
import subprocess
import sys

import hostile_images
import numpy as np
import pytest
import tensorflow as tf
from hostile_images import FORMATS, encoded, scans, scans_of_one_color, texts

from keras_vit import decoding

PROGRESSIVE = encoded("JPEG", 24, 40, progressive=True)  # 10 scans
BASELINE, PNG = encoded("JPEG", 24, 40), encoded("PNG", 24, 40)
SCANS = "A JPEG file must have at most 64 scans. Received:] [65] [or more]"
TEXTS = "A PNG file must have at most 16 chunks of text (zTXt, iTXt). Received:] [17]"
REFUSED = {
    "repeated scans": (scans(PROGRESSIVE, 55), SCANS),
    "empty scans": (scans(PROGRESSIVE, 55, empty=True), SCANS),
    "scans behind a filling byte": (
        scans(PROGRESSIVE, 55).replace(b"\xff\xda", b"\xff\xff\xda"),
        SCANS,
    ),
    "scans of a baseline JPEG": (scans_of_one_color(BASELINE, 65), SCANS),
    "countless scans": (scans(PROGRESSIVE, 10**5, empty=True), SCANS),
    "compressed texts": (texts(PNG, 17, size=99), TEXTS),
    "international texts": (texts(PNG, 17, b"iTXt", size=99), TEXTS),
    "texts behind the pixels": (texts(PNG, 17, size=99, before=b"IEND"), TEXTS),
}


FILE = [tf.TensorSpec([], tf.string)]
decode = tf.function(decoding.decode_image, input_signature=FILE, autograph=False)


@tf.function(input_signature=FILE, autograph=False)
def decode_corner(data):
    return decoding.decode_and_crop(data, lambda _: tf.constant([0, 0, 3, 5]))


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED)
def test_too_many_scans_or_texts_are_refused_in_words(data, message):
    for function in (decode, decode_corner):
        with pytest.raises(tf.errors.InvalidArgumentError) as refused:
            function(data)
        assert message in refused.value.message


@pytest.mark.parametrize(
    ("data", "plain"),
    [
        (scans(PROGRESSIVE, 54, empty=True), PROGRESSIVE),
        (texts(PNG, 16), PNG),
    ],
    ids=["scans", "texts"],
)
def test_as_many_as_allowed_are_decoded(data, plain):
    np.testing.assert_array_equal(decode(data), decode(plain))


def test_scans_of_another_length_are_refused_by_the_decoder():
    """So that counting those whose length is 8 to 14 counts all."""
    for length in (b"\1\x08", b"\xff\xff", b"\1\0"):
        data = scans_of_one_color(BASELINE, 1).replace(
            b"\xff\xda\0\x08", b"\xff\xda" + length
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match="Invalid JPEG"):
            decode(data)


@pytest.mark.parametrize(
    "data",
    [
        hostile_images.two_frames(b"\xff\xc2", PROGRESSIVE, 6000, 6600),
        hostile_images.second_header(PNG, 6000, 6600),
        hostile_images.on_small_canvas(encoded("WEBP", 24, 40)),
        hostile_images.on_small_canvas(encoded("WEBP", 24, 40, lossless=True)),
    ],
    ids=["JPEG", "PNG", "lossy WebP", "lossless WebP"],
)
def test_two_headers_that_differ_are_refused(data):
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode(data)


SIDES = 4000, 5000
MEGABYTES = 60  # of 20 million pixels


def decoded(folder, pixels):
    """Decode the files of a folder in a process of their own: [name, s, MiB, error]."""
    script = pathlib.Path(hostile_images.__file__).with_name("decode_files.py")
    result = subprocess.run(
        [sys.executable, script, folder, str(pixels)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.slow
def test_hostile_files_take_no_more_than_the_largest_plain_one(tmp_path):
    """Without the limits 700 MiB more, and more than twice the time."""
    progressive = encoded("JPEG", *SIDES, progressive=True)
    plain = {f: encoded(f, *SIDES) for f in FORMATS} | {"progressive": progressive}
    small = encoded("PNG", 8, 8)
    hostile = {
        "scans": scans(progressive, 400),
        "empty scans": scans(progressive, 1000, empty=True),
        "baseline scans": scans_of_one_color(plain["JPEG"], 2000),
        "texts": texts(small, 100),
        "international texts": texts(small, 100, b"iTXt"),
        "texts behind the pixels": texts(small, 100, before=b"IEND"),
        "BMP of 1 bit": encoded("BMP", *SIDES, mode="1"),
    }
    for name, data in plain.items():
        (tmp_path / f"1 {name}").write_bytes(data)
    for name, data in hostile.items():
        (tmp_path / f"2 {name}").write_bytes(data)
    rows = decoded(tmp_path, SIDES[0] * SIDES[1])
    usual, others = rows[: len(plain)], rows[len(plain) :]
    assert [error for *_, error in usual] == [""] * len(plain)
    peak = usual[-1][2]
    slowest = max(seconds for _, seconds, *_ in usual)
    for name, seconds, memory, _ in others:
        assert memory < peak + 2 * MEGABYTES, name
        assert seconds < slowest, name


@pytest.mark.slow
def test_damaged_files_of_every_format_are_decoded_or_refused(tmp_path):
    count, options = 200, {"JPEG": {"progressive": True}}
    for format_ in FORMATS:
        data = encoded(format_, 24, 40, **options.get(format_, {}))
        for index, copy in enumerate(hostile_images.damaged(data, count)):
            (tmp_path / f"{format_} {index}").write_bytes(copy)
        (tmp_path / f" {format_}").write_bytes(data)
    rows = decoded(tmp_path, 10**6)
    assert len(rows) == (count + 1) * len(FORMATS)
    usual, others = rows[: len(FORMATS)], rows[len(FORMATS) :]
    refused = sum(bool(error) for *_, error in others)
    assert 0 < refused < len(others)
    assert others[-1][2] < usual[-1][2] + 2 * MEGABYTES
