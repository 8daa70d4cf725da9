"""The command line of training: for each command its flags and what it calls.

TensorFlow is imported only once the flags are known to be right.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_type_hints

from jsonargparse import SUPPRESS, ArgumentParser, Namespace
from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
)

from . import early_checks, storage
from .activity import activity
from .engine import run_folder
from .engine.tpu_runtime import set_variables
from .errors import RecipeError, TrainingError, did_you_mean
from .flags import add_recipe, new_parser, parse_flags, recipe_of, recipe_values
from .prediction_files import check_table, find_images, write_table
from .recipe import DataConfig, Recipe
from .recipes import named_recipe, print_recipes
from .studies.study import part_of, study_folder
from .studies.study_files import list_studies, load_study

RUNS = Path("runs")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command.

    Args:
        arguments: The command line arguments; by default those of the process.

    Raises:
        TrainingError: A user's mistake, in one line.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        raise RecipeError(f"needs a command: {', '.join(COMMANDS)}")
    name, *rest = arguments
    if name in ("-h", "--help"):
        print(_usage())
        return
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or f" There are: {', '.join(COMMANDS)}"
        raise RecipeError(f"no command {name!r}.{hint}")
    command = COMMANDS[name]
    options = parse(name, rest)
    with activity(f"keras-vit {name}", redraw=False):
        if command.check is not None:
            command.check(options)
        if command.needs_keras:
            _import_keras()
        command.run(options)


def _import_keras() -> None:
    """Import Keras and TensorFlow, which takes seconds.

    Raises:
        TrainingError: `KERAS_BACKEND` is not one of the supported backends.
    """
    with activity("starting TensorFlow"):
        try:
            # Imported before Keras, as its error names the supported backends.
            from keras_vit import _backend  # noqa: F401
        except ImportError as error:
            raise TrainingError(str(error)) from None
        from . import evaluate  # noqa: F401  and with it most of what commands import


def parse(name: str, arguments: Sequence[str]) -> Namespace:
    """Parse the flags of a command.

    Raises:
        RecipeError: A flag is unknown, missing or wrong.
    """
    command = COMMANDS[name]
    description = command.description or command.help
    parser = new_parser(
        prog=f"keras-vit {name}",
        description=f"{description[0].upper()}{description[1:]}.",
    )
    command.add_arguments(parser)
    return parse_flags(parser, arguments, name)


def _usage() -> str:
    lines = [f"  {name:12}{command.help}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: keras-vit COMMAND ...", "", *lines])


def _add_fit(parser: ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--on_bad_image",
        choices=("error", "skip"),
        help="short for --data.on_bad_image",
    )
    parser.add_argument(
        "--output_dir",
        type=str | None,
        help="the run's folder (default: runs/NAME, or runs/NAME-seedSEED)",
    )
    parser.add_argument("--resume", action="store_true", help="resume a stopped run")
    parser.add_argument(
        "--overwrite", action="store_true", help="delete the run in the folder first"
    )
    _add_checkpoints(parser)
    parser.add_argument(
        "--profile",
        type=tuple[PositiveInt, PositiveInt] | None,
        help="[first, last]: the steps to profile for TensorBoard",
    )


def _add_checkpoints(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--keep", type=PositiveInt, default=3, help="number of checkpoints to keep"
    )
    parser.add_argument(
        "--checkpoint_every",
        type=PositiveInt | None,
        help="steps between two checkpoints, in addition to those at each epoch's end",
    )


def _new_run(options: Namespace) -> tuple[Recipe, str]:
    """The recipe of `fit` and the run's folder."""
    recipe = recipe_of(options)
    if options.on_bad_image is not None:
        data = dataclasses.replace(recipe.data, on_bad_image=options.on_bad_image)
        recipe = dataclasses.replace(recipe, data=data)
    seeded = f"-seed{recipe.seed}" if recipe.seed else ""
    return recipe, options.output_dir or str(RUNS / f"{recipe.name}{seeded}")


def _check_fit(options: Namespace) -> None:
    recipe, folder = _new_run(options)
    early_checks.check_new_run(recipe, folder, options.resume, options.overwrite)
    set_variables(recipe.strategy, recipe.tpu)


def _run_fit(options: Namespace) -> None:
    from .fit import fit

    fit(
        *_new_run(options),
        options.resume,
        options.overwrite,
        keep=options.keep,
        checkpoint_every=options.checkpoint_every,
        profile=options.profile,
    )


