"""`study`: say what a study costs, run it, draw what is there."""

from collections.abc import Mapping, Sequence

from ..errors import RunError
from .columns import check_columns
from .estimates import print_estimates
from .study import Study, part_of, study_folder
from .study_figure import check_figure, draw_figure
from .study_files import load_study
from .study_results import (
    check_table,
    missing_runs,
    print_results,
    read_lines,
    write_results,
)
from .study_runs import check_folder, is_finished, run_study


def checked_study(
    name: str,
    small: bool = False,
    flags: Mapping[str, str] | None = None,
    rows: Sequence[str] = (),
) -> Study:
    """Load a study, and check its columns, its figure and its table.

    Args and errors: Those of `load_study`.
    """
    study = load_study(name, small, flags, rows)
    check_columns(study)
    check_figure(study)
    check_table(study)
    return study


def run_command(
    name: str,
    small: bool,
    flags: Mapping[str, str],
    *,
    rows: Sequence[str] = (),
    part: str | None = None,
    dry_run: tuple[str, float] | None = None,
    draw: bool = False,
    output_dir: str | None = None,
) -> None:
    """Run a study, or a part of it, and write its table and figure.

    Raises:
        RecipeError: The study, a row, a flag or the part is wrong.
        RunError: The folder is another study's; or runs have failed, after the table
            and the figure of the others were written.
    """
    study = checked_study(name, small, flags, rows)
    folder = study_folder(study, output_dir)
    runs = part_of(study, part)
    if dry_run is not None:
        finished = [run for run in runs if is_finished(run, folder)]
        print_estimates(study, runs, finished, *dry_run)
        return
    check_folder(study, folder)
    if draw and not folder.exists():
        raise RunError(f"{folder}: there is no such folder to draw from")
    failures = {} if draw else run_study(study, folder, runs)
    lines = read_lines(study, folder)
    write_results(study, lines, folder)
    draw_figure(study, lines, folder)
    print_results(study, lines)
    missing = missing_runs(lines)
    print(f"{len(missing)} runs are not finished" if missing else "all runs finished")
    print(f"table.csv, table.json, table.md, figure.png: {folder}")
    if failures:
        names = ", ".join(failures)
        raise RunError(f"{len(failures)} of {len(runs)} runs failed: {names}")
