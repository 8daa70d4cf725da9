"""Make a folder of images to train on: letters, written digits, shapes, or crops.

    python docs/experiments/images.py FOLDER [--what letters|...] [--seed 0]
    keras-vit fit --recipe folder_small-gray --data.source folder:FOLDER

Letters are A to Z in matplotlib's fonts, 30 images each in train/, 10 in val/ and 20 in
test/; each part has fonts of its own. Size, position, a slant of up to 12 degrees, ink,
paper, blur and noise are random. Digits are scikit-learn's 1,797 written ones, 8x8
pixels, with the test images of the recipe `digits`.

Strokes are made-up handwriting in the form of MNIST: digits of 28x28 pixels, white on
black, 4,000 for training and 1,000 for the test. Each is one of a few ways of writing
it, whose points, slant, proportions, size, rotation, pen and background vary.

Shapes are circles, squares, stars and triangles, 60 images of each in train/ and 100 in
test/. Color, size, position and a rotation of up to 17 degrees are random: only the
outline tells the class. They are for the recipe `folder_small`, as are the crops: 600
JPEGs of three photographs, scikit-learn's two and matplotlib's one, whose names are the
classes. Those in test/ come from other parts of the pictures than those in train/.
"""

import argparse
import math
import string
from pathlib import Path

import matplotlib.cbook
import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from sklearn.datasets import load_sample_image

DRAWN = {"train": 30, "val": 10, "test": 20}  # of each letter
SIDE = 64
FONTS = {
    "train": (
        "DejaVuSans",
        "DejaVuSerif",
        "DejaVuSansMono-Bold",
        "STIXGeneral",
        "cmss10",
    ),
    "val": ("DejaVuSerif-Bold", "STIXGeneralItalic", "cmr10"),
    "test": (
        "DejaVuSans-BoldOblique",
        "DejaVuSerif-Italic",
        "STIXGeneralBol",
        "cmtt10",
    ),
}

SHAPES = {"train": 60, "test": 100}  # of each shape
SHAPE_SIDE, SHAPE_SCALE = 96, 4  # drawn larger, then reduced: smooth outlines
LEAST_CONTRAST = 100  # of a color to white paper, as a distance in RGB
# Corners on a circle, the radius of the corners between them, and the upright angle.
CORNERS = {
    "circle": (90, None, 0.0),
    "square": (4, None, math.pi / 4),
    "star": (5, 0.45, -math.pi / 2),
    "triangle": (3, None, -math.pi / 2),
}

CROPS = {"train": 150, "test": 50}  # of each picture
SIDES = (80, 128)
# Each picture is cut into cells, and no crop crosses a border; these are for the test.
ROWS, COLUMNS = 3, 4
TEST_CELLS = {(0, 1), (1, 3), (2, 0)}
QUALITY = 92

WRITTEN = {"train": 400, "test": 100}  # of each digit
WRITTEN_SIDE, FINER = 28, 4  # pixels; how much finer strokes are drawn
BOX = 20  # pixels, of MNIST's digits
JITTER, TREMOR = 0.45, 0.15  # standard deviations of a point and of a line
# Ways of writing each digit: strokes through points (x, y), which are 0 to 9 from the
# upper left corner.
WAYS: dict[str, list[list[list[tuple[float, float]]]]] = {
    "0": [
        [[(5, 0), (1, 2), (1, 7), (4, 9), (8, 7), (8, 2), (5, 0)]],
        [[(6, 1), (3, 0), (1, 4), (3, 9), (7, 8), (8, 4), (6, 1), (4, 1)]],
    ],
    "1": [
        [[(5, 0), (5, 3), (4, 6), (4, 9)]],
        [[(2, 3), (5, 0), (5, 4), (5, 9)]],
        [[(3, 2), (5, 0), (5, 5), (5, 9)], [(2, 9), (5, 9), (8, 9)]],
    ],
    "2": [
        [[(1, 2), (4, 0), (7, 2), (6, 5), (1, 9), (5, 9), (8, 9)]],
        [[(2, 2), (5, 0), (7, 3), (3, 8), (1, 8), (3, 7), (6, 9), (8, 8)]],
    ],
    "3": [
        [[(1, 1), (5, 0), (7, 2), (4, 4), (8, 6), (6, 9), (1, 8)]],
        [[(1, 0), (7, 0), (4, 4), (7, 6), (5, 9), (1, 8)]],
    ],
    "4": [
        [[(2, 0), (1, 5), (4, 5), (8, 5)], [(6, 1), (6, 5), (6, 9)]],
        [[(6, 9), (6, 5), (6, 0), (1, 6), (5, 6), (8, 6)]],
    ],
    "5": [
        [[(7, 0), (2, 0), (2, 4), (6, 4), (7, 7), (4, 9), (1, 8)]],
        [[(3, 0), (2, 4), (6, 5), (6, 8), (1, 9)], [(3, 0), (6, 0), (8, 0)]],
    ],
    "6": [
        [[(6, 0), (2, 3), (1, 7), (4, 9), (7, 7), (5, 5), (2, 7)]],
        [[(4, 0), (2, 5), (3, 9), (7, 8), (6, 5), (2, 6)]],
    ],
    "7": [
        [[(1, 1), (4, 1), (8, 0), (6, 4), (4, 9)]],
        [[(1, 0), (7, 0), (5, 5), (4, 9)], [(3, 5), (5, 5), (7, 5)]],
    ],
    "8": [
        [[(7, 1), (4, 0), (2, 2), (7, 6), (5, 9), (2, 7), (6, 3), (7, 1)]],
        [[(5, 4), (2, 2), (5, 0), (7, 2), (5, 4), (2, 7), (5, 9), (7, 7), (5, 4)]],
    ],
    "9": [
        [[(7, 2), (4, 0), (2, 3), (5, 5), (7, 2), (7, 6), (6, 9)]],
        [[(7, 1), (3, 1), (3, 4), (7, 3), (7, 1), (5, 9)]],
    ],
}


