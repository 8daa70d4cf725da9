"""Makes a folder of drawn shapes: circles, squares, stars and triangles.

    python -m benchmarks.shapes FOLDER [--seed 0]
    keras-vit fit --recipe folder_small --data.source folder:FOLDER

A class has 60 images in train/ and 100 in test/. Color, size, position and a rotation
of up to 17 degrees are random: only the outline tells the class.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

DRAWN = {"train": 60, "test": 100}  # of each shape
SIDE = 96
SCALE = 4  # drawn larger, then reduced: smooth outlines
LEAST_CONTRAST = 100  # of a color to white paper, as a distance in RGB
# Corners on a circle, the radius of the corners between them, and the upright angle.
CORNERS = {
    "circle": (90, None, 0.0),
    "square": (4, None, math.pi / 4),
    "star": (5, 0.45, -math.pi / 2),
    "triangle": (3, None, -math.pi / 2),
}


def outline(shape: str, radius: float, angle: float) -> np.ndarray:
    """Corners of a shape around the origin, float64 [n, 2]."""
    corners, inner, upright = CORNERS[shape]
    radii = [radius] if inner is None else [radius, inner * radius]
    n = corners * len(radii)
    turns = upright + angle + 2 * math.pi * np.arange(n) / n
    lengths = np.resize(radii, n)
    return np.stack([lengths * np.cos(turns), lengths * np.sin(turns)], axis=1)


def draw(shape: str, random: np.random.Generator) -> Image.Image:
    """A shape of random color, size, place and rotation on white paper."""
    color = np.full(3, 255)
    while np.linalg.norm(255 - color) < LEAST_CONTRAST:
        color = random.integers(0, 256, 3)
    side = SIDE * SCALE
    radius = random.uniform(0.15, 0.4) * side
    center = random.uniform(radius, side - radius, 2)
    points = center + outline(shape, radius, random.uniform(-0.3, 0.3))
    image = Image.new("RGB", (side, side), "white")
    corners = [tuple(point) for point in points.tolist()]
    ImageDraw.Draw(image).polygon(corners, fill=tuple(color.tolist()))
    return image.resize((SIDE, SIDE), Image.Resampling.BOX)


def make_folder(folder: Path, seed: int = 0) -> None:
    """Writes FOLDER/train/CLASS/NUMBER.png and FOLDER/test/CLASS/NUMBER.png."""
    random = np.random.default_rng(seed)
    for shape in CORNERS:
        for part, count in DRAWN.items():
            target = folder / part / shape
            target.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                draw(shape, random).save(target / f"{number:03d}.png")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    make_folder(args.folder, args.seed)


if __name__ == "__main__":
    main()
