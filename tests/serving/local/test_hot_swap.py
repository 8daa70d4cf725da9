"""Version changes under load: no request is lost, no damaged version serves."""

import shutil
import threading
import time
from collections import Counter

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
from tensorflow_serving.apis import prediction_service_pb2_grpc
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig
from test_local_server import request
from test_local_server_lifecycle import (
    ANSWERS,
    asked_for,
    asked_to_wait,
    predict,
    reload,
    save_versions,
    states,
    wait_for,
    warmup_file,
)

from serving.local import LocalServer

SWAPS = 20


def template(number):
    """The saved version that is published under a number."""
    return number % len(ANSWERS) + 1


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    return save_versions(tmp_path_factory.mktemp("versions"))


class Place:
    """A base path, and the configuration that serves it.

    Args:
        path: the base path.
        versions: folders of the saved versions.
    """

    def __init__(self, path, versions):
        self.path = path
        self.versions = versions

    def publish(self, number, spoil=None):
        """Puts a version in with one rename; `spoil` changes its folder before."""
        staged = self.path / ".staging"
        shutil.copytree(self.versions / str(template(number)), staged)
        if spoil:
            spoil(staged)
        staged.rename(self.path / str(number))

    def config(self, policy="latest { num_versions: 1 }", labels=(), more=""):
        pairs = "".join(
            f'version_labels {{ key: "{label}" value: {number} }} '
            for label, number in labels
        )
        text = (
            f'model_config_list {{ config {{ name: "m" base_path: "{self.path}" '
            f'model_platform: "tensorflow" model_version_policy {{ {policy} }} '
            f"{pairs} }} {more} }}"
        )
        return text_format.Parse(text, ModelServerConfig())


@pytest.fixture
def place(versions, tmp_path):
    path = tmp_path / "m"
    path.mkdir()
    return Place(path, versions)


class Load:
    """Requests from several threads until the block ends; each is right or counted.

    Attributes:
        answered: how many answers each version gave.
        lost: what was no right answer.
    """

    def __init__(self, server, *labels):
        self.answered = Counter()
        self.lost = []
        self._server = server
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(ask, label))
            for ask in (self._rest, self._grpc)
            for label in ("", "", *labels)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, ask, label):
        while not self._stop.is_set():
            try:
                ask(label)
            except Exception as error:
                self.lost.append(error)

    def _rest(self, label):
        name = f"m/labels/{label}" if label else "m"
        answer = predict(self._server, name)
        if answer not in ANSWERS.values():
            self.lost.append(answer)
        self.answered["REST"] += 1

    def _grpc(self, label):
        asked = asked_for("x")
        asked.model_spec.version_label = label
        if not label:
            asked.model_spec.ClearField("version_label")
        with grpc.insecure_channel(self._server.grpc_address) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            for _ in range(20):
                answer = stub.Predict(asked, timeout=20)
                number = answer.model_spec.version.value
                expected = 1 + ANSWERS[template(number)]
                if list(answer.outputs["y"].float_val) != [expected]:
                    self.lost.append((number, answer))
                self.answered[number] += 1


@pytest.mark.slow
def test_twenty_swaps_under_load_lose_nothing(place):
    place.publish(1)
    server = LocalServer(place.config(), rest_port=0, grpc_port=0)
    with server, Load(server) as load:
        for number in range(2, SWAPS + 2):
            place.publish(number)
            reload(server, place.config())
    assert load.lost == []
    assert load.answered["REST"] > SWAPS
    assert len(load.answered) > SWAPS / 2


@pytest.mark.slow
def test_labels_move_under_load_and_lose_nothing(place):
    policy = "latest { num_versions: 2 }"
    place.publish(1)
    server = LocalServer(
        place.config(policy, [("stable", 1)]),
        rest_port=0,
        grpc_port=0,
        allow_version_labels_for_unavailable_models=True,
    )
    with server, Load(server, "stable") as load:
        for number in range(2, SWAPS + 2):
            place.publish(number)
            reload(server, place.config(policy, [("stable", number - 1)]))
            reload(server, place.config(policy, [("stable", number)]))
    assert load.lost == []


def test_models_come_and_go_beside_one_that_serves(place, tmp_path):
    place.publish(1)
    other = tmp_path / "n"
    shutil.copytree(place.path, other)
    more = f'config {{ name: "n" base_path: "{other}" model_platform: "tensorflow" }}'
    server = LocalServer(place.config(), rest_port=0, grpc_port=0)
    with server, Load(server) as load:
        for _ in range(5):
            reload(server, place.config(more=more))
            assert predict(server, "n") == ANSWERS[template(1)]
            reload(server, place.config())
            assert predict(server, "n") == 404
    assert load.lost == []


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
    at = data.index(np.float32(ANSWERS[template(2)]).tobytes())
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def unknown_operation(folder):
    file = folder / "saved_model.pb"
    model = SavedModel.FromString(file.read_bytes())
    model.meta_graphs[0].graph_def.node[0].op = "NoSuchOperation"
    file.write_bytes(model.SerializeToString())


def warmup_of(data):
    def spoil(folder):
        (folder / "assets.extra").mkdir()
        file = folder / "assets.extra" / "tf_serving_warmup_requests"
        with tf.io.TFRecordWriter(str(file)) as writer:
            writer.write(data)

    return spoil


