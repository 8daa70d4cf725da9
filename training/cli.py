"""The command line of training; imports TensorFlow only once the flags are right."""

import dataclasses
import sys
import textwrap
from argparse import SUPPRESS, ArgumentError
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from jsonargparse import ActionConfigFile, ArgumentParser, Namespace
from jsonargparse.typing import PositiveFloat, PositiveInt

from .errors import RecipeError, RunError
from .recipe import DataConfig, Recipe, load_recipe
from .recipes import named_recipe, recipe_files, recipe_yaml, recipes_of_file

RUNS = Path("runs")


class RecipeOrConfig(ActionConfigFile):
    """`--config FILE`, or `--recipe NAME` for a file of this project."""

    def __call__(self, parser, cfg, values, option_string=None):
        """Reads the file into the arguments."""
        if option_string == "--recipe":
            values = recipe_yaml(values)
        super().__call__(parser, cfg, values, option_string)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command.

    Args:
        arguments: Words of the command line; those of the process when absent.

    Raises:
        TrainingError: A mistake of the user's, in one line.
    """
    options = _parse(_parser(), arguments)
    command: Callable[[Namespace], None] = COMMANDS[options.subcommand]
    command(options[options.subcommand])


def _parse(parser: ArgumentParser, arguments: Sequence[str] | None) -> Namespace:
    try:
        return parser.instantiate(parser.parse_args(arguments))
    except (ArgumentError, TypeError) as error:
        raise RecipeError(" ".join(str(error).split())) from None


def _new_parser(**kwargs) -> ArgumentParser:
    # No abbreviations: a misspelt flag must not pass for a shortened one.
    return ArgumentParser(exit_on_error=False, allow_abbrev=False, **kwargs)


def _new_recipe_parser() -> ArgumentParser:
    """With a recipe's name or file, and a flag for each of its values."""
    parser = _new_parser()
    parser.add_argument(
        "--recipe",
        "--config",
        action=RecipeOrConfig,
        help="name of a recipe (see `recipes`), or --config and the path of one",
    )
    parser.add_class_arguments(Recipe)
    return parser


def _parser() -> ArgumentParser:
    parser = _new_parser(
        prog="python -m training",
        description="Trains and evaluates Vision Transformers.",
    )
    commands = parser.add_subcommands()
    commands.add_subcommand("fit", _fit_parser(), help="train a model")
    commands.add_subcommand(
        "launch", _launch_parser(), help="train with several workers on this machine"
    )
    commands.add_subcommand(
        "evaluate", _evaluate_parser(), help="test a model on labelled images"
    )
    commands.add_subcommand("predict", _predict_parser(), help="classify image files")
    commands.add_subcommand(
        "recipes", _recipes_parser(), help="list the recipes, or print one"
    )
    commands.add_subcommand(
        "compare", _compare_parser(), help="train recipes on the same images"
    )
    commands.add_subcommand(
        "data-speed",
        _data_speed_parser(),
        help="images per second of each stage of a recipe's input pipeline",
    )
    commands.add_subcommand(
        "tpu-check",
        _tpu_check_parser(),
        help="whether a recipe's steps fit a TPU, found out without one",
    )
    commands.add_subcommand(
        "baselines",
        _baselines_parser(),
        help="scikit-learn's classifiers on the same images, beside the finished runs",
    )
    return parser


def _fit_parser() -> ArgumentParser:
    parser = _new_recipe_parser()
    parser.add_argument(
        "--on-bad-image",
        choices=("error", "skip"),
        help="short for --data.on_bad_image",
    )
    parser.add_argument(
        "--output_dir",
        type=str | None,
        help="the run's folder (default: runs/<name>, or runs/<name>-seed<seed>)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with a stopped run"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="delete the run in the folder first"
    )
    parser.add_argument(
        "--keep", type=PositiveInt, default=3, help="how many checkpoints to keep"
    )
    parser.add_argument(
        "--checkpoint_every",
        type=PositiveInt | None,
        help="steps between two checkpoints, beside those at each epoch's end",
    )
    parser.add_argument(
        "--profile",
        type=tuple[PositiveInt, PositiveInt] | None,
        help="[first, last]: the steps to profile for TensorBoard",
    )
    return parser


def _launch_parser() -> ArgumentParser:
    parser = _new_parser(
        description="Starts all workers of a run on this machine: "
        "python -m training launch --workers 2 -- fit --recipe digits",
    )
    parser.add_argument("--workers", type=int, default=2, help="how many")
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        help="how often to start all again, with --resume, after one was killed",
    )
    parser.add_argument("words", type=str, nargs="*", help="-- fit and its options")
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


def _recipes_parser() -> ArgumentParser:
    parser = _new_parser()
    parser.add_argument("name", type=str, nargs="?", help="print all that it says")
    return parser


def _compare_parser() -> ArgumentParser:
    parser = _new_parser(
        description="Trains recipes on the same images and puts them side by side. "
        "Every option of a recipe, such as --data.source, is for all of them.",
    )
    parser.add_argument("recipes", type=str, nargs="+", help="names of recipes")
    parser.add_argument(
        "--output_dir", type=Path, default=RUNS / "compare", help="folder of the runs"
    )
    for option in _recipe_options(Recipe):
        parser.add_argument(f"--{option}", type=str, help=SUPPRESS)
    return parser


