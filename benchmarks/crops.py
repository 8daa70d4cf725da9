"""Makes a folder of 600 JPEG crops of three photographs that libraries carry.

    python -m benchmarks.crops FOLDER
    keras-vit fit --recipe folder_small --data.source folder:FOLDER

The photographs are scikit-learn's two and matplotlib's one; their names are the
classes. The crops in test/ come from other parts of the pictures than those in train/.
"""

import argparse
from pathlib import Path

import matplotlib.cbook
import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

CROPS = {"train": 150, "test": 50}  # of each picture
SIDES = (80, 128)
# Each picture is cut into cells, and no crop crosses a border; these are for the test.
ROWS, COLUMNS = 3, 4
TEST_CELLS = {(0, 1), (1, 3), (2, 0)}
QUALITY = 92


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


def make_folder(folder: Path, seed: int = 0) -> None:
    """Writes FOLDER/train/CLASS/NUMBER.jpg and FOLDER/test/CLASS/NUMBER.jpg."""
    random = np.random.default_rng(seed)
    for name, picture in photographs().items():
        for part, pieces in cells(picture).items():
            target = folder / part / name
            target.mkdir(parents=True, exist_ok=True)
            for number in range(CROPS[part]):
                image = crop(pieces[number % len(pieces)], random)
                image.save(target / f"{number:03d}.jpg", quality=QUALITY)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    make_folder(parser.parse_args().folder)


if __name__ == "__main__":
    main()