def _add_resume(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=str, help="the run's folder")
    parser.add_argument(
        "--epochs",
        type=PositiveInt | None,
        help="extend the run, also a finished one, to so many epochs; the schedule is "
        "then that of the new length, from the step where the run stands",
    )
    _add_checkpoints(parser)


def _check_resume(options: Namespace) -> None:
    if not storage.is_remote(options.run):
        recipe = run_folder.check_resumable(options.run, options.epochs)
        early_checks.check_recipe(recipe)
        set_variables(recipe.strategy, recipe.tpu)


def _run_resume(options: Namespace) -> None:
    from .resume import resume

    resume(
        options.run,
        None if options.epochs is None else int(options.epochs),
        keep=options.keep,
        checkpoint_every=options.checkpoint_every,
    )


def _add_launch(parser: ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=2, help="number of workers")
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        help="how often to restart all workers, with --resume, after one was killed",
    )
    parser.add_argument(
        "arguments", type=str, nargs="*", help="-- fit or resume, and its flags"
    )


def _run_launch(options: Namespace) -> None:
    from .engine.launch import launch

    sys.exit(launch(options.arguments, options.workers, options.restarts))


def _add_completion(parser: ArgumentParser) -> None:
    """Add what a model that `fit` did not write may lack."""
    parser.add_argument(
        "--class_names",
        type=str | None,
        help="of a model without: a text file with one per line, or a,b,c",
    )
    parser.add_argument(
        "--pixels",
        type=Literal["raw", "normalized"] | None,
        help="what a model reads that does not state it: 0 to 255, or [-1, 1]",
    )


def _add_devices(parser: ArgumentParser) -> None:
    """Add the devices of a command that does not train."""
    parser.add_argument(
        "--strategy",
        type=Literal["auto", "one_device", "mirrored", "fsdp", "tpu"],
        default="auto",
        help="devices to compute on, as in fit; auto: all of this machine",
    )
    parser.add_argument(
        "--tpu", type=str | None, help="name of the TPU, or local on a TPU VM"
    )


def _add_evaluate(parser: ArgumentParser) -> None:
    parser.add_argument("model", type=str, help="a run's folder or a .keras file")
    parser.add_argument(
        "--split",
        type=Literal["train", "validation", "test"],
        default="test",
        help="which images of the run",
    )
    parser.add_argument(
        "--source",
        type=str | None,
        help="use the test images of this source instead of the run's; of a folder "
        "without test/, all images",
    )
    parser.add_argument(
        "--labels",
        type=str | None,
        help="of a model with ImageNet's classes: imagenet, imagenet_v2, real:FILE or "
        "objectnet:FOLDER, as right classes of the images of --source",
    )
    _add_devices(parser)
    _add_completion(parser)


def _check_evaluate(options: Namespace) -> None:
    set_variables(options.strategy, options.tpu)
    if options.labels is not None:
        early_checks.check_source(options.source)
    else:
        early_checks.check_model(options.model)
        data = early_checks.data_of_run(
            options.model, {"source": options.source}, "--source"
        )
        early_checks.check_source(data.source, data.on_bad_image)


def _run_evaluate(options: Namespace) -> None:
    if options.labels is not None:
        from .label_sets import evaluate_labels

        evaluate_labels(
            options.model,
            options.labels,
            options.source,
            options.pixels,
            strategy=options.strategy,
            tpu=options.tpu,
        )
        return
    from .evaluate import evaluate_file

    evaluate_file(
        Path(options.model),
        options.split,
        options.source,
        options.class_names,
        options.pixels,
        strategy=options.strategy,
        tpu=options.tpu,
    )