def draw(letter: str, part: str, random: np.random.Generator) -> Image.Image:
    """A letter in one of the part's fonts, 8-bit gray."""
    fonts = Path(matplotlib.get_data_path(), "fonts", "ttf")
    name = f"{random.choice(FONTS[part])}.ttf"
    font = ImageFont.truetype(fonts / name, int(random.integers(30, 53)))
    image = Image.new("L", (SIDE, SIDE))
    place = tuple(SIDE / 2 + random.uniform(-7, 7, 2))
    ImageDraw.Draw(image).text(place, letter, 255, font, anchor="mm")
    image = image.rotate(random.uniform(-12, 12), Image.Resampling.BICUBIC)
    image = image.filter(ImageFilter.GaussianBlur(random.uniform(0, 1.2)))
    paper, ink = random.uniform(190, 255), random.uniform(0, 110)
    pixels = paper + (ink - paper) * np.asarray(image) / 255
    pixels += random.normal(0, random.uniform(0, 12), pixels.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def make_letters(folder: Path, seed: int = 0) -> None:
    """Writes FOLDER/PART/LETTER/NUMBER.png."""
    random = np.random.default_rng(seed)
    for letter in string.ascii_uppercase:
        for part, count in DRAWN.items():
            for number in range(count):
                _save(draw(letter, part, random), folder, part, letter, number)


def make_digits(folder: Path, seed: int = 0) -> None:
    """Writes FOLDER/PART/DIGIT/NUMBER.png."""
    # The others do without TensorFlow, whose import takes longer than their work.
    from keras_vit.training.data.splits import load_splits
    from keras_vit.training.recipe import DataConfig

    splits = load_splits(
        DataConfig("digits", validation=0.0, split_seed=seed), channels=1
    )
    for part, split in (("train", splits.train), ("test", splits.test)):
        for number in range(len(split)):
            image = Image.fromarray(split.read(number).numpy()[..., 0])
            _save(image, folder, part, str(split.labels[number]), number)


def write(digit: str, random: np.random.Generator) -> Image.Image:
    """A written digit of 28x28 pixels, 8-bit gray, white on black."""
    ways = WAYS[digit]
    lines = [_wobbly(np.array(way), random) for way in ways[random.integers(len(ways))]]
    turn, slant = random.normal(0, 0.15), random.normal(0.1, 0.25)
    cos, sin = np.cos(turn), np.sin(turn)
    slanted = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, -slant], [0, 1]])
    slanted = slanted * random.uniform([0.65, 0.9], 1.0)
    lines = [line @ slanted.T for line in lines]
    width = random.uniform(1.0, 3.4)
    image = Image.new("L", [WRITTEN_SIDE * FINER] * 2)
    for line in _fitted(lines, BOX - width, random):
        _stroke(ImageDraw.Draw(image), line * FINER, width * FINER)
    image = image.resize([WRITTEN_SIDE] * 2, Image.Resampling.BOX)
    pixels = np.asarray(image) * random.uniform(0.7, 1.1)
    pixels += random.normal(0, 10, pixels.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _wobbly(points: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A smooth line close to the points [n, 2], with a tremor: [12 n - 11, 2]."""
    line = _smooth(points + random.normal(0, JITTER, points.shape))
    knots = random.normal(0, TREMOR, (4 * len(points) - 3, 2))
    places = np.linspace(0, len(knots) - 1, len(line))
    shaky = [np.interp(places, np.arange(len(knots)), axis) for axis in knots.T]
    return line + np.stack(shaky, axis=-1)


def _fitted(lines: list[np.ndarray], box: float, random: np.random.Generator):
    """The lines in a square of `box` pixels, as MNIST's digits, about the center."""
    points = np.concatenate(lines)
    size = box / np.ptp(points, axis=0).max() * random.uniform(0.85, 1.05)
    place = WRITTEN_SIDE / 2 + random.normal(0, 0.7, 2)
    return [(line - points.mean(axis=0)) * size + place for line in lines]


def _stroke(pen: ImageDraw.ImageDraw, line: np.ndarray, width: float) -> None:
    """Draw a line with round ends."""
    pen.line([tuple(point) for point in line], 255, round(width), joint="curve")
    for point in line[[0, -1]]:
        pen.ellipse([*(point - width / 2), *(point + width / 2)], 255)


def _smooth(points: np.ndarray) -> np.ndarray:
    """A Catmull-Rom spline through points [n, 2]: [12 n - 11, 2]."""
    before, after = 2 * points[0] - points[1], 2 * points[-1] - points[-2]
    padded = np.concatenate([[before], points, [after]])
    t = np.linspace(0, 1, 12, endpoint=False)[:, np.newaxis]
    parts = [
        b
        + t
        / 2
        * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * b - 3 * c + d - a)))
        for a, b, c, d in zip(padded, padded[1:], padded[2:], padded[3:], strict=False)
    ]
    return np.concatenate([*parts, points[-1:]])