def _recipe_options(config: type, prefix: str = "") -> list[str]:
    """What may be said of all recipes: every value but the name, by its path."""
    options = []
    for field in dataclasses.fields(config):
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
            options += _recipe_options(field.type, f"{field.name}.")
        elif field.name != "name" or prefix:
            options.append(f"{prefix}{field.name}")
    return options


def _data_speed_parser() -> ArgumentParser:
    parser = _new_recipe_parser()
    parser.add_argument(
        "--seconds", type=PositiveFloat, default=3.0, help="for each stage"
    )
    parser.add_argument("--json", type=Path | None, help="write the figures there")
    return parser


def _tpu_check_parser() -> ArgumentParser:
    parser = _new_recipe_parser()
    parser.add_argument(
        "--topology", type=str, default="v5e:2x2", help="the TPU's kind and shape"
    )
    return parser


def _baselines_parser() -> ArgumentParser:
    parser = _new_parser()
    parser.add_argument("--recipe", type=str, default="digits")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    return parser


def _fit(options: Namespace) -> None:
    options = options.clone()
    options.pop("recipe", None)
    flags = ("resume", "overwrite", "keep", "checkpoint_every", "profile")
    control = {flag: options.pop(flag) for flag in flags}
    output_dir = options.pop("output_dir")
    on_bad_image = options.pop("on_bad_image")
    recipe = Recipe(**vars(options))
    if on_bad_image is not None:
        data = dataclasses.replace(recipe.data, on_bad_image=on_bad_image)
        recipe = dataclasses.replace(recipe, data=data)

    from .fit import fit

    seeded = f"-seed{recipe.seed}" if recipe.seed else ""
    fit(recipe, output_dir or str(RUNS / f"{recipe.name}{seeded}"), **control)


def _launch(options: Namespace) -> None:
    from .engine.launch import launch

    sys.exit(launch(options.words, options.workers, options.restarts))


def _evaluate(options: Namespace) -> None:
    from .engine import run_folder
    from .evaluate import evaluate, print_evaluation

    path = run_folder.model_file(options.model)
    model = run_folder.load_model(path)
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
    from .data.splits import load_splits

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
    from .data.sources import open_source
    from .data.splits import load_splits

    config = DataConfig(name)
    if name.startswith("folder:"):
        source = open_source(config, channels)
        if source.test is None:
            return f"images of {name}", source.class_names, source.train
        return f"test images of {name}", source.class_names, source.test
    splits = load_splits(config, channels)
    return f"test images of {name}", splits.class_names, splits.test


def _predict(options: Namespace) -> None:
    from .engine import run_folder
    from .predict import find_images, predict, print_predictions

    files = [file for pattern in options.images for file in find_images(pattern)]
    model = run_folder.load_model(run_folder.model_file(options.model))
    answers = predict(model, files, options.top)
    print_predictions(files, answers)
    if None in answers:
        sys.exit(1)


def _recipes(options: Namespace) -> None:
    if options.name is not None:
        print(named_recipe(options.name).to_yaml(), end="")
        return
    for path in recipe_files():
        recipes = recipes_of_file(path)
        print(f"{path.stem:<20} {next(iter(recipes.values()))['description']}")
        if list(recipes) != [path.stem]:
            endings = [name.removeprefix(path.stem) for name in recipes]
            line = textwrap.fill(" ".join(endings), 84, break_on_hyphens=False)
            print(textwrap.indent(line, "    "))
    print("Names have one of the endings below them, if there are any: study-ViTB16")


def _compare(options: Namespace) -> None:
    words = [f"--{option}={value}" for option, value in _said(options)]
    fields = [field.name for field in dataclasses.fields(Recipe)]
    recipes = []
    for name in options.recipes:
        said = _parse(_fit_parser(), ["--recipe", name, *words])
        recipes.append(Recipe(**{field: said[field] for field in fields}))

    from .studies.compare import compare

    compare(recipes, options.output_dir)


def _said(options: Namespace) -> list[tuple[str, str]]:
    """The options of a recipe that are on the command line, and their words."""
    flat = vars(options.as_flat())
    return [(o, flat[o]) for o in _recipe_options(Recipe) if flat[o] is not None]


def _data_speed(options: Namespace) -> None:
    options = options.clone()
    options.pop("recipe", None)
    seconds, file = options.pop("seconds"), options.pop("json")

    from .data.pipeline_speed import data_speed

    data_speed(Recipe(**vars(options)), seconds, file)


def _tpu_check(options: Namespace) -> None:
    options = options.clone()
    options.pop("recipe", None)
    topology = options.pop("topology")

    from .engine.tpu_check import tpu_check

    tpu_check(Recipe(**vars(options)), topology)


def _baselines(options: Namespace) -> None:
    from .studies.baselines import print_comparison

    print_comparison(named_recipe(options.recipe), options.runs)


COMMANDS = {
    "fit": _fit,
    "launch": _launch,
    "evaluate": _evaluate,
    "predict": _predict,
    "recipes": _recipes,
    "compare": _compare,
    "data-speed": _data_speed,
    "tpu-check": _tpu_check,
    "baselines": _baselines,
}