def _add_probe(parser: ArgumentParser) -> None:
    parser.add_argument(
        "model",
        type=str,
        help="a run's folder, a .keras file, a checkpoint, or published weights such "
        "as B/16:augreg_in21k",
    )
    for name, kind in get_type_hints(DataConfig).items():
        if name == "cache_features":
            continue
        parser.add_argument(
            f"--data.{name}",
            type=kind | None,
            help=f"as --data.{name} of fit; default: a run's own",
        )
    parser.add_argument(
        "--method",
        type=Literal["fewshot", "linear", "knn"],
        default="fewshot",
        help="least squares on few images, a classifier on all, nearest neighbors",
    )
    parser.add_argument(
        "--shots",
        type=PositiveInt,
        nargs="+",
        help="fewshot: images of each class (default: 1 5 10 25, as far as there are)",
    )
    parser.add_argument(
        "--seeds", type=PositiveInt, default=3, help="fewshot: choices of the images"
    )
    parser.add_argument(
        "--l2",
        type=PositiveFloat,
        nargs="+",
        help="fewshot: regularization (default: 1024); linear: candidates for lbfgs",
    )
    parser.add_argument(
        "--whiten", type=bool, default=True, help="fewshot: standardize the features"
    )
    parser.add_argument(
        "--bias",
        type=NonNegativeFloat,
        default=100.0,
        help="fewshot: the constant feature, 0 for none",
    )
    parser.add_argument(
        "--k",
        type=PositiveInt,
        nargs="+",
        help="knn: neighbors (default: 10 20 100 200, as far as there are)",
    )
    parser.add_argument(
        "--optimizer",
        type=Literal["lbfgs", "adamw"],
        default="lbfgs",
        help="linear: how the classifier is fitted",
    )
    parser.add_argument(
        "--learning_rates",
        type=PositiveFloat,
        nargs="+",
        help="linear: candidates for adamw",
    )
    _add_devices(parser)
    parser.add_argument(
        "--cache",
        type=str | None,
        help="folder of the features (default: ~/.keras/keras_vit/features), or none",
    )
    parser.add_argument("--out", type=str | None, help="also write this JSON file")
    parser.add_argument(
        "--pixels",
        type=Literal["raw", "normalized"] | None,
        help="what a model reads that does not state it: 0 to 255, or [-1, 1]",
    )


def _check_probe(options: Namespace) -> None:
    set_variables(options.strategy, options.tpu)
    early_checks.check_output("--out", options.out)
    early_checks.check_any_model(options.model)
    data = early_checks.data_of_run(options.model, vars(options.data), "--data.source")
    early_checks.check_source(data.source, data.on_bad_image)


def _run_probe(options: Namespace) -> None:
    from .probe.command import ProbeConfig, probe_file
    from .probe.feature_cache import default_folder

    names = [field.name for field in dataclasses.fields(ProbeConfig)]
    cache = default_folder() if options.cache is None else Path(options.cache)
    probe_file(
        options.model,
        vars(options.data),
        ProbeConfig(**{name: options[name] for name in names}),
        cache=None if options.cache == "none" else cache,
        out=None if options.out is None else Path(options.out),
        pixels=options.pixels,
        strategy=options.strategy,
        tpu=options.tpu,
    )


def _add_predict(parser: ArgumentParser) -> None:
    parser.add_argument(
        "images",
        type=str,
        nargs="+",
        help="image files, folders, patterns, or - for a list on standard input",
    )
    parser.add_argument(
        "--model", type=str, required=True, help="a run's folder or a .keras file"
    )
    parser.add_argument(
        "--top", type=PositiveInt, default=1, help="classes for each image"
    )
    parser.add_argument(
        "--out", type=str | None, help="write a table to this file, .csv or .json"
    )
    parser.add_argument(
        "--attention",
        type=str | None,
        help="write pictures of what the model looks at into this folder",
    )
    _add_devices(parser)
    _add_completion(parser)


def _check_predict(options: Namespace) -> None:
    set_variables(options.strategy, options.tpu)
    if options.out is not None:
        check_table(Path(options.out))
    early_checks.check_output("--out", options.out)
    find_images(options.images)
    early_checks.check_model(options.model)


def _run_predict(options: Namespace) -> None:
    from .engine.strategy import evaluation_strategy
    from .predict import predict, print_predictions

    table = None if options.out is None else Path(options.out)
    attention = None if options.attention is None else Path(options.attention)
    files = find_images(options.images)
    path = run_folder.model_file(Path(options.model))
    with evaluation_strategy(options.strategy, options.tpu).scope():
        model = run_folder.load_model(path, options.class_names, options.pixels)
        predictions = predict(model, files, options.top, attention)
    errors = [prediction.error for prediction in predictions if prediction.error]
    for error in errors:
        print(error, file=sys.stderr)
    if table is None:
        print_predictions(predictions)
    else:
        write_table(table, predictions)
        print(f"{table}: {len(files) - len(errors)} images")
    if attention is not None and len(files) > len(errors):
        print(f"{attention}: what the model looks at, by attention rollout")
    if errors:
        sys.exit(1)


