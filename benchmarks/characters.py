"""Makes a folder of characters as a scanner sees them: letters, or written digits.

    python -m benchmarks.characters FOLDER [--what letters|digits] [--seed 0]
    keras-vit fit --recipe folder_small-gray --data.source folder:FOLDER

Letters are A to Z in matplotlib's fonts, 30 images each in train/, 10 in val/ and 20 in
test/; each part has fonts of its own. Size, position, a slant of up to 12 degrees, ink,
paper, blur and noise are random. Digits are scikit-learn's 1,797 written ones, 8x8
pixels, with the test images of the recipe `digits`.
"""

import argparse
import string
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from training.data.splits import load_splits
from training.recipe import DataConfig

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
    splits = load_splits(
        DataConfig("digits", validation=0.0, split_seed=seed), channels=1
    )
    for part, split in (("train", splits.train), ("test", splits.test)):
        for number in range(len(split)):
            image = Image.fromarray(split.read(number).numpy()[..., 0])
            _save(image, folder, part, str(split.labels[number]), number)


def _save(image: Image.Image, folder: Path, part: str, name: str, number: int) -> None:
    path = folder / part / name / f"{number:04d}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--what", choices=("letters", "digits"), default="letters")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    make = {"letters": make_letters, "digits": make_digits}[args.what]
    make(args.folder, args.seed)


if __name__ == "__main__":
    main()
