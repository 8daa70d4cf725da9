"""`keras-vit predict`: image files to classes."""

import argparse
import sys
from pathlib import Path

from keras_vit.common.command_line import Parser, positive_integer

from ..engine import early_checks
from ..engine.tpu_runtime import set_variables
from ..evaluation.prediction_files import check_table, find_images, write_table
from .command import Command, add_class_names_and_pixels, add_devices


def _add_predict(parser: Parser) -> None:
    parser.add_argument(
        "images",
        nargs="+",
        help="image files, folders, patterns, or - for a list on standard input",
    )
    parser.add_argument(
        "--model", required=True, help="a run's folder, a .keras file, or a checkpoint"
    )
    parser.add_argument(
        "--top", type=positive_integer, default=1, help="classes for each image"
    )
    parser.add_argument("--out", help="write a table to this file, .csv or .json")
    parser.add_argument(
        "--attention",
        help="write pictures of what the model looks at into this folder",
    )
    add_devices(parser)
    add_class_names_and_pixels(parser)


def _check_predict(options: argparse.Namespace) -> None:
    set_variables(options.strategy, options.tpu)
    if options.out is not None:
        check_table(Path(options.out))
    early_checks.check_output("--out", options.out)
    find_images(options.images)
    early_checks.check_model(options.model)


def _run_predict(options: argparse.Namespace) -> int:
    from ..architectures.model_reading import read_classifier
    from ..engine.strategy import evaluation_strategy
    from ..evaluation.predict import predict, print_predictions

    table = None if options.out is None else Path(options.out)
    attention = None if options.attention is None else Path(options.attention)
    files = find_images(options.images)
    with evaluation_strategy(options.strategy, options.tpu).scope():
        model = read_classifier(options.model, options.class_names, options.pixels)
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
    return int(bool(errors))


predict = Command("predict", _add_predict, _run_predict, _check_predict)