def _add_push(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=str, help="the folder of a finished run")
    parser.add_argument("target", type=str, help="hf://owner/name")
    parser.add_argument(
        "--private", action="store_true", help="create a private repository"
    )
    parser.add_argument(
        "--license",
        type=str | None,
        help="of the weights, by the Hub's identifier, such as apache-2.0",
    )
    parser.add_argument(
        "--dry_run", type=str | None, help="write this folder instead of uploading"
    )


def _check_push(options: Namespace) -> None:
    early_checks.check_finished_run(Path(options.run))


def _run_push(options: Namespace) -> None:
    from .push import push

    folder = None if options.dry_run is None else Path(options.dry_run)
    push(Path(options.run), options.target, options.private, options.license, folder)


def _add_recipes(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name", type=str, nargs="?", help="print this recipe with all its values"
    )


def _run_recipes(options: Namespace) -> None:
    if options.name is None:
        print_recipes()
    else:
        print(named_recipe(options.name).to_yaml(), end="")


def _add_recipe_flags(parser: ArgumentParser) -> None:
    """Add every value of a recipe, as text, for commands of many recipes."""
    for path in recipe_values(Recipe):
        parser.add_argument(f"--{path}", type=str, help=SUPPRESS)


def _recipe_flags(options: Namespace) -> dict[str, str]:
    """The given ones of `_add_recipe_flags`, by their dotted paths."""
    flat = vars(options.as_flat())
    values = {path: flat[path] for path in recipe_values(Recipe)}
    return {path: value for path, value in values.items() if value is not None}


def _add_compare(parser: ArgumentParser) -> None:
    parser.add_argument("recipes", type=str, nargs="+", help="names of recipes")
    parser.add_argument(
        "--output_dir", type=str, default=f"{RUNS}/compare", help="folder of the runs"
    )
    _add_recipe_flags(parser)


def _compared_recipes(options: Namespace) -> list[Recipe]:
    flags = [f"--{path}={value}" for path, value in _recipe_flags(options).items()]
    parser = new_parser()
    add_recipe(parser)
    return [
        recipe_of(parse_flags(parser, ["--recipe", name, *flags], "compare"))
        for name in options.recipes
    ]


def _check_compare(options: Namespace) -> None:
    """Not the images of finished runs, which are only read from their folders."""
    run_folder.check_writable(options.output_dir)
    for recipe in _compared_recipes(options):
        if not run_folder.is_finished(Path(options.output_dir) / recipe.name):
            early_checks.check_recipe(recipe)
            set_variables(recipe.strategy, recipe.tpu)


def _run_compare(options: Namespace) -> None:
    from .studies.compare import compare

    compare(_compared_recipes(options), Path(options.output_dir))


def _add_study(parser: ArgumentParser) -> None:
    parser.add_argument(
        "study",
        type=str,
        nargs="?",
        help="name of a study, or the path of its file; without, all are listed",
    )
    parser.add_argument(
        "--small", action="store_true", help="the form that runs in minutes on a CPU"
    )
    parser.add_argument(
        "--rows", type=str, help="only these rows, or values of an axis: a,b,c"
    )
    parser.add_argument(
        "--part",
        type=str | None,
        help="N/M: the part N of M of the runs, to divide them over machines; then "
        "copy the folders together and run the command once more without it",
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="print the runs with their parameters, FLOPs and hours",
    )
    parser.add_argument(
        "--device", type=str, default="H100", help="of the hours of --dry_run"
    )
    parser.add_argument(
        "--utilization",
        type=ClosedUnitInterval,
        default=0.4,
        help="share of the device's peak, for the hours of --dry_run",
    )
    parser.add_argument(
        "--draw", action="store_true", help="only draw the finished runs again"
    )
    parser.add_argument(
        "--output_dir",
        type=str | None,
        help="folder of the runs (default: runs/studies/NAME, or NAME-small)",
    )
    _add_recipe_flags(parser)


def _check_study(options: Namespace) -> None:
    """Not the images of finished runs, which are only read from their folders."""
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


def _rows(options: Namespace) -> list[str]:
    return options.rows.split(",") if options.rows else []


def _run_study(options: Namespace) -> None:
    if options.study is None:
        list_studies()
        return
    _import_keras()
    from .studies.study_command import run_command

    run_command(
        options.study,
        options.small,
        _recipe_flags(options),
        rows=_rows(options),
        part=options.part,
        dry_run=(options.device, options.utilization) if options.dry_run else None,
        draw=options.draw,
        output_dir=options.output_dir,
    )


