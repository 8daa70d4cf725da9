"""The pictures of benchmarks on the site."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def pictures(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import benchmark_pictures

    return benchmark_pictures


def texts(svg):
    return re.findall(r">([^<>\n]+)</text>", svg)


def test_a_bar_is_the_geometric_mean_of_a_library_on_a_processor(pictures):
    def row(library, ratio):
        return {"library": library, "dtype": "float32", "time_to_ours": ratio}

    rows = [row("keras-vit", 1.0), row("timm", 1.0), row("timm", 4.0)]
    rows.append(row("keras-vit, XLA", 9.0))  # an option of ours is no library
    ratios = list(pictures.of_libraries({"AMD EPYC avx512_bf16": {"rows": rows}}))
    assert [(each.series, each.bars) for each in ratios] == [("AMD EPYC", "timm")] * 2
    shown = texts(pictures.drawing(ratios, "keras-vit", "time"))
    assert {"float32", "timm", "AMD EPYC", "keras-vit", "time", "2.00"} <= set(shown)
    assert not {"1.00", "4.00", "9.00"} & set(shown)


def test_servers_are_compared_with_the_contestant_whose_ratio_is_1(pictures):
    def row(name, clients, ratio):
        return {"contestant": name, "clients": clients, "throughput_ratio": ratio}

    rows = [row("bare", 1, 1.0), row("ours", 1, 1.0), row("ours", 16, 0.9)]
    assert list(pictures.of_servers({"echo": [*rows, row("bare", 16, 1.0)]})) == [
        pictures.Ratio("echo: to bare", "ours", "1 client", 1.0),
        pictures.Ratio("echo: to bare", "ours", "16 clients", 0.9),
    ]


def test_pipelines_have_their_cpu_time_beside_ours(pictures):
    rates = {"ours: flip": 300.0, "Keras: flip": 150.0, "bare": 400.0}
    images = {name: {"by_time": 1.0, "by_cpu_time": r} for name, r in rates.items()}
    [ratio] = pictures.of_pipelines({"images": images})
    assert (ratio.bars, ratio.value) == ("flip", 2.0)


@pytest.mark.parametrize("question", ["forward", "attention", "data", "serving"])
def test_the_figures_that_are_checked_in_can_be_drawn(pictures, question):
    svg = pictures.picture(question)
    assert svg == pictures.picture(question)  # so that the site's file stays as it is
    assert pictures.QUESTIONS[question][1] in texts(svg)
    legend = svg[svg.index('id="legend_1"') :]
    assert min(float(x) for x in re.findall(r'\bx="([-\d.]+)"', legend)) >= 0
