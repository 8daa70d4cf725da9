"""`keras-vit probe`: a model's frozen features."""

import argparse
import dataclasses
import functools
from pathlib import Path
from typing import Any

from keras_vit.common.command_line import Parser, positive_integer, positive_number

from ..engine import early_checks
from ..engine.tpu_runtime import set_variables
from ..errors import require
from ..flags import add_value
from ..recipe import DataConfig
from ..typed_values import read_flag, typed_fields
from .command import Command, add_devices

DATA = {
    path: kind
    for path, kind, _ in typed_fields(DataConfig, "data.")
    if path != "data.cache_features"
}


def _add_probe(parser: Parser) -> None:
    parser.add_argument(
        "model",
        help="a run's folder, a .keras file, a checkpoint, or published weights such "
        "as B/16:augreg_in21k",
    )
    for path in DATA:
        about = f"as --{path} of fit; default: a run's own"
        add_value(parser, path, DATA[path], about)
    parser.add_argument(
        "--method",
        choices=("fewshot", "linear", "knn"),
        default="fewshot",
        help="least squares on few images, a classifier on all, nearest neighbors",
    )
    _add_fewshot(parser)
    _add_other_methods(parser)
    add_devices(parser)
    parser.add_argument(
        "--cache",
        help="folder of the features (default: ~/.keras/keras_vit/features), or none",
    )
    parser.add_argument("--out", help="also write this JSON file")
    parser.add_argument(
        "--pixels",
        choices=("raw", "normalized"),
        help="what a model reads that does not state it: 0 to 255, or [-1, 1]",
    )


def _add_fewshot(parser: Parser) -> None:
    """Add the flags of least squares on few images; linear has --l2 too."""
    parser.add_argument(
        "--shots",
        type=positive_integer,
        nargs="+",
        help="fewshot: images of each class (default: 1 5 10 25, as far as there are)",
    )
    parser.add_argument(
        "--seeds",
        type=positive_integer,
        default=3,
        help="fewshot: choices of the images",
    )
    parser.add_argument(
        "--l2",
        type=positive_number,
        nargs="+",
        help="fewshot: regularization (default: 1024); linear: candidates for lbfgs",
    )
    parser.add_argument(
        "--whiten",
        type=functools.partial(read_flag, "whiten", bool),
        default=True,
        help="fewshot: standardize the features",
    )
    parser.add_argument(
        "--bias",
        type=float,
        default=100.0,
        help="fewshot: the constant feature, 0 for none",
    )


def _add_other_methods(parser: Parser) -> None:
    """Add the flags of nearest neighbors and of linear classifiers."""
    parser.add_argument(
        "--k",
        type=positive_integer,
        nargs="+",
        help="knn: neighbors (default: 10 20 100 200, as far as there are)",
    )
    parser.add_argument(
        "--optimizer",
        choices=("lbfgs", "adamw"),
        default="lbfgs",
        help="linear: how the classifier is fitted",
    )
    parser.add_argument(
        "--learning_rates",
        type=positive_number,
        nargs="+",
        help="linear: candidates for adamw",
    )


def _data(options: argparse.Namespace) -> dict[str, Any]:
    """The given flags of the data, by the names of `DataConfig`."""
    given = vars(options)
    return {path.partition(".")[2]: given[path] for path in DATA if path in given}


def _check_probe(options: argparse.Namespace) -> None:
    set_variables(options.strategy, options.tpu)
    require(options.bias >= 0, "--bias", "at least 0", options.bias)
    early_checks.check_output("--out", options.out)
    early_checks.check_model(options.model)
    data = early_checks.data_of_run(options.model, _data(options), "--data.source")
    early_checks.check_source(data.source, data.on_bad_image)


def _run_probe(options: argparse.Namespace) -> None:
    from ..evaluation.probe_command import ProbeConfig, probe_file
    from ..probe.feature_cache import default_folder

    names = [field.name for field in dataclasses.fields(ProbeConfig)]
    cache = default_folder() if options.cache is None else Path(options.cache)
    probe_file(
        options.model,
        _data(options),
        ProbeConfig(**{name: getattr(options, name) for name in names}),
        cache=None if options.cache == "none" else cache,
        out=None if options.out is None else Path(options.out),
        pixels=options.pixels,
        strategy=options.strategy,
        tpu=options.tpu,
    )


probe = Command(
    "probe",
    _add_probe,
    _run_probe,
    _check_probe,
    description="Evaluate what a model's classifier reads, by few-shot linear "
    "classifiers, a linear classifier or nearest neighbors",
)
