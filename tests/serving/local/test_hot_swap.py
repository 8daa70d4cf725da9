"""Version changes under load: no request is lost, no damaged version serves."""

import contextlib
import shutil
import threading
import time
from collections import Counter

import numpy as np
import pytest
from polling import wait_for
from served_versions import (
    ANSWERS,
    answer_of,
    config,
    load_error,
    one_row,
    predict,
    reload,
    saved_version,
    states,
    waiting,
    warmup_file,
)
from server_requests import local_server, prediction_stub
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

SWAPS = 20


class Load:
    """Requests from several threads until the block ends; no wrong answer is allowed.

    Attributes:
        answered: how many answers each version gave.
    """

    def __init__(self, server):
        self.answered = Counter()
        self._lost = []
        self._server = server
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(ask,))
            for ask in (self._rest, self._grpc) * 2
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert error[0] or self._lost == []

    def _run(self, ask):
        while not self._stop.is_set():
            try:
                ask()
            except Exception as error:
                self._lost.append(error)

    def _rest(self):
        answer = predict(self._server)
        if answer not in ANSWERS.values():
            self._lost.append(answer)
        self.answered["REST"] += 1

    def _grpc(self):
        message = one_row("x")
        with prediction_stub(self._server) as stub:
            for _ in range(20):
                answer = stub.Predict(message, timeout=20)
                number = answer.model_spec.version.value
                expected = 1 + answer_of(number)
                if list(answer.outputs["y"].float_val) != [expected]:
                    self._lost.append((number, answer))
                self.answered[number] += 1


@contextlib.contextmanager
def under_load(publish, *numbers, **flags):
    """A server of version 1 and these, and its load."""
    server = local_server(config(publish(1, *numbers)), **flags)
    with server, Load(server) as load:
        yield server, load


@pytest.mark.slow
def test_twenty_swaps_under_load_lose_nothing(publish):
    with under_load(publish) as (server, load):
        for number in range(2, SWAPS + 2):
            publish(number)
            reload(server, config(publish.path))
    assert load.answered["REST"] > SWAPS
    assert len(load.answered) > SWAPS / 2


@pytest.mark.slow
def test_models_come_and_go_beside_one_that_serves(publish, tmp_path):
    other = tmp_path / "n"
    more = f'config {{ name: "n" base_path: "{other}" model_platform: "tensorflow" }}'
    with under_load(publish) as (server, _):
        shutil.copytree(publish.path, other)
        for _ in range(5):
            reload(server, config(publish.path, more=more))
            assert predict(server, "n") == answer_of(1)
            reload(server, config(publish.path))
            assert predict(server, "n") == 404


# ---- versions that must not serve --------------------------------------------------


def data_file(folder):
    (file,) = folder.glob("variables/variables.data-*")
    return file


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_a_byte(folder):
    """In the variable itself: only its checksum detects it."""
    file = data_file(folder)
    data = file.read_bytes()
    values = (np.float32(value).tobytes() for value in ANSWERS.values())
    at = max(data.find(value) for value in values)
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def unknown_operation(folder):
    file = folder / "saved_model.pb"
    model = SavedModel.FromString(file.read_bytes())
    model.meta_graphs[0].graph_def.node[0].op = "NoSuchOperation"
    file.write_bytes(model.SerializeToString())


def other_tags(folder):
    file = folder / "saved_model.pb"
    model = SavedModel.FromString(file.read_bytes())
    model.meta_graphs[0].meta_info_def.tags[:] = ["train"]
    file.write_bytes(model.SerializeToString())


def a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("a file whose name is a number")


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def saved_model_is_a_folder(folder):
    (folder / "saved_model.pb").unlink()
    (folder / "saved_model.pb").mkdir()


