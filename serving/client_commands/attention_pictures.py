"""Pictures of attention: the image as the model saw it beside its heat map."""

import io
import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..client.image_signatures import Attention

# Small images are enlarged up to this side, in pixels.
SIDE = 448
# In pixels; the font is smaller where the title would not fit.
TITLE_HEIGHT = 28
FONT_SIZE = 18
# Black, purple, red, orange, pale yellow: each lighter than the one before.
_COLORS = [(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)]


def draw_attention(attention: Attention, title: str) -> bytes:
    """Draw the image as the model saw it, and beside it the attention map.

    The map is scaled from its smallest value (dark) to its largest (bright), resized to
    the image, and laid over it.

    Raises:
        OSError: `attention.seen` is not an image.
    """
    seen = Image.open(io.BytesIO(attention.seen)).convert("RGB")
    # By a whole number: the pixels that the model got stay visible as such.
    seen = seen.resize(
        [side * max(SIDE // max(seen.size), 1) for side in seen.size],
        Image.Resampling.NEAREST,
    )
    width, height = seen.size
    heat = _heat(attention.rollout, seen.size)
    picture = Image.new("RGB", (2 * width, height + TITLE_HEIGHT), "white")
    picture.paste(seen, (0, 0))
    picture.paste(Image.blend(seen.convert("L").convert("RGB"), heat, 0.6), (width, 0))
    draw = ImageDraw.Draw(picture)
    draw.text((4, height + 4), title, "black", _font(title, 2 * width - 8))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()


def picture_names(paths: Iterable[str]) -> list[str]:
    """Names of pictures made of images: "a/cat.jpg" -> "cat.attention.png".

    Images of the same name in different folders get a number.
    """
    names: dict[str, None] = {}
    for path in paths:
        stem = Path(path).stem
        ends = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
        tries = (f"{stem}{end}.attention.png" for end in ends)
        names[next(name for name in tries if name not in names)] = None
    return list(names)


def _font(text: str, width: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    length = ImageFont.load_default(FONT_SIZE).getlength(text)
    return ImageFont.load_default(FONT_SIZE * min(1.0, width / length))


def _heat(rollout: np.ndarray, size: tuple[int, int]) -> Image.Image:
    low, high = rollout.min(), rollout.max()
    scaled = (rollout - low) / max(high - low, np.finfo("float32").tiny)
    large = Image.fromarray(scaled.astype("float32")).resize(
        size, Image.Resampling.BICUBIC
    )
    anchors = np.linspace(0, 1, len(_COLORS))
    channels = [
        np.interp(np.asarray(large), anchors, channel)
        for channel in zip(*_COLORS, strict=True)
    ]
    return Image.fromarray(np.stack(channels, axis=-1).round().astype("uint8"))
