"""The file of figures of libraries that took turns."""

import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks import turns
from benchmarks.processes import Process

ROOT = pathlib.Path(__file__).parents[2]


def row(library, seconds, **changed):
    case = {"variant": "S/16", "pixels": 224, "batch": 8, "dtype": "float32"}
    return {**case, "threads": 1, "library": library, "seconds": seconds, **changed}


def test_a_case_replaces_its_own_figures_alone(tmp_path):
    file = tmp_path / "figures.json"
    file.write_text(json.dumps({"another processor": {"rows": []}}), "utf-8")
    turns.record([row("a", 1), row("b", 2)], file)
    turns.record([row("a", 3, training=True)], file)
    turns.record([row("a", 4, variant="B/16")], file)
    turns.record([row("a", 5)], file)
    records = json.loads(file.read_text("utf-8"))
    assert records.keys() == {"another processor", turns.processor()}
    rows = records[turns.processor()]["rows"]
    assert [each["seconds"] for each in rows] == [4, 5, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]


def test_figures_of_other_versions_do_not_stay(tmp_path, monkeypatch):
    file = tmp_path / "figures.json"
    turns.record([row("a", 1)], file)
    monkeypatch.setattr(turns, "machine", lambda: {"versions": "keras 4"})
    turns.record([row("a", 2, batch=1)], file)
    [record] = json.loads(file.read_text("utf-8")).values()
    assert record["machine"] == {"versions": "keras 4"}
    assert [each["seconds"] for each in record["rows"]] == [2]


def test_a_process_that_ends_before_it_answers_is_an_error():
    case = json.dumps([False, "S/16", 224, 8, "float32", 1])
    with (
        Process("benchmarks.peer_models", "unknown", case) as process,
        pytest.raises(RuntimeError, match="unknown .* ended with status 1"),
    ):
        process.ask()


def test_turns_need_neither_keras_nor_tensorflow():
    program = (
        "import sys; sys.argv[0] = 'keras-vit'; import benchmarks.turns\n"
        "assert not {'keras', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
