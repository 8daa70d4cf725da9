"""`keras-vit evaluate`: a model on labeled images."""

import argparse

from keras_vit.common.command_line import Parser

from ..engine import early_checks
from ..engine.tpu_runtime import set_variables
from .command import Command, add_class_names_and_pixels, add_devices


def _add_evaluate(parser: Parser) -> None:
    parser.add_argument("model", help="a run's folder, a .keras file, or a checkpoint")
    parser.add_argument(
        "--split",
        choices=("train", "validation", "test"),
        default="test",
        help="which images of the run",
    )
    parser.add_argument(
        "--source",
        help="use the test images of this source instead of the run's; of a folder "
        "without test/, all images",
    )
    parser.add_argument(
        "--labels",
        help="of a model with ImageNet's classes: imagenet, imagenet_v2, real:FILE or "
        "objectnet:FOLDER, as right classes of the images of --source",
    )
    add_devices(parser)
    add_class_names_and_pixels(parser)


def _check_evaluate(options: argparse.Namespace) -> None:
    set_variables(options.strategy, options.tpu)
    if options.labels is not None:
        early_checks.check_source(options.source)
    else:
        early_checks.check_model(options.model)
        data = early_checks.data_of_run(
            options.model, {"source": options.source}, "--source"
        )
        early_checks.check_source(data.source, data.on_bad_image)


def _run_evaluate(options: argparse.Namespace) -> None:
    if options.labels is not None:
        from ..evaluation.label_sets import evaluate_labels

        evaluate_labels(
            options.model,
            options.labels,
            options.source,
            options.pixels,
            strategy=options.strategy,
            tpu=options.tpu,
        )
        return
    from ..evaluation.evaluate import evaluate_file

    evaluate_file(
        options.model,
        options.split,
        options.source,
        options.class_names,
        options.pixels,
        strategy=options.strategy,
        tpu=options.tpu,
    )


evaluate = Command("evaluate", _add_evaluate, _run_evaluate, _check_evaluate)
