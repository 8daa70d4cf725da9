"""The table and the figure of a study: means, two axes, holes, published values."""

import dataclasses
import json
import math

import numpy as np
import pytest
from tiny_recipe import TINY_RECIPE

from training.errors import RecipeError
from training.studies import study_figure
from training.studies.study import Study, StudyRow
from training.studies.study_figure import draw_figure
from training.studies.study_results import read_lines, write_results

# Accuracies by row: of two seeds, of one, of none.
SCORES = {
    "small-cats": (0.5, 0.6),
    "small-dogs": (0.7, 0.9),
    "large-cats": (0.8, 0.7),
    "large-dogs": (0.85,),
}
PUBLISHED = {
    "accuracy": {
        "small-cats": 51.5,
        "small-dogs": 61.5,
        "large-cats": 71.5,
        "giant-cats": 99.5,
    }
}


def make_study(**changes):
    """Models small and large on cats and dogs, of which the largest lacks a seed."""
    rows = []
    for name in SCORES:
        model, task = name.split("-")
        labels = {"model": model, "task": task, "group": f"the {model}"}
        rows.append(StudyRow(name, labels, dataclasses.replace(TINY_RECIPE, name=name)))
    values = {
        "name": "pets",
        "small": False,
        "title": "Pets",
        "reference": "",
        "rows": tuple(rows),
        "axes": ("model", "task"),
        "seeds": (0, 1),
        "columns": ("accuracy", "parameters"),
        "figure": (),
        "published": PUBLISHED,
        "table": {},
        "means": None,
        "measure": "training",
        "fewshot": None,
    }
    return Study(**(values | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The runs of `SCORES`."""
    folder = tmp_path_factory.mktemp("study")
    for name, scores in SCORES.items():
        for seed, accuracy in enumerate(scores):
            path = folder / f"{name}-seed{seed}"
            path.mkdir()
            (path / "recipe.yaml").write_text(TINY_RECIPE.to_yaml())
            report = {"accuracy": accuracy, "parameters": len(name) * 1e6}
            if name.endswith("dogs"):
                report["largest_batch"] = 8
            (path / "report.json").write_text(json.dumps(report))
            history = f"epoch,val_loss\n1,2.5\n2,{1 - accuracy}\n"
            (path / "history.csv").write_text(history)
    return folder


def test_the_lines_have_means_deviations_and_what_is_missing(folder):
    lines = {line.name: line for line in read_lines(make_study(), folder)}
    assert list(lines) == [*SCORES, "giant-cats"]
    assert lines["small-dogs"].mean("accuracy") == pytest.approx(80)
    assert lines["small-dogs"].deviation("accuracy") == pytest.approx(math.sqrt(200))
    assert lines["small-dogs"].text("accuracy") == "80.00 ± 14.14"
    assert lines["large-dogs"].text("accuracy") == "85.00"
    assert lines["large-dogs"].missing == ("large-dogs-seed1",)
    assert lines["giant-cats"].text("accuracy") == ""
    assert lines["giant-cats"].published_text("accuracy") == "99.50"


def test_means_of_groups_are_over_complete_rows_only(folder):
    lines = {li.name: li for li in read_lines(make_study(means="group"), folder)}
    small = lines["mean of the small"]
    # By seeds: (50 + 70) / 2 and (60 + 90) / 2.
    assert small.values["accuracy"] == pytest.approx([60, 75])
    assert small.published["accuracy"] == pytest.approx((51.5 + 61.5) / 2)
    for name in ("mean of the large", "mean of all"):  # large-dogs lacks a seed
        assert lines[name].mean("accuracy") is None
        assert lines[name].published == {}


def test_two_axes_against_each_other_with_published_columns(folder):
    study = make_study(table={"rows": "task", "columns": "model"}, means="group")
    write_results(study, read_lines(study, folder), folder)
    heading, _, *table = (folder / "table.md").read_text().splitlines()
    assert heading == study.heading
    assert table == [
        "| accuracy, % (published) | small | large | mean of all | giant |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| cats | 55.00 ± 7.07 (51.50) | 75.00 ± 7.07 (71.50) |  | (99.50) |",
        "| dogs | 80.00 ± 14.14 (61.50) | 85.00 |  |  |",
        "| mean of the small | 67.50 ± 10.61 (56.50) |  |  |  |",
        "| mean of the large |  | not run |  |  |",
        "| mean of all |  |  | not run |  |",
    ]


def test_the_json_has_every_seed(folder):
    study = make_study()
    write_results(study, read_lines(study, folder), folder)
    rows = json.loads((folder / "table.json").read_text())
    assert rows[0]["values"]["accuracy"] == pytest.approx([50, 60])
    assert rows[3]["missing"] == ["large-dogs-seed1"]
    assert rows[4] == {
        "row": "giant-cats",
        "labels": {},
        "values": {},
        "published": {"accuracy": 99.5},
        "missing": [],
    }


@pytest.fixture
def drawn(folder, monkeypatch, tmp_path):
    """A function that draws panels and returns their axes and the figure."""

    def draw(*panels, **changes):
        study = make_study(figure=panels, **changes)
        kept = []
        monkeypatch.setattr(study_figure, "save", lambda figure, _: kept.append(figure))
        draw_figure(study, read_lines(study, folder), folder)
        (figure,) = kept
        return figure.axes, figure

    return draw


def test_a_line_for_each_group_with_its_hole(drawn):
    panel = {"kind": "lines", "x": "parameters", "y": "accuracy", "by": "task"}
    (axis,), figure = drawn(panel)
    points = {c.get_label(): c[0].get_xydata().tolist() for c in axis.containers}
    np.testing.assert_allclose(points["cats"], [[10, 55], [10, 75]])
    np.testing.assert_allclose(points["dogs"], [[10, 80], [10, 85]])
    assert "1 runs not run: large-dogs-seed1" in figure._supxlabel.get_text()


def test_a_row_that_is_not_run_is_a_named_hole_in_its_line(drawn):
    panel = {"kind": "lines", "x": "parameters", "y": "accuracy", "by": "task"}
    (axis,), _ = drawn(panel, seeds=(1,))
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == ["cats", "dogs (1 not run)"]


def test_a_line_without_values_is_left_out_and_keeps_the_others_colors(drawn):
    by = {"kind": "lines", "x": "size", "by": "task"}
    panels = [by | {"y": "accuracy"}, by | {"y": "largest_batch", "log": True}]
    rows = tuple(
        dataclasses.replace(row, labels=row.labels | {"size": size})
        for row, size in zip(make_study().rows, ("64", "64", "224", "224"), strict=True)
    )
    columns, axes = ("accuracy", "largest_batch"), ("model", "task", "size")
    (first, second), _ = drawn(*panels, rows=rows, columns=columns, axes=axes)
    assert [c.get_label() for c in first.containers] == ["cats", "dogs"]
    (dogs,) = second.containers
    assert dogs.get_label() == "dogs"
    assert dogs[0].get_color() == first.containers[1][0].get_color()
    assert [text.get_text() for text in second.get_xticklabels()] == ["64", "224"]


def test_a_point_at_zero_is_drawn(drawn):
    rows = tuple(
        dataclasses.replace(row, labels=row.labels | {"dropout": dropout})
        for row, dropout in zip(
            make_study().rows, ("0", "0", "0.1", "0.1"), strict=True
        )
    )
    panel = {"kind": "lines", "x": "dropout", "y": "accuracy", "by": "task"}
    (axis,), _ = drawn(panel, rows=rows, axes=("model", "task", "dropout"))
    points = {c.get_label(): c[0].get_xydata().tolist() for c in axis.containers}
    np.testing.assert_allclose(points["cats"], [[0, 55], [0.1, 75]])


def test_bars_stand_beside_published_marks_and_name_what_is_not_run(drawn):
    (axis,), _ = drawn({"kind": "bars", "y": "accuracy"}, seeds=(1,))
    heights = [patch.get_height() for patch in axis.patches]
    assert heights == pytest.approx([60, 90, 70, 0, 0])
    marks = [line.get_ydata()[0] for line in axis.lines if len(line.get_ydata()) == 2]
    assert set(PUBLISHED["accuracy"].values()) <= set(marks)
    assert [(t.get_text(), t.get_position()[0]) for t in axis.texts] == [("not run", 3)]


def test_a_heat_map_has_a_cross_where_nothing_was_run(drawn):
    panel = {"kind": "heatmap", "x": "model", "y": "task", "value": "accuracy"}
    (axis, *_), _ = drawn(panel, seeds=(1,))
    texts = {text.get_position(): text.get_text() for text in axis.texts}
    # (column, row): small and large, cats and dogs.
    assert texts == {(0, 0): "60.00", (1, 0): "70.00", (0, 1): "90.00", (1, 1): "x"}


def test_curves_are_those_of_the_first_seed(drawn):
    panel = {"kind": "curves", "y": "loss", "where": {"model": "large"}}
    (axis,), _ = drawn(panel)
    curves = {line.get_label(): list(line.get_ydata()) for line in axis.lines}
    assert curves["large-cats"] == pytest.approx([2.5, 0.2])
    assert curves["large-dogs"] == pytest.approx([2.5, 0.15])


def test_an_axis_without_numbers_cannot_be_x(drawn):
    with pytest.raises(RecipeError, match=r"axis of numbers.*'model' with 'small'"):
        drawn({"kind": "lines", "x": "model", "y": "accuracy"})