# How a version is damaged, and the error that its status shows.
DAMAGES = {
    "variables cut": (
        lambda folder: cut(data_file(folder)),
        "OUT_OF_RANGE",
        "Read less bytes than requested",
    ),
    "variables empty": (
        lambda folder: data_file(folder).write_bytes(b""),
        "OUT_OF_RANGE",
        "Read less bytes than requested",
    ),
    "variables gone": (
        lambda folder: shutil.rmtree(folder / "variables"),
        "UNKNOWN",
        "not a valid checkpoint",
    ),
    "data gone": (
        lambda folder: data_file(folder).unlink(),
        "UNKNOWN",
        "No such file or directory",
    ),
    "index gone": (
        lambda folder: (folder / "variables" / "variables.index").unlink(),
        "UNKNOWN",
        "not a valid checkpoint",
    ),
    "index cut": (
        lambda folder: cut(folder / "variables" / "variables.index"),
        "DATA_LOSS",
        "not an sstable",
    ),
    "a byte flipped": (flip_a_byte, "DATA_LOSS", "Checksum does not match"),
    "garbage": (
        lambda folder: (folder / "saved_model.pb").write_bytes(b"\xff" * 99),
        "UNKNOWN",
        "Cannot parse file",
    ),
    "nothing": (
        lambda folder: (folder / "saved_model.pb").write_bytes(b""),
        "UNKNOWN",
        "tags 'serve' could not be found",
    ),
    "graph cut": (
        lambda folder: cut(folder / "saved_model.pb"),
        "UNKNOWN",
        "Cannot parse file",
    ),
    "unknown operation": (unknown_operation, "NOT_FOUND", "NoSuchOperation"),
    "other tags": (other_tags, "UNKNOWN", "tags 'serve' could not be found"),
    "warm-up fails": (
        lambda folder: warmup_file(folder, one_row("z")),
        "INVALID_ARGUMENT",
        "Signature input alias: x",
    ),
    "a file": (a_file, "NOT_FOUND", "Could not find SavedModel"),
    "an empty folder": (empty, "NOT_FOUND", "Could not find SavedModel"),
    "a folder": (saved_model_is_a_folder, "FAILED_PRECONDITION", "Is a directory"),
}


def test_a_damaged_version_never_serves_and_the_old_one_stays(publish):
    with under_load(publish, max_num_load_retries=0) as (server, load):
        for number, (damage, code, text) in enumerate(DAMAGES.values(), 2):
            publish(number, damage=damage)
            reload(server, config(publish.path))
            assert states(server)[number] == "END"
            error = load_error(server, number)
            assert error["error_code"] == code
            assert text in error["error_message"]
            assert states(server)[1] == "AVAILABLE"
        assert set(load.answered) <= {1, "REST"}
        publish(99)
        wait_for(lambda: states(server).get(99) == "AVAILABLE")
        wait_for(lambda: load.answered[99])


def test_a_folder_that_is_still_being_written_serves_once_complete(publish):
    flags = {"max_num_load_retries": 1000, "load_retry_interval_micros": 100_000}
    whole = publish.versions / str(saved_version(2))
    with under_load(publish, **flags) as (server, load):
        folder = publish.path / "2"
        folder.mkdir()
        data = (whole / "saved_model.pb").read_bytes()
        with (folder / "saved_model.pb").open("wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            wait_for(lambda: states(server).get(2) == "LOADING")
            file.write(data[len(data) // 2 :])
        for name in ("variables.index", data_file(whole).name):
            (folder / "variables").mkdir(exist_ok=True)
            time.sleep(0.3)
            assert states(server)[2] == "LOADING"
            shutil.copy(whole / "variables" / name, folder / "variables" / name)
        wait_for(lambda: states(server)[2] == "AVAILABLE")
        wait_for(lambda: load.answered[2])


@pytest.mark.slow
def test_a_base_path_that_vanishes_and_returns(publish):
    with under_load(publish) as (server, _):
        away = publish.path.with_name("away")
        publish.path.rename(away)
        time.sleep(1.2)
        assert states(server) == {1: "AVAILABLE"}
        away.rename(publish.path)
        publish(2)
        wait_for(lambda: states(server) == {1: "END", 2: "AVAILABLE"})


def test_the_only_version_is_deleted_and_put_back(publish):
    with local_server(config(publish(1))) as server:
        shutil.rmtree(publish.path / "1")
        reload(server, config(publish.path))
        assert predict(server) == 404
        assert states(server) == {1: "END"}
        publish(1)
        reload(server, config(publish.path))
        assert predict(server) == answer_of(1)


def test_deleting_a_loaded_version_under_load_goes_back_to_the_one_before(publish):
    with under_load(publish, 2) as (server, load):
        shutil.rmtree(publish.path / "2")
        wait_for(lambda: states(server) == {1: "AVAILABLE", 2: "END"})
        wait_for(lambda: load.answered[1])


def test_a_request_that_runs_keeps_its_version(publish, tmp_path):
    with local_server(config(publish(1))) as server:
        begun, go = tmp_path / "begun", tmp_path / "go"
        with prediction_stub(server) as stub:
            running = stub.Predict.future(waiting(begun, go), timeout=60)
            wait_for(begun.exists)
            publish(2)
            reload(server, config(publish.path))
            assert states(server) == {1: "UNLOADING", 2: "AVAILABLE"}
            go.touch()
            assert running.result().model_spec.version.value == 1
        wait_for(lambda: states(server)[1] == "END")