def _add_data_speed(parser: ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--seconds", type=PositiveFloat, default=3.0, help="duration for each stage"
    )
    parser.add_argument(
        "--json", type=str | None, help="also write the figures to this file"
    )


def _check_data_speed(options: Namespace) -> None:
    early_checks.check_output("--json", options.json)
    early_checks.check_recipe(recipe_of(options))


def _run_data_speed(options: Namespace) -> None:
    from .data.pipeline_speed import data_speed

    file = None if options.json is None else Path(options.json)
    data_speed(recipe_of(options), options.seconds, file)


def _add_tpu_check(parser: ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--topology",
        type=str,
        nargs="+",
        default=["v5e:2x2"],
        help="the kind and shape of one or more TPUs",
    )


def _run_tpu_check(options: Namespace) -> None:
    from .engine.tpu_check import tpu_check

    tpu_check(recipe_of(options), options.topology)


def _add_baselines(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--recipe", type=str, default="digits", help="name of the recipe"
    )
    parser.add_argument(
        "--runs", type=str, default=str(RUNS), help="folder of the runs"
    )


def _check_baselines(options: Namespace) -> None:
    early_checks.check_recipe(named_recipe(options.recipe))


def _run_baselines(options: Namespace) -> None:
    from .studies.baselines import print_comparison

    print_comparison(named_recipe(options.recipe), Path(options.runs))


class Command(NamedTuple):
    """A command of training.

    Args:
        help: One line for `keras-vit --help`.
        add_arguments: Adds its flags to a parser.
        run: Runs it with the parsed flags.
        check: Refuses what is wrong before Keras is imported, which takes seconds.
        needs_keras: Whether Keras and TensorFlow are imported before `run`.
        description: What its own `--help` says, where that is more than `help`.
    """

    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], None]
    check: Callable[[Namespace], None] | None = None
    needs_keras: bool = True
    description: str = ""


COMMANDS = {
    "fit": Command("train a model", _add_fit, _run_fit, _check_fit),
    "resume": Command(
        "continue or extend a run", _add_resume, _run_resume, _check_resume
    ),
    "launch": Command(
        "train with several workers on this machine",
        _add_launch,
        _run_launch,
        needs_keras=False,
        description="Start all workers of a run on this machine, as in "
        "`keras-vit launch --workers 2 -- fit --recipe digits`",
    ),
    "evaluate": Command(
        "evaluate a model on labeled images",
        _add_evaluate,
        _run_evaluate,
        _check_evaluate,
    ),
    "predict": Command(
        "classify image files", _add_predict, _run_predict, _check_predict
    ),
    "probe": Command(
        "evaluate a model's frozen features",
        _add_probe,
        _run_probe,
        _check_probe,
        description="Evaluate what a model's classifier reads, by few-shot linear "
        "classifiers, a linear classifier or nearest neighbors",
    ),
    "push": Command(
        "share a finished run on Hugging Face",
        _add_push,
        _run_push,
        _check_push,
        description="Upload the model of a finished run to Hugging Face, with a model "
        "card, pictures and, where it can compute the model, timm's or transformers' "
        "files",
    ),
    "recipes": Command(
        "list the recipes, or print one", _add_recipes, _run_recipes, needs_keras=False
    ),
    "compare": Command(
        "train recipes on the same images",
        _add_compare,
        _run_compare,
        _check_compare,
        description="Train recipes on the same images and compare them in one table. "
        "Every flag of a recipe, such as --data.source, applies to all of them",
    ),
    "study": Command(
        "run one of the paper's experiments",
        _add_study,
        _run_study,
        _check_study,
        needs_keras=False,  # to list the studies
        description="Run one of the paper's experiments: every run in a folder of its "
        "own, which is reused where it is finished and resumed where it is not; then a "
        "table and a figure. Every flag of a recipe, such as --data.source and "
        "--precision, applies to all runs",
    ),
    "data-speed": Command(
        "measure a recipe's input pipeline",
        _add_data_speed,
        _run_data_speed,
        _check_data_speed,
    ),
    "tpu-check": Command(
        "check, without a TPU, that a recipe runs on one",
        _add_tpu_check,
        _run_tpu_check,
    ),
    "baselines": Command(
        "compare finished runs with scikit-learn",
        _add_baselines,
        _run_baselines,
        _check_baselines,
    ),
}
