"""What every command refuses before it imports Keras and TensorFlow."""

import subprocess
import sys

import pytest
from training_commands import parse

from keras_vit.common.commands import find, listed
from training.engine.early_checks import check_source
from training.engine.job import Job
from training.errors import DataError, RunError
from training.recipes import named_recipe
from training.studies.study_files import load_study

# Runs commands in one process, and prints each one's last line of errors.
RUN = """
import contextlib, io, sys
_, *commands = sys.argv
sys.argv = ["keras-vit"]  # without Keras
from keras_vit.common.commands import main
for command in commands:
    sys.argv = ["keras-vit", *command.split()]
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        assert main() > 0, command
    assert not {"keras", "tensorflow"} & set(sys.modules), f"too early: {command}"
    print(errors.getvalue().splitlines()[-1])
"""
# What is wrong, and what the error must contain.
MISTAKES = {
    "fit --recipe folder_small --data.source folder:photo": "mean folder:photos?",
    "fit --recipe folder_small --data.source folder:photos": "class folders",
    "fit --recipe digits --model.weights run/bets.keras": "bets.keras: there is no",
    "fit --recipe digits --model.weights run/best": "run/best: there is no such",
    "fit --recipe digits --output_dir other": "exists and is not a run",
    "fit --recipe digits --output_dir lone.keras/a": "lone.keras/a: cannot be written",
    "compare digits --output_dir lone.keras/a": "lone.keras/a: cannot be written",
    "study positions --small --output_dir lone.keras/a": "a: cannot be written: Not a",
    "resume runs/digits": "runs/digits: is not the folder of a run",
    "evaluate model.keras": "model.keras: there is no such file",
    "evaluate lone.keras": "--source is needed",
    "evaluate lone.keras --source folder:photo": "mean folder:photos?",
    "evaluate lone.keras --labels real:a.json --source folder:photo": "Did you mean",
    "predict cat.png --model lone.keras": "cat.png: there is no such image",
    "predict photos --model runs/none": "runs/none: there is no such file",
    "predict photos --model lone.keras --out a.xlsx": "must end in .csv or .json",
    "predict photos --model tiny.yaml": "tiny.yaml: must be a .keras file, a",
    "predict photos --model lone.keras --out no/a.csv": "`--out` must be in an",
    "probe lone.keras": "--data.source is needed",
    "probe runs/none": "runs/none: there is no such file or folder",
    "probe runs/none --data.source digits": "runs/none: there is no such file or",
    "probe runs/done": "runs/done/best.keras: there is no such file",
    "probe B/16:augreg_in21k --data.source digits --out no/a.json": "an existing",
    "data-speed --recipe digits --json no/a.json": "`--json` must be in",
    "probe B/16:augreg_in21k --data.source folder:photo": "mean folder:photos?",
    "push other hf://owner/name": "is not the folder of a finished run",
    "compare digits folder_small --data.source folder:photo": "Did you mean",
    "study no_such_study": "no study 'no_such_study'",
    "study positions --part 3/2": "`--part` must be N/M",
    "study positions --small --data.source folder:photo": "Did you mean",
    "resume runs/done": "the run is finished; --epochs",
    "resume runs/done --epochs 1": "`--epochs` must be at least the run's 80",
    "data-speed --recipe digits --data.source folder:photo": "Did you mean",
    "baselines --recipe folder_small": "folder:images: there is no such folder",
    "info model.keras": "model.keras: there is no such file",
    "convert model.npz copy.npz": "model.npz: there is no such file",
    "inspect model.keras --out looks": "model.keras: there is no such file",
    "export model.keras --to models/m": "model.keras: no such file",
}
# Without files to check: workers check their own, and a recipe is lowered for a TPU
# without its images.
UNCHECKED = {"launch", "recipes", "tpu-check"}


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """The working directory: photos, other files, a model and a finished run."""
    done = "runs/done/recipe.yaml"
    for name in (
        "photos/1.png",
        "other/notes.txt",
        "lone.keras",
        "tiny.yaml",
        done,
        "runs/done/report.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / done).write_text(named_recipe("digits").to_yaml())
    monkeypatch.chdir(tmp_path)


def test_a_cheap_error_needs_neither_keras_nor_tensorflow(inside):
    result = subprocess.run(
        [sys.executable, "-c", RUN, *MISTAKES], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for (command, wanted), line in zip(MISTAKES.items(), lines, strict=True):
        assert wanted in line, command


def test_every_command_of_training_has_a_check():
    names = set(listed("training"))
    checked = {name for name in names if find("training", name).check is not None}
    assert checked == names - UNCHECKED
    assert checked <= {command.split()[0] for command in MISTAKES}


def test_what_is_in_a_bucket_or_named_is_left_to_the_command():
    for source in (None, "digits", "tfds:mnist", "folder:gs://bucket/images"):
        check_source(source)
    with pytest.raises(DataError, match="no such folder"):
        check_source("folder:nowhere")


def test_a_finished_run_is_compared_without_its_images(inside, tmp_path):
    options = parse("compare", ["folder_small", "--output_dir", "runs"])
    check = find("training", "compare").check
    with pytest.raises(DataError, match="folder:images: there is no such folder"):
        check(options)
    run = tmp_path / "runs" / "folder_small-color"
    run.mkdir(parents=True)
    (run / "report.json").touch()
    check(options)


def test_the_finished_runs_of_a_study_do_not_need_its_images(inside, tmp_path):
    words = ["positions", "--small", "--rows", "none", "--output_dir", "runs"]
    words += ["--data.source", "folder:nowhere"]
    options = parse("study", words)
    check = find("training", "study").check
    with pytest.raises(DataError, match="no such folder"):
        check(options)
    for seed in load_study("positions", True, {}, ["none"]).seeds:
        run = tmp_path / "runs" / f"none-seed{seed}"
        run.mkdir(parents=True)
        (run / "report.json").touch()
    check(options)
    check(parse("study", [*words[:-3], "elsewhere", *words[-2:], "--dry_run"]))


def test_studies_are_listed_without_keras_and_tensorflow(inside):
    code = RUN.replace("> 0", "== 0").replace("    print", "    # ")
    result = subprocess.run([sys.executable, "-c", code, "study"], capture_output=True)
    assert result.returncode == 0, result.stderr
    assert b"positions" in result.stdout


def test_workers_leave_the_runs_folder_to_the_chief(inside, monkeypatch):
    words = ["--recipe", "digits", "--output_dir", "other"]
    check = find("training", "fit").check
    check(parse("fit", [*words, "--strategy", "multi_worker"]))
    with pytest.raises(RunError, match="is not a run"):
        check(parse("fit", words))
    with monkeypatch.context() as patch:
        patch.setenv("TF_CONFIG", "{}")  # with which `auto` is multi_worker
        check(parse("fit", words))
    monkeypatch.setattr(
        "training.engine.early_checks.this_job", lambda: Job("srun", 2, 1)
    )
    check(parse("fit", words))
