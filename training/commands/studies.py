"""`keras-vit compare`, `study` and `baselines`: many recipes at once."""

import argparse
from pathlib import Path

from keras_vit.common.command_line import Parser

from ..engine import early_checks, run_folder
from ..engine.tpu_runtime import set_variables
from ..errors import require
from ..flags import add_recipe, parse_flags, recipe_of, recipe_values
from ..recipe import Recipe
from ..recipes import named_recipe
from ..studies.study import part_of, study_folder
from ..studies.study_files import list_studies, load_study
from .command import RUNS, Command, import_keras


def _add_recipe_flags(parser: Parser) -> None:
    """Add every value of a recipe, as text, for commands of many recipes."""
    for path in recipe_values():
        parser.add_argument(f"--{path}", help=argparse.SUPPRESS)


def _recipe_flags(options: argparse.Namespace) -> dict[str, str]:
    """The given ones of `_add_recipe_flags`, by their dotted paths."""
    values = {path: getattr(options, path) for path in recipe_values()}
    return {path: value for path, value in values.items() if value is not None}


def _add_compare(parser: Parser) -> None:
    parser.add_argument("recipes", nargs="+", help="names of recipes")
    parser.add_argument(
        "--output_dir", default=f"{RUNS}/compare", help="folder of the runs"
    )
    _add_recipe_flags(parser)


def _compared_recipes(options: argparse.Namespace) -> list[Recipe]:
    flags = [f"--{path}={value}" for path, value in _recipe_flags(options).items()]
    parser = Parser()
    add_recipe(parser)
    return [
        recipe_of(parse_flags(parser, ["--recipe", name, *flags]))
        for name in options.recipes
    ]


def _check_compare(options: argparse.Namespace) -> None:
    """Not the images of finished runs, which are only read from their folders."""
    run_folder.check_writable(options.output_dir)
    for recipe in _compared_recipes(options):
        if not run_folder.is_finished(Path(options.output_dir) / recipe.name):
            early_checks.check_recipe(recipe)
            set_variables(recipe.strategy, recipe.tpu)


def _run_compare(options: argparse.Namespace) -> None:
    from ..studies.compare import compare

    compare(_compared_recipes(options), Path(options.output_dir))


compare = Command(
    "compare",
    _add_compare,
    _run_compare,
    _check_compare,
    description="Train recipes on the same images and compare them in one table. "
    "Every flag of a recipe, such as --data.source, applies to all of them",
)


def _add_study(parser: Parser) -> None:
    parser.add_argument(
        "study",
        nargs="?",
        help="name of a study, or the path of its file; without, all are listed",
    )
    parser.add_argument(
        "--small", action="store_true", help="the form that runs in minutes on a CPU"
    )
    parser.add_argument("--rows", help="only these rows, or values of an axis: a,b,c")
    parser.add_argument(
        "--part",
        help="N/M: the part N of M of the runs, to divide them over machines; then "
        "copy the folders together and run the command once more without it",
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="print the runs with their parameters, FLOPs and hours",
    )
    parser.add_argument("--device", help="of the hours of --dry_run (default: H100)")
    parser.add_argument(
        "--utilization",
        type=float,
        help="share of the device's peak, for the hours of --dry_run (default: 0.4)",
    )
    parser.add_argument(
        "--draw", action="store_true", help="only draw the finished runs again"
    )
    parser.add_argument(
        "--output_dir",
        help="folder of the runs (default: runs/studies/NAME, or NAME-small)",
    )
    _add_recipe_flags(parser)


def _check_study(options: argparse.Namespace) -> None:
    """Not the images of finished runs, which are only read from their folders."""
    for flag in ("device", "utilization"):
        given = getattr(options, flag)
        wanted = "left out without --dry_run, whose hours it is for"
        require(options.dry_run or given is None, f"--{flag}", wanted, given)
    share = options.utilization
    require(share is None or 0 <= share <= 1, "--utilization", "in [0, 1]", share)
    if options.study is None:
        return
    flags = _recipe_flags(options)
    study = load_study(options.study, options.small, flags, _rows(options))
    runs = part_of(study, options.part)
    if options.draw or options.dry_run:
        return
    folder = study_folder(study, options.output_dir)
    run_folder.check_writable(folder)
    unfinished = [run for run in runs if not run_folder.is_finished(folder / run.name)]
    for run in unfinished:
        set_variables(run.row.recipe.strategy, run.row.recipe.tpu)
    data = [run.row.recipe.data for run in unfinished]
    for source in dict.fromkeys((each.source, each.on_bad_image) for each in data):
        early_checks.check_source(*source)


def _rows(options: argparse.Namespace) -> list[str]:
    return options.rows.split(",") if options.rows else []


def _estimate(options: argparse.Namespace) -> tuple[str, float]:
    """The device of the hours, and the share of its peak."""
    share = options.utilization
    return options.device or "H100", 0.4 if share is None else share


def _run_study(options: argparse.Namespace) -> None:
    if options.study is None:
        list_studies()
        return
    import_keras()
    from ..studies.study_command import run_command

    run_command(
        options.study,
        options.small,
        _recipe_flags(options),
        rows=_rows(options),
        part=options.part,
        dry_run=_estimate(options) if options.dry_run else None,
        draw=options.draw,
        output_dir=options.output_dir,
    )


study = Command(
    "study",
    _add_study,
    _run_study,
    _check_study,
    needs_keras=False,  # to list the studies
    description="Run one of the paper's experiments: every run in a folder of its "
    "own, which is reused where it is finished and resumed where it is not; then a "
    "table and a figure. Every flag of a recipe, such as --data.source and "
    "--precision, applies to all runs",
)


def _add_baselines(parser: Parser) -> None:
    parser.add_argument("--recipe", default="digits", help="name of the recipe")
    parser.add_argument("--runs", default=str(RUNS), help="folder of the runs")


def _check_baselines(options: argparse.Namespace) -> None:
    early_checks.check_recipe(named_recipe(options.recipe))


def _run_baselines(options: argparse.Namespace) -> None:
    from ..studies.baselines import print_comparison

    print_comparison(named_recipe(options.recipe), Path(options.runs))


baselines = Command("baselines", _add_baselines, _run_baselines, _check_baselines)
