"""The command line of training; imports TensorFlow only once the flags are right."""

import dataclasses
import sys
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from jsonargparse import ActionConfigFile, ArgumentParser, Namespace

from .errors import RecipeError, RunError
from .recipe import DataConfig, Recipe, load_recipe, recipe_files, recipe_path

RUNS = Path("runs")


class RecipeOrConfig(ActionConfigFile):
    """`--config FILE`, or `--recipe NAME` for a file of this project."""

    def __call__(self, parser, cfg, values, option_string=None):
        """Reads the file into the arguments."""
        if option_string == "--recipe":
            values = str(recipe_path(values))
        super().__call__(parser, cfg, values, option_string)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command.

    Args:
        arguments: Words of the command line; those of the process when absent.

    Raises:
        TrainingError: A mistake of the user's, in one line.
    """
    parser = _parser()
    try:
        options = parser.parse_args(arguments)
        options = parser.instantiate(options)
    except (ArgumentError, TypeError) as error:
        raise RecipeError(" ".join(str(error).split())) from None
    command: Callable[[Namespace], None] = COMMANDS[options.subcommand]
    command(options[options.subcommand])


def _new_parser(**kwargs) -> ArgumentParser:
    # No abbreviations: a misspelt flag must not pass for a shortened one.
    return ArgumentParser(exit_on_error=False, allow_abbrev=False, **kwargs)


def _parser() -> ArgumentParser:
    parser = _new_parser(
        prog="python -m training",
        description="Trains and evaluates Vision Transformers.",
    )
    commands = parser.add_subcommands()
    commands.add_subcommand("fit", _fit_parser(), help="train a model")
    commands.add_subcommand(
        "evaluate", _evaluate_parser(), help="test a model on labelled images"
    )
    commands.add_subcommand("predict", _predict_parser(), help="classify image files")
    commands.add_subcommand("recipes", _new_parser(), help="list the recipes")
    commands.add_subcommand(
        "baselines",
        _baselines_parser(),
        help="scikit-learn's classifiers on the same images, beside the finished runs",
    )
    return parser


def _fit_parser() -> ArgumentParser:
    parser = _new_parser()
    parser.add_argument(
        "--recipe",
        "--config",
        action=RecipeOrConfig,
        help="name of a recipe (see `recipes`), or --config and the path of one",
    )
    parser.add_class_arguments(Recipe)
    parser.add_argument(
        "--on-bad-image",
        choices=("error", "skip"),
        help="short for --data.on_bad_image",
    )
    parser.add_argument(
        "--output_dir",
        type=Path | None,
        help="the run's folder (default: runs/<name>, or runs/<name>-seed<seed>)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with a stopped run"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="delete the run in the folder first"
    )
    return parser


def _evaluate_parser() -> ArgumentParser:
    parser = _new_parser()
    parser.add_argument("model", type=Path, help="a run's folder or a .keras file")
    parser.add_argument(
        "--split", type=Literal["train", "validation", "test"], default="test"
    )
    parser.add_argument(
        "--source",
        type=str | None,
        help="other images than the run's: of a folder all, or those in test/",
    )
    return parser


def _predict_parser() -> ArgumentParser:
    parser = _new_parser()
    parser.add_argument(
        "images", type=str, nargs="+", help="files, folders or patterns"
    )
    parser.add_argument(
        "--model", type=Path, required=True, help="a .keras file or a run's folder"
    )
    parser.add_argument("--top", type=int, default=1, help="classes for each image")
    return parser


def _baselines_parser() -> ArgumentParser:
    parser = _new_parser()
    parser.add_argument("--recipe", type=str, default="digits")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    return parser


def _fit(options: Namespace) -> None:
    options = options.clone()
    options.pop("recipe", None)
    control = {key: options.pop(key) for key in ("resume", "overwrite")}
    output_dir = options.pop("output_dir")
    on_bad_image = options.pop("on_bad_image")
    recipe = Recipe(**vars(options))
    if on_bad_image is not None:
        data = dataclasses.replace(recipe.data, on_bad_image=on_bad_image)
        recipe = dataclasses.replace(recipe, data=data)

    from .fit import fit

    seeded = f"-seed{recipe.seed}" if recipe.seed else ""
    fit(recipe, output_dir or RUNS / f"{recipe.name}{seeded}", **control)


def _evaluate(options: Namespace) -> None:
    from . import runs
    from .evaluate import evaluate, print_evaluation

    path = runs.model_file(options.model)
    model = runs.load_model(path)
    if options.source is None:
        title, names, split = _run_images(path, options.split, model.channels)
    else:
        title, names, split = _other_images(options.source, model.channels)
    if list(names) != model.class_names:
        raise RunError(
            f"{path}: its classes are not those of the {title}: "
            f"{', '.join(model.class_names)} and {', '.join(names)}"
        )
    print_evaluation(evaluate(model, split).summary(), title)


def _run_images(model_file: Path, part: str, channels: int):
    """A part of the data of the run that a model lies in: title, classes, images."""
    from .data import load_splits

    recipe_file = model_file.parent / "recipe.yaml"
    if not recipe_file.exists():
        raise RunError(
            f"{model_file}: there is no recipe.yaml beside it, so --source is needed"
        )
    config = load_recipe(recipe_file).data
    splits = load_splits(config, channels)
    split = getattr(splits, part)
    if split is None:
        raise RunError(f"{config.source}: no validation images (data.validation is 0)")
    return f"{part} images of {config.source}", splits.class_names, split


def _other_images(name: str, channels: int):
    """A source's test images; of a folder without test/ all: title, classes, images."""
    from .data import load_splits
    from .sources import open_source

    config = DataConfig(name)
    if name.startswith("folder:"):
        source = open_source(config, channels)
        if source.test is None:
            return f"images of {name}", source.class_names, source.train
        return f"test images of {name}", source.class_names, source.test
    splits = load_splits(config, channels)
    return f"test images of {name}", splits.class_names, splits.test


def _predict(options: Namespace) -> None:
    from . import runs
    from .predict import find_images, predict, print_predictions

    files = [file for pattern in options.images for file in find_images(pattern)]
    model = runs.load_model(runs.model_file(options.model))
    answers = predict(model, files, options.top)
    print_predictions(files, answers)
    if None in answers:
        sys.exit(1)


def _recipes(options: Namespace) -> None:
    for path in recipe_files():
        print(f"{path.stem:<16} {load_recipe(path).description}")


def _baselines(options: Namespace) -> None:
    from .baselines import print_comparison

    print_comparison(load_recipe(recipe_path(options.recipe)), options.runs)


COMMANDS = {
    "fit": _fit,
    "evaluate": _evaluate,
    "predict": _predict,
    "recipes": _recipes,
    "baselines": _baselines,
}
