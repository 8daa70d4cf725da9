"""The table of docs/experiments/index.md has every study, with its pages' figures."""

import pathlib
import re
from typing import NamedTuple

import pytest
import yaml

from training.__main__ import main
from training.studies.columns import COLUMNS

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "experiments"
STUDIES = ROOT / "training" / "studies"


class Line(NamedTuple):
    """A line of the table: one figure or table of the paper, or several."""

    result: str
    command: str
    published: str
    hours: str
    minutes: str
    agrees: str


def lines():
    """The table's lines, without its header."""
    text = (FOLDER / "index.md").read_text("utf-8")
    rows = [row for row in text.splitlines() if row.startswith("|")]
    return [Line(*map(str.strip, row.strip("|").split("|"))) for row in rows[2:]]


def studies():
    """Name -> line of each study in the table."""
    found = {}
    for line in lines():
        if match := re.fullmatch(r"`study (\w+)`", line.command):
            found[match[1]] = line
    return found


def page_of(line):
    """The text of the page that a line links to, from the heading that it names."""
    file, anchor = re.search(r"\]\(([\w.]+)(#[\w-]+)?\)", line.result).groups()
    return (FOLDER / file).read_text("utf-8"), anchor


def test_the_table_has_every_study_of_the_paper():
    files = {path.stem for path in STUDIES.glob("*.yaml")}
    assert set(studies()) == files - {"comparison"}


def test_the_table_has_every_figure_and_table_of_the_paper():
    results = " ".join(line.result for line in lines())
    for kind, last in (("Figure", 14), ("Table", 9)):
        listed = re.findall(rf"{kind}s? (\d+(?:, \d+)*)", results)
        numbers = {int(number) for each in listed for number in each.split(", ")}
        assert numbers == set(range(1, last + 1)), kind


@pytest.mark.parametrize("name", studies())
def test_published_values_are_beside_ours_where_a_study_has_them(name):
    study = yaml.safe_load((STUDIES / f"{name}.yaml").read_text("utf-8"))
    expected = "yes" if study.get("published") else "curves only"
    assert studies()[name].published == expected


@pytest.mark.parametrize("name", studies())
def test_the_minutes_of_a_small_form_are_those_of_its_page(name):
    line = studies()[name]
    text, anchor = page_of(line)
    study = yaml.safe_load((STUDIES / f"{name}.yaml").read_text("utf-8"))
    if "small" not in study:
        assert not line.minutes
        return
    if anchor:
        text = text[text.index(f"## The small form of {line.result.split(':')[0]}") :]
    assert line.minutes == re.search(r"It\s+took ([\d.]+) minutes", text)[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", studies())
def test_the_hours_of_the_full_form_are_those_of_the_dry_run(name, capsys):
    hours = re.match(r"[\d,]*", studies()[name].hours)[0].replace(",", "")
    if not hours:
        pytest.skip("is measured, not estimated")
    assert main(["study", name, "--dry_run", "--device", "H100"]) in (None, 0)
    output = " ".join(capsys.readouterr().out.split())
    estimated = re.search(r"([\d.e+]+) hours on one H100", output)[1]
    assert round(float(estimated)) == int(hours)


def test_every_column_of_a_study_is_on_the_page():
    """`fewshot_5` and `macro_f1_before` by their endings."""
    text = (FOLDER / "studies.md").read_text("utf-8")
    for name in COLUMNS:
        short = re.sub(r"^fewshot(?=_\d)|^\w+(?=_before)", "", name)
        assert f"`{name}`" in text or f"`{short}`" in text
