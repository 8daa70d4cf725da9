"""`compare`: train recipes on the same images, and compare them in one table."""

import dataclasses
import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from keras_vit.analysis import figures
from keras_vit.common.file_names import RECIPE, REPORT

from ..engine import run_folder
from ..engine.progress import Logs
from ..engine.run_folder import Report
from ..errors import RecipeError, RunError
from ..fitting.finish import versions
from ..fitting.fit import fit
from ..recipe import Recipe, load_recipe
from ..reporting.pictures import save
from ..reporting.report import picture, write_page
from .columns import read_history, read_json
from .study_runs import untrained_scores

COLUMNS = (
    *("recipe", "weights", "accuracy before", "after", "F1 before", "after"),
    *("published", "minutes"),
)


@dataclass(frozen=True)
class Result:
    """The results of one recipe: on the test images, those of the best epoch."""

    name: str
    parameters: int
    # A new classifier is all-zero, so that every image gets the first class.
    accuracy_before: float
    accuracy: float
    macro_f1_before: float
    macro_f1: float
    published_accuracy: float | None
    seconds: float  # of training and validation

    def cells(self) -> list[str]:
        """The row as text, in the order of `COLUMNS`."""
        before = self.accuracy_before, self.accuracy
        scores = (*before, self.macro_f1_before, self.macro_f1, self.published_accuracy)
        return [
            self.name,
            f"{self.parameters / 1e6:.2f}M",
            *("" if score is None else f"{score:.4f}" for score in scores),
            f"{self.seconds / 60:.1f}",
        ]


def compare(recipes: Sequence[Recipe], folder: Path) -> list[Result]:
    """Evaluate, train and evaluate the model of each recipe, one after the other.

    Finished runs in the folder are reused, and an unfinished one is resumed.

    Args:
        recipes: Recipes with the same data and distinct names.
        folder: The folder of the runs, `folder/NAME`, and of comparison.html,
            comparison.json and curves.png.

    Returns:
        One row for each recipe.

    Raises:
        TrainingError: A recipe, its data or its weights are wrong; or the folder
            contains a run of another recipe.
    """
    figures.figure(1, 1)  # report a missing extra before the training, not after
    _check_same_data(recipes)
    for recipe in recipes:
        _check_run(recipe, folder / recipe.name)
    # First, as it finds errors in all recipes before any is trained.
    before = [_before(r, folder / f"{r.name}-before.json") for r in recipes]
    rows = [_row(*pair, folder) for pair in zip(recipes, before, strict=True)]
    histories = {r.name: read_history(folder / r.name) for r in recipes}
    draw_curves(histories, folder / "curves.png")
    _write_results(rows, folder)
    print_rows(rows, f"Test images of {recipes[0].data.source}")
    print(f"all on one page: {folder / 'comparison.html'}")
    return rows


def _check_same_data(recipes: Sequence[Recipe]) -> None:
    first = recipes[0]
    for other in recipes[1:]:
        if other.data != first.data:
            raise RecipeError(
                "the recipes must have the same data (--data.source and other flags "
                f"apply to all). Received: {first.name} with {first.data} and "
                f"{other.name} with {other.data}"
            )
    names = [recipe.name for recipe in recipes]
    if len(set(names)) < len(names):
        raise RecipeError(
            f"the recipes must have different names. Received: {', '.join(names)}"
        )


def _check_run(recipe: Recipe, run: Path) -> None:
    file = run / RECIPE
    if file.exists() and load_recipe(file) != recipe:
        raise RunError(
            f"{run}: contains a run of another recipe; choose another --output_dir"
        )


def _before(recipe: Recipe, file: Path) -> Report:
    """Accuracy and F1 of the untrained model, cached in the file."""
    kept = read_json(file)
    if kept.get("recipe") != recipe.to_yaml():
        kept = {**untrained_scores(recipe), "recipe": recipe.to_yaml()}
        file.parent.mkdir(parents=True, exist_ok=True)
        run_folder.write_report(file, kept)
    return {key: kept[key] for key in ("accuracy", "macro_f1")}


def _row(recipe: Recipe, before: Report, folder: Path) -> Result:
    run = folder / recipe.name
    if not run_folder.is_finished(run):
        fit(recipe, run, resume=True)
        gc.collect()  # two large models at a time need not fit into memory
    report = read_json(run / REPORT)
    keys = ("parameters", "accuracy", "macro_f1", "seconds")
    return Result(
        recipe.name,
        published_accuracy=recipe.published_accuracy,
        **{f"{key}_before": value for key, value in before.items()},
        **{key: report[key] for key in keys},
    )


def draw_curves(histories: dict[str, list[Logs]], path: Path) -> None:
    """Draw loss and accuracy over the epochs, one line for each recipe.

    They are those of the validation images; where a recipe has none, dashed and those
    of the training images. The legend says which.
    """
    figure = figures.figure(11, 4.5)
    for axis, key in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for name, history in histories.items():
            validation = f"val_{key}" in history[0]
            images = "validation" if validation else "training"
            axis.plot(
                [row["epoch"] for row in history],
                [row[f"val_{key}" if validation else key] for row in history],
                linestyle="-" if validation else "--",
                marker="." if len(history) < 10 else "",
                label=f"{name} ({images})",
            )
        axis.set(title=key.capitalize(), xlabel="epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
        axis.legend()
    save(figure, path)


def _write_results(rows: Sequence[Result], folder: Path) -> None:
    names = [row.name for row in rows]
    write_page(
        folder / "comparison.html",
        "comparison.html",
        f"Comparison of {', '.join(names)}",
        versions(),
        columns=COLUMNS,
        rows=[row.cells() for row in rows],
        curves=picture(folder / "curves.png"),
    )
    everything = {"rows": [dataclasses.asdict(row) for row in rows]}
    run_folder.write_report(folder / "comparison.json", everything)


def print_rows(rows: Sequence[Result], title: str) -> None:
    """Print the rows as a table; F1 is the mean of the classes' F1."""
    table = Table(title=title, box=SIMPLE, padding=(0, 0))
    for column in COLUMNS:
        first = column == "recipe"
        table.add_column(column, justify="left" if first else "right", no_wrap=first)
    for row in rows:
        table.add_row(*row.cells())
    Console().print(table)
