"""Image files that announce little and cost much."""

import struct
import zlib

import numpy as np
from image_bytes import image_bytes
from PIL import Image

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")


def encoded(format_, height, width, mode="RGB", **options):
    """A picture from black to white."""
    picture = Image.linear_gradient("L").resize((width, height)).convert(mode)
    return image_bytes(picture, format_, **options)


def scans(data, count, empty=False):
    """A JPEG whose last scan is there `count` times more, or its header is."""
    start = data.rindex(b"\xff\xda")
    last = data[start:-2]
    if empty:
        last = last[: 2 + int.from_bytes(last[2:4], "big")]
    return data[:-2] + last * count + data[-2:]


def scans_of_one_color(data, count):
    """A baseline JPEG with `count` scans of the first color, without data."""
    start = data.rindex(b"\xff\xda")
    return data[:start] + b"\xff\xda\0\x08\1\1\0\0\x3f\0" * count + data[-2:]


def chunk(name, payload):
    check = zlib.crc32(name + payload)
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", check)


def texts(data, count, name=b"zTXt", size=7_900_000, before=b"IDAT"):
    """A PNG with `count` compressed texts."""
    header = {b"zTXt": b"key\0\0", b"iTXt": b"key\0\1\0\0\0"}[name]
    text = chunk(name, header + zlib.compress(b"a" * size))
    start = data.index(before) - 4
    return data[:start] + text * count + data[start:]


def two_frames(marker, data, height, width):
    """A JPEG with a second frame header, of another size."""
    start = data.index(marker)
    frame = data[start : start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")]
    other = frame[:5] + struct.pack(">HH", height, width) + frame[9:]
    return data[:start] + frame + other + data[start + len(frame) :]


def second_header(data, height, width):
    """A PNG with a second header, of another size."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    start = data.index(b"IDAT") - 4
    return data[:start] + header + data[start:]


def on_small_canvas(data):
    """A WebP file whose extended header announces 8 x 8 pixels."""
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + b"\7\0\0\7\0\0" + data[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


def damaged(data, count, seed=0):
    """Copies of a file with random bytes, and parts that are repeated or left out."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        copy = bytearray(data)
        for _ in range(random.integers(1, 6)):
            start = random.integers(2, len(copy))
            kind = random.integers(3)
            part = bytes(copy[start : start + random.integers(1, 60)])
            if kind == 0:
                copy[start] = random.choice([0, 0xFF, random.integers(256)])
            elif kind == 1:
                copy[start:start] = part * int(random.integers(1, 300))
            else:
                del copy[start : start + 3]
        yield bytes(copy)