def make_strokes(folder: Path, seed: int = 0) -> None:
    """Writes FOLDER/PART/DIGIT/NUMBER.png."""
    random = np.random.default_rng(seed)
    for digit in WAYS:
        for part, count in WRITTEN.items():
            for number in range(count):
                _save(write(digit, random), folder, part, digit, number)


def outline(shape: str, radius: float, angle: float) -> np.ndarray:
    """Corners of a shape around the origin, float64 [n, 2]."""
    corners, inner, upright = CORNERS[shape]
    radii = [radius] if inner is None else [radius, inner * radius]
    n = corners * len(radii)
    turns = upright + angle + 2 * math.pi * np.arange(n) / n
    lengths = np.resize(radii, n)
    return np.stack([lengths * np.cos(turns), lengths * np.sin(turns)], axis=1)


def draw_shape(shape: str, random: np.random.Generator) -> Image.Image:
    """A shape of random color, size, place and rotation on white paper."""
    color = np.full(3, 255)
    while np.linalg.norm(255 - color) < LEAST_CONTRAST:
        color = random.integers(0, 256, 3)
    side = SHAPE_SIDE * SHAPE_SCALE
    radius = random.uniform(0.15, 0.4) * side
    center = random.uniform(radius, side - radius, 2)
    points = center + outline(shape, radius, random.uniform(-0.3, 0.3))
    image = Image.new("RGB", (side, side), "white")
    corners = [tuple(point) for point in points.tolist()]
    ImageDraw.Draw(image).polygon(corners, fill=tuple(color.tolist()))
    return image.resize((SHAPE_SIDE, SHAPE_SIDE), Image.Resampling.BOX)


def make_shapes(folder: Path, seed: int = 0) -> None:
    """Writes FOLDER/PART/SHAPE/NUMBER.png."""
    random = np.random.default_rng(seed)
    for shape in CORNERS:
        for part, count in SHAPES.items():
            for number in range(count):
                _save(draw_shape(shape, random), folder, part, shape, number)


def photographs() -> dict[str, np.ndarray]:
    """uint8 [h, w, 3] by name."""
    path = matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
    portrait = np.asarray(Image.open(str(path)).convert("RGB"))
    return {
        "china": load_sample_image("china.jpg"),
        "flower": load_sample_image("flower.jpg"),
        "portrait": portrait,
    }


def cells(picture: np.ndarray) -> dict[str, list[np.ndarray]]:
    """The pieces of a picture, for training and for the test."""
    parts: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for row, band in enumerate(np.array_split(picture, ROWS, axis=0)):
        for column, cell in enumerate(np.array_split(band, COLUMNS, axis=1)):
            part = "test" if (row, column) in TEST_CELLS else "train"
            parts[part].append(cell)
    return parts


def crop(cell: np.ndarray, random: np.random.Generator) -> Image.Image:
    """A square part of a cell."""
    side = random.integers(SIDES[0], min(SIDES[1], *cell.shape[:2]) + 1)
    top = random.integers(0, cell.shape[0] - side + 1)
    left = random.integers(0, cell.shape[1] - side + 1)
    return Image.fromarray(cell[top : top + side, left : left + side])


def make_crops(folder: Path, seed: int = 0) -> None:
    """Writes FOLDER/train/CLASS/NUMBER.jpg and FOLDER/test/CLASS/NUMBER.jpg."""
    random = np.random.default_rng(seed)
    for name, picture in photographs().items():
        for part, pieces in cells(picture).items():
            target = folder / part / name
            target.mkdir(parents=True, exist_ok=True)
            for number in range(CROPS[part]):
                image = crop(pieces[number % len(pieces)], random)
                image.save(target / f"{number:03d}.jpg", quality=QUALITY)


def _save(image: Image.Image, folder: Path, part: str, name: str, number: int) -> None:
    path = folder / part / name / f"{number:04d}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


MAKERS = {
    "letters": make_letters,
    "digits": make_digits,
    "strokes": make_strokes,
    "shapes": make_shapes,
    "crops": make_crops,
}


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--what", choices=tuple(MAKERS), default="letters")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    MAKERS[args.what](args.folder, args.seed)


if __name__ == "__main__":
    main()
