"""`launch` divides the GPUs of a machine among its workers."""

import os

import pytest

from training.engine import gpus
from training.engine.gpus import VISIBLE, divided_gpus
from training.engine.launch import environments, launch
from training.errors import RecipeError

GPU = "GPU {0}: NVIDIA A100-SXM4-40GB (UUID: GPU-5a{0}c)\n"
PART = "  MIG 3g.20gb     Device  {0}: (UUID: MIG-7b{0})\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that lets `nvidia-smi -L`, or the device files, show GPUs."""
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    monkeypatch.setattr(gpus, "DEVICE_FILES", f"{tmp_path}/nvidia[0-9]*")

    def show(listing, status=0):
        command = tmp_path / "nvidia-smi"
        command.write_text(
            f"#!/bin/sh\n[ $1 = -L ] && printf '{listing}'\nexit {status}"
        )
        command.chmod(0o755)

    show("", status=9)  # as where there is no driver
    return show


def eight():
    return "".join(GPU.format(number) for number in range(8))


def names(workers):
    return [variables.get(VISIBLE) for variables in divided_gpus(workers)]


def test_each_worker_has_gpus_of_its_own(machine):
    machine(eight())
    assert names(1) == ["0,1,2,3,4,5,6,7"]
    assert names(2) == ["0,1,2,3", "4,5,6,7"]
    assert names(8) == list("01234567")
    assert [variables[VISIBLE] for variables in environments(4)] == [
        *("0,1", "2,3", "4,5", "6,7")
    ]


@pytest.mark.parametrize(
    ("chosen", "divided"),
    [
        ("4,5", ["4", "5"]),
        (" 6, 7,0,1", ["6,7", "0,1"]),
        ("GPU-5a2c,GPU-5a3c", ["GPU-5a2c", "GPU-5a3c"]),
        ("1,0,-1,5,4", ["1", "0"]),  # CUDA reads no further than -1
        ("-1", [None, None]),
        ("", [None, None]),
        ("NoDevFiles", [None, None]),
    ],
)
def test_gpus_that_were_chosen_are_divided(machine, monkeypatch, chosen, divided):
    machine(eight())
    monkeypatch.setenv(VISIBLE, chosen)
    assert names(2) == divided


def test_without_gpus_nothing_is_set(machine, monkeypatch):
    assert names(3) == [None, None, None]
    monkeypatch.setenv(VISIBLE, "0,1")
    assert names(3) == [None, None, None]


def test_without_nvidia_smi_the_device_files_are_counted(machine, tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert names(2) == ["0", "1"]
    (tmp_path / "nvidia-smi").unlink()
    assert names(2) == ["0", "1"]


def test_nvidia_smi_that_hangs_is_left(machine, tmp_path, monkeypatch):
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60")
    monkeypatch.setattr(gpus, "SECONDS", 0.1)
    assert names(1) == ["0"]


def test_a_part_of_a_gpu_is_one_workers(machine):
    machine(GPU.format(0) + PART.format(0) + PART.format(1) + GPU.format(1))
    assert names(3) == ["MIG-7b0", "MIG-7b1", "1"]
    machine(GPU.format(0) + "".join(map(PART.format, range(4))))
    with pytest.raises(RecipeError, match="one part of a GPU"):
        divided_gpus(2)


@pytest.mark.parametrize("workers", [3, 16])
def test_workers_that_do_not_divide_the_gpus_start_nothing(machine, workers, capsys):
    machine(eight())
    with pytest.raises(
        RecipeError, match=f"workers={workers}, GPUs 0,1,2,3,4,5,6,7"
    ) as error:
        launch(["fit"], workers)
    assert "\n" not in str(error.value)
    assert capsys.readouterr().out == ""
