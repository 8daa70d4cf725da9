"""`baselines`: scikit-learn's classifiers on a recipe's images, and its runs."""

import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from keras_vit.common.file_names import RECIPE, REPORT
from keras_vit.typing import Array

from ..architectures.recipe_model import make_preprocessing
from ..data.labeled_images import Split
from ..data.pipeline import evaluation_images
from ..data.splits import load_splits
from ..recipe import Recipe, load_recipe

# gamma as in scikit-learn's example "Recognizing hand-written digits", whose pixels
# range from 0 to 16.
CLASSIFIERS = {
    "kNN, k = 3": KNeighborsClassifier(3),
    "SVM, RBF kernel, gamma 0.001": SVC(gamma=0.001),
    "logistic regression": LogisticRegression(max_iter=2000),
    "random forest, 100 trees": RandomForestClassifier(random_state=0),
}
PIXEL_RANGE = 16


Scores = list[tuple[str, float, float]]  # name, accuracy and macro F1


def baseline_scores(recipe: Recipe) -> Scores:
    """Those on the test images of classifiers fitted to all other images."""
    splits = load_splits(recipe.data, recipe.model.channels)
    parts = [part for part in (splits.train, splits.validation) if part is not None]
    pixels = np.concatenate([_pixels(recipe, part) for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    test, wanted = _pixels(recipe, splits.test), splits.test.labels
    rows = []
    for name, classifier in CLASSIFIERS.items():
        predicted = classifier.fit(pixels, labels).predict(test)
        f1 = float(f1_score(wanted, predicted, average="macro"))
        rows.append((name, accuracy_score(wanted, predicted), f1))
    return rows


def _pixels(recipe: Recipe, split: Split) -> Array:
    """The images in the model's size as vectors [n, H * W * C] of 0 to 16."""
    preprocessing = make_preprocessing(recipe.model)
    images = evaluation_images(split, preprocessing)
    return np.round(images.reshape(len(images), -1) * (PIXEL_RANGE / 255), 3)


def run_scores(recipe: Recipe, folder: Path) -> Scores:
    """Those of the finished runs of a recipe's data in a folder, and their mean."""
    rows = []
    for path in sorted(folder.glob(f"*/{REPORT}")):
        if load_recipe(path.with_name(RECIPE)).data == recipe.data:
            report = json.loads(path.read_text("utf-8"))
            rows.append((path.parent.name, report["accuracy"], report["macro_f1"]))
    if len(rows) > 1:
        accuracy, f1 = np.mean([row[1:] for row in rows], axis=0)
        rows.append((f"mean of {len(rows)} runs", float(accuracy), float(f1)))
    return rows


def print_comparison(recipe: Recipe, runs_folder: Path) -> None:
    """Print baselines and runs in one table."""
    table = Table(title=f"Test images of {recipe.data.source}")
    table.add_column("model")
    table.add_column("accuracy", justify="right")
    table.add_column("macro F1", justify="right")
    for rows in (baseline_scores(recipe), run_scores(recipe, runs_folder)):
        for name, accuracy, f1 in rows:
            table.add_row(name, f"{accuracy:.4f}", f"{f1:.4f}")
        table.add_section()
    Console().print(table)
