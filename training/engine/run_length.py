"""The length of a run: all its steps, and the steps between two evaluations."""

from dataclasses import dataclass

from ..errors import require
from ..recipe import Recipe

EVALUATIONS = 20  # of a run whose length is not a number of passes, about


@dataclass(frozen=True)
class RunLength:
    """The length of a run."""

    steps: int  # of the whole run
    interval: int  # steps between two evaluations, a Keras epoch
    steps_per_pass: int  # over the images


def run_length(recipe: Recipe, steps_per_pass: int) -> RunLength:
    """The length of a run whose images make `steps_per_pass` batches.

    Where the recipe counts in steps, or bounds them, an interval is the longest that
    divides them and is no longer than a pass over the images, or than a twentieth of
    the run.

    Raises:
        RecipeError: No interval of a reasonable length divides the steps.
    """
    passes = recipe.epochs * steps_per_pass
    steps = recipe.steps or _bounded(passes, recipe.min_steps, recipe.max_steps)
    if steps == passes:
        return RunLength(steps, steps_per_pass, steps_per_pass)
    longest = min(steps, max(steps_per_pass, steps // EVALUATIONS))
    interval = next(n for n in range(longest, 0, -1) if steps % n == 0)
    require(
        interval > longest // 4,
        "steps",
        f"a multiple of a number from {longest // 4 + 1} to {longest}, the steps "
        "between two evaluations",
        steps,
    )
    return RunLength(steps, interval, steps_per_pass)


def _bounded(steps: int, least: int | None, most: int | None) -> int:
    """Steps within bounds; where those decide, a multiple of `EVALUATIONS`."""
    if (least or 0) <= steps <= (most or steps):
        return steps
    bound = least if steps < (least or 0) else most
    return max(1, (bound or 0) // EVALUATIONS) * EVALUATIONS