def no_record_file(folder):
    (folder / "assets.extra").mkdir()
    (folder / "assets.extra" / "tf_serving_warmup_requests").write_bytes(b"x" * 40)


def other_tags(folder):
    file = folder / "saved_model.pb"
    model = SavedModel.FromString(file.read_bytes())
    model.meta_graphs[0].meta_info_def.tags[:] = ["train"]
    file.write_bytes(model.SerializeToString())


def a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("a file whose name is a number")


def saved_model_is_a_folder(folder):
    (folder / "saved_model.pb").unlink()
    (folder / "saved_model.pb").mkdir()


SPOILT = {
    "variables cut": (lambda folder: cut(data_file(folder)), ""),
    "variables empty": (lambda folder: data_file(folder).write_bytes(b""), ""),
    "variables gone": (
        lambda f: shutil.rmtree(f / "variables"),
        "not a valid checkpoint",
    ),
    "data gone": (lambda folder: data_file(folder).unlink(), ""),
    "index gone": (
        lambda folder: (folder / "variables" / "variables.index").unlink(),
        "not a valid checkpoint",
    ),
    "index cut": (lambda folder: cut(folder / "variables" / "variables.index"), ""),
    "a byte flipped": (flip_a_byte, "Checksum does not match"),
    "garbage": (lambda f: (f / "saved_model.pb").write_bytes(b"\xff" * 99), ""),
    "nothing": (lambda f: (f / "saved_model.pb").write_bytes(b""), ""),
    "graph cut": (lambda folder: cut(folder / "saved_model.pb"), ""),
    "unknown operation": (unknown_operation, "NoSuchOperation"),
    "other tags": (other_tags, ""),
    "warm-up fails": (lambda f: warmup_file(f, asked_for("z")), "input alias: x"),
    "warm-up unread": (warmup_of(b"\xff" * 9), "Failed to parse warmup record"),
    "no warm-up file": (no_record_file, "verify your warmup data is in TFRecord"),
    "a file": (a_file, "Could not find SavedModel"),
    "a folder": (saved_model_is_a_folder, ""),
}


def test_a_damaged_version_never_serves_and_the_old_one_stays(place):
    place.publish(1)
    server = LocalServer(
        place.config(), rest_port=0, grpc_port=0, max_num_load_retries=0
    )
    with server, Load(server) as load:
        for number, (spoil, text) in enumerate(SPOILT.values(), 2):
            place.publish(number, spoil)
            reload(server, place.config())
            assert states(server)[number] == "END"
            path = f"/v1/models/m/versions/{number}"
            _, answer = request(server, "GET", path)
            error = answer["model_version_status"][0]["status"]
            assert error["error_code"] != "OK"
            assert text in error["error_message"]
            assert states(server)[1] == "AVAILABLE"
        assert set(load.answered) <= {1, "REST"}
        place.publish(99)
        wait_for(lambda: states(server).get(99) == "AVAILABLE")
        wait_for(lambda: load.answered[99])
    assert load.lost == []


def test_a_folder_that_is_still_being_written_serves_once_complete(place):
    place.publish(1)
    server = LocalServer(
        place.config(),
        rest_port=0,
        grpc_port=0,
        max_num_load_retries=1000,
        load_retry_interval_micros=100_000,
    )
    whole = place.versions / str(template(2))
    with server, Load(server) as load:
        folder = place.path / "2"
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
    assert load.lost == []


def test_a_base_path_that_vanishes_and_returns(place):
    place.publish(1)
    server = LocalServer(place.config(), rest_port=0, grpc_port=0)
    with server, Load(server) as load:
        away = place.path.with_name("away")
        place.path.rename(away)
        time.sleep(1.2)
        assert states(server) == {1: "AVAILABLE"}
        away.rename(place.path)
        place.publish(2)
        wait_for(lambda: states(server) == {1: "END", 2: "AVAILABLE"})
    assert load.lost == []


def test_the_only_version_is_deleted_and_put_back(place):
    place.publish(1)
    with LocalServer(place.config(), rest_port=0, grpc_port=0) as server:
        shutil.rmtree(place.path / "1")
        reload(server, place.config())
        assert predict(server) == 404
        assert states(server) == {1: "END"}
        place.publish(1)
        reload(server, place.config())
        assert predict(server) == ANSWERS[template(1)]


def test_deleting_a_loaded_version_under_load_goes_back_to_the_one_before(place):
    place.publish(1)
    place.publish(2)
    server = LocalServer(place.config(), rest_port=0, grpc_port=0)
    with server, Load(server) as load:
        shutil.rmtree(place.path / "2")
        wait_for(lambda: states(server) == {1: "AVAILABLE", 2: "END"})
        wait_for(lambda: load.answered[1])
    assert load.lost == []


def test_a_request_that_runs_keeps_its_version(place, tmp_path):
    place.publish(1)
    with LocalServer(place.config(), rest_port=0, grpc_port=0) as server:
        begun, go = tmp_path / "begun", tmp_path / "go"
        with grpc.insecure_channel(server.grpc_address) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            running = stub.Predict.future(asked_to_wait(begun, go), timeout=60)
            wait_for(begun.exists)
            place.publish(2)
            reload(server, place.config())
            assert states(server) == {1: "UNLOADING", 2: "AVAILABLE"}
            go.touch()
            assert running.result().model_spec.version.value == 1
        wait_for(lambda: states(server)[1] == "END")
