"""`keras-vit recipes`, and commands that try one: `data-speed`, `tpu-check`."""

import argparse
from pathlib import Path

from keras_vit.common.command_line import Parser, positive_number

from ..engine import early_checks
from ..flags import add_recipe, recipe_of
from ..recipes import named_recipe, print_recipes
from .command import Command


def _add_recipes(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", help="print this recipe with all its values")


def _run_recipes(options: argparse.Namespace) -> None:
    if options.name is None:
        print_recipes()
    else:
        print(named_recipe(options.name).to_yaml(), end="")


recipes = Command("recipes", _add_recipes, _run_recipes, needs_keras=False)


def _add_data_speed(parser: Parser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--seconds", type=positive_number, default=3.0, help="duration for each stage"
    )
    parser.add_argument("--json", help="also write the figures to this file")


def _check_data_speed(options: argparse.Namespace) -> None:
    early_checks.check_output("--json", options.json)
    early_checks.check_recipe(recipe_of(options))


def _run_data_speed(options: argparse.Namespace) -> None:
    from ..fitting.pipeline_speed import data_speed

    file = None if options.json is None else Path(options.json)
    data_speed(recipe_of(options), options.seconds, file)


data_speed = Command("data-speed", _add_data_speed, _run_data_speed, _check_data_speed)


def _add_tpu_check(parser: Parser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--topology",
        nargs="+",
        default=["v5e:2x2"],
        help="the kind and shape of one or more TPUs",
    )


def _run_tpu_check(options: argparse.Namespace) -> None:
    from ..tpu.tpu_check import tpu_check

    tpu_check(recipe_of(options), options.topology)


tpu_check = Command("tpu-check", _add_tpu_check, _run_tpu_check)
