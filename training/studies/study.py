"""A study: its rows, its runs, and the parts into which they are divided.

A row is one setting, and a run is a row with a seed. `study_files` reads them.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from keras_vit.common.file_names import BEST_MODEL
from keras_vit.common.similar_names import did_you_mean

from ..errors import RecipeError, require
from ..recipe import DataConfig, Recipe

STUDIES = Path("runs", "studies")
JOINT = "|"  # between the groups of a row that is in several


class Candidate(NamedTuple):
    """One of the settings that a run is to choose from."""

    trial: Recipe  # with validation images
    final: Recipe  # that of the run if it is chosen


@dataclass(frozen=True)
class StudyRow:
    """One setting of a study."""

    name: str  # the names of its axes' values, joined by hyphens
    labels: Mapping[str, str]  # the value's name on each axis, and `group` if given
    recipe: Recipe  # with the first seed
    images: int | None = None  # training images and classes, where they are stated
    classes: int | None = None
    begins_with: "StudyRow | None" = (
        None  # the earlier row whose best model it begins with
    )
    # Parsing all candidates takes longer than everything else.
    parse_candidates: Callable[[], Mapping[str, Candidate]] = dict

    @functools.cached_property
    def candidates(self) -> Mapping[str, Candidate]:
        """What to choose from before each run, by name."""
        return self.parse_candidates()


@dataclass(frozen=True)
class Run:
    """A row with a seed."""

    row: StudyRow
    seed: int

    @property
    def name(self) -> str:
        """The row's name and the seed: that of its folder."""
        return f"{self.row.name}-seed{self.seed}"

    @property
    def begins_with(self) -> "Run | None":
        """The run whose best model this one begins with, or None."""
        row = self.row.begins_with
        return None if row is None else Run(row, self.seed)

    def prepared(self, recipe: Recipe, folder: Path) -> Recipe:
        """A recipe of the row with the run's seed, and the weights it begins with."""
        recipe = dataclasses.replace(recipe, seed=self.seed)
        if self.begins_with is None:
            return recipe
        weights = str(folder / self.begins_with.name / BEST_MODEL)
        model = dataclasses.replace(recipe.model, weights=weights)
        return dataclasses.replace(recipe, model=model)


@dataclass(frozen=True)
class Study:
    """A study: its rows and what is read of them; `study_files.KEYS` has its keys."""

    name: str  # that of the file
    small: bool
    title: str
    reference: str
    rows: tuple[StudyRow, ...]  # in the order of the file
    axes: tuple[str, ...]
    seeds: tuple[int, ...]
    columns: tuple[str, ...]
    figure: tuple[dict[str, Any], ...]
    # By column and row; rows that are not the study's have these values alone.
    published: Mapping[str, Mapping[str, float]]
    table: Mapping[str, str]
    means: str | None
    measure: str
    fewshot: DataConfig | None

    @property
    def heading(self) -> str:
        """The title, which form it is, and what is published of it where."""
        form = " (small form)" if self.small else ""
        return f"{self.title}{form}: {self.reference}".removesuffix(": ")

    def runs(self) -> list[Run]:
        """Every row with every seed, the rows of one seed beside each other."""
        return [Run(row, seed) for seed in self.seeds for row in self.rows]


def study_folder(study: Study, output_dir: str | None) -> Path:
    """The folder of a study's runs, by default that of its name and form."""
    return Path(
        output_dir or STUDIES / f"{study.name}{'-small' if study.small else ''}"
    )


def selected(study: Study, wanted: Sequence[str]) -> Study:
    """The study with some of its rows, and those that they begin with."""
    known = [name for row in study.rows for name in (row.name, *row.labels.values())]
    for name in wanted:
        check_name(name, known, f"{study.name} has no row")
    chosen: set[str] = set()
    for row in reversed(study.rows):
        if row.name in chosen or {row.name, *row.labels.values()} & set(wanted):
            chosen.add(row.name)
            if row.begins_with is not None:
                chosen.add(row.begins_with.name)
    rows = tuple(row for row in study.rows if row.name in chosen)
    return dataclasses.replace(study, rows=rows)


def check_name(name: str, known: Sequence[str], problem: str) -> None:
    """Raise RecipeError where a name is not known, with the closest one."""
    if name not in known:
        names = list(dict.fromkeys(known))
        hint = did_you_mean(name, names) or f" There are: {', '.join(names)}"
        raise RecipeError(f"{problem} {name!r}.{hint}")


def part_of(study: Study, part: str | None) -> list[Run]:
    """The runs of one part of a study, such as `1/4`; all runs without a part.

    A run stays in the part of the run that it begins with.

    Raises:
        RecipeError: It is not a part.
    """
    runs = study.runs()
    if part is None:
        return runs
    number, _, parts = part.partition("/")
    wanted = "N/M, the part N of M, from 1/M to M/M"
    require(number.isdigit() and parts.isdigit(), "--part", wanted, part)
    require(1 <= int(number) <= int(parts), "--part", wanted, part)
    begins = [run for run in runs if run.row.begins_with is None]
    chosen = {run.name for run in begins[int(number) - 1 :: int(parts)]}
    return [run for run in runs if _first(run).name in chosen]


def _first(run: Run) -> Run:
    return run if run.begins_with is None else _first(run.begins_with)
