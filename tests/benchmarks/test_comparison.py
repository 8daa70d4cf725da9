"""The comparison of benchmarks with the figures that are checked in."""

import json

import pytest

from benchmarks import comparison
from benchmarks.comparison import Figure, compare, figures
from benchmarks.report import spread

CASE = {"variant": "S/16", "pixels": 224, "batch": 8, "dtype": "float32", "threads": 1}
NAME = "forward, S/16, 224 px, batch 8, float32, 1 threads"


def row(library, ratio, spread=None, speed=100.0, **changed):
    numbers = {"time_to_ours": ratio, "gflop_per_second": speed}
    known = {} if spread is None else {"spread": spread}
    return {**CASE, "library": library, **numbers, **known, **changed}


@pytest.mark.parametrize(
    ("before", "now", "slower"),
    [
        (Figure(1.2, 100, 0.03), Figure(1.12, 100, 0.03), True),  # 6.7% with 6%
        (Figure(1.2, 100, 0.03), Figure(1.13, 100, 0.03), False),  # 5.8%
        (Figure(1.2, 100, 0.05), Figure(1.12, 100, 0.03), False),  # either is noisy
        (Figure(1.2, 100, 0.01), Figure(1.12, 100, 0.06), False),
        (Figure(1.2, 100, None), Figure(1.12, 100, 0.03), True),  # taken twice
        (Figure(1.2, 100, None), Figure(1.12, 100, 0.04), False),
        (Figure(1.2, 100, 0.03), Figure(1.4, 100, 0.03), False),  # faster
        (Figure(1.2, 100, None), Figure(0.5, 100, None), False),  # unknown noise
        (Figure(1.2, 100, 0.01), Figure(1.2, 50, 0.01), False),  # a busy machine
    ],
)
def test_a_row_is_slower_if_its_ratio_falls_by_more_than_the_noise(before, now, slower):
    [found] = compare({"a": before}, {"a": now})
    assert found["slower"] is slower


def test_a_comparison_shows_both_ratios_and_the_change_of_cpu_time():
    [found] = compare({"a": Figure(1.25, 100, 0.02)}, {"a": Figure(1.0, 80, 0.04)})
    assert found == {
        **{"row": "a", "checked_in": 1.25, "now": 1.0},
        **{"change": -0.2, "noise": 0.06, "cpu_time": 0.25, "slower": True},
    }


def test_rows_that_were_not_measured_again_are_not_compared():
    old = {"a": Figure(1.2, 100, 0.03), "gone": Figure(1.2, 100, 0.03)}
    assert compare(old, {"a": old["a"], "new": Figure(0.5, 100, 0.0)}) == []


def test_of_our_own_options_less_time_is_better():
    rows = [row("keras-vit, XLA", 1.25, 0.01), row("timm", 1.25, 0.02, speed=80.0)]
    record = {"here": {"rows": rows}, "there": {"rows": [row("timm", 3.0)]}}
    assert figures(record, "here") == {
        f"{NAME}: keras-vit, XLA": Figure(0.8, 100.0, 0.01),
        f"{NAME}: timm": Figure(1.25, 80.0, 0.02),
    }
    assert figures(record, "elsewhere") == {}


def test_pipelines_are_compared_by_the_ratios_of_cpu_time():
    rates = {"by_time": 2.0, "by_cpu_time": 1.0}
    record = {
        "machine": {"processor": "here"},
        "images": {"ours: flip": rates},
        "ratios": {"ours over Keras: flip": {**rates, "by_cpu_time": 3, "spread": 0.1}},
    }
    found = {"ours over Keras: flip": Figure(3, 1.0, 0.1)}
    assert figures(record, "here") == found
    assert figures(record, "there") == {}


def test_the_spread_is_that_of_the_ratios_round_by_round():
    assert spread([2.0, 3.3], [1.0, 1.5]) == 0.1  # 2 and 2.2, whatever the load
    assert spread([2.0], [1.0]) is None


@pytest.mark.parametrize(("ratio", "status"), [(1.0, 1), (1.2, 0)])
def test_the_exit_status_says_whether_a_row_got_slower(
    tmp_path, monkeypatch, capsys, ratio, status
):
    def record(value):
        return {"here": {"rows": [row("timm", value, 0.01)]}}

    monkeypatch.setattr(comparison, "processor", lambda: "here")
    monkeypatch.setattr(comparison, "FOLDER", tmp_path)
    monkeypatch.setattr(comparison, "QUESTIONS", ("forward",))
    monkeypatch.setattr(comparison, "checked_in", lambda question: record(1.21))
    (tmp_path / "forward.json").write_text(json.dumps(record(ratio)), "utf-8")
    assert comparison.main() == status
    printed = capsys.readouterr().out
    assert f"{status} of 1 rows got slower by more than their noise" in printed
    assert (f"  {NAME}: timm" in printed.splitlines()) == bool(status)


def test_a_processor_without_figures_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(comparison, "processor", lambda: "here")
    monkeypatch.setattr(comparison, "FOLDER", tmp_path)
    monkeypatch.setattr(comparison, "QUESTIONS", ("forward",))
    record = {"here": {"rows": [row("timm", 1.2, 0.01)]}}
    (tmp_path / "forward.json").write_text(json.dumps(record), "utf-8")
    assert comparison.main() == 0  # nor is the folder one of git
    printed = capsys.readouterr().out
    assert "forward: no figures of this processor are checked in" in printed


def test_the_figures_that_are_checked_in_are_those_of_the_last_commit():
    """Unless the tests run from a source without a history."""
    record = comparison.checked_in("forward")
    assert record == {} or all(each["rows"] for each in record.values())
    assert comparison.checked_in("no_such_question") == {}
