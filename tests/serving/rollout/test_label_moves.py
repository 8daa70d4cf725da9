"""Labels in TensorFlow Serving's config file: promote, rollback, list, prune."""

import dataclasses
import shlex
import threading

import pytest
import tensorflow as tf
from google.protobuf import text_format
from polling import wait_for
from server_requests import local_server
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from keras_vit.common.command_line import CommandError
from serving.__main__ import main
from serving.client import RestClient, ServingError
from serving.local.config import config_of
from serving.local.flags import parse_flags
from serving.rollout import label_moves, manifest, model_config, server_status
from serving.rollout.served_model import ServedModel
from serving.rollout.versions import staged_version, versions

OTHER = """
model_config_list {
  config { name: "other" base_path: "/models/other" model_platform: "tensorflow" }
}
"""


@pytest.fixture
def target(tmp_path):
    (tmp_path / "m").mkdir()
    return ServedModel(tmp_path / "m", tmp_path / "models.config", "m", None)


def put(target):
    """Publish a version that returns its own number."""
    with staged_version(target.folder) as (folder, number):

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
        def answer(x):
            return {"version": tf.ones_like(x) * number}

        tf.saved_model.save(tf.Module(), str(folder), {"serving_default": answer})
        facts = {"created": "2026-01-02T03:04:05+00:00", "export_format": "savedmodel"}
        agreement = {"max_difference": 1e-7, "top1": 1.0, "images": 8}
        manifest.write(folder, {**facts, "agreement": agreement})
    return number


def make(target, count):
    """Publish versions that cannot be loaded."""
    for _ in range(count):
        with staged_version(target.folder) as (folder, _):
            (folder / "saved_model.pb").write_text("")


def entry(target):
    """Labels and versions of the entry, read through TensorFlow Serving's message."""
    text = target.config.read_text("utf-8")
    config = text_format.Parse(text, ModelServerConfig())
    [model] = [m for m in config.model_config_list.config if m.name == target.name]
    policy = model.model_version_policy
    return dict(model.version_labels), list(policy.specific.versions)


def run(command, target, *arguments):
    return main(
        [command, str(target.folder), "--config", str(target.config)]
        + [str(argument) for argument in arguments]
    )


def test_versions_are_folders_named_by_an_ascii_number(tmp_path):
    for name in ("1", "00012", "٣", "²", "-4", "5.0", str(2**63), "6.tmp"):
        (tmp_path / name).mkdir()
    assert versions(tmp_path) == [1, 12]
    assert versions(tmp_path / "none") == []


def test_list_of_a_folder_without_versions(target, capsys):
    assert main(["versions", str(target.folder)]) == 0
    assert capsys.readouterr().out == f"no versions in {target.folder}\n"


def test_a_model_without_labels_is_served_by_its_newest_version(target):
    make(target, 1)
    label_moves.add(target, 1, None, "/models/m")
    config = model_config.read(target.config)
    assert text_format.MessageToString(config) == (
        'model_config_list {\n  config {\n    name: "m"\n    base_path: "/models/m"\n'
        '    model_platform: "tensorflow"\n  }\n}\n'
    )


def test_promote_and_roll_back_a_canary(target, capsys):
    make(target, 2)
    label_moves.add(target, 1, "stable", None)
    label_moves.add(target, 2, "canary", None)
    assert entry(target) == ({"stable": 1, "canary": 2}, [1, 2])
    assert run("promote", target) == 0
    assert entry(target) == ({"stable": 2, "canary": 2, "previous": 1}, [1, 2])
    assert run("rollback", target) == 0
    assert entry(target) == ({"stable": 1, "canary": 1}, [1])
    assert run("rollback", target) == 1
    assert "no label previous to go back to" in capsys.readouterr().err


def test_the_first_label_leaves_the_version_that_was_served_stable(target):
    make(target, 3)
    label_moves.add(target, 3, "canary", None)
    assert entry(target) == ({"stable": 2, "canary": 3}, [2, 3])


def test_without_a_server_a_label_moves_once_its_version_is_loaded(target, capsys):
    make(target, 3)
    label_moves.add(target, 1, "stable", None)
    label_moves.add(target, 2, "canary", None)
    label_moves.add(target, 3, "canary", None)
    assert entry(target) == ({"stable": 1, "canary": 2}, [1, 2, 3]), "first it loads"
    second = capsys.readouterr().out.splitlines()[-1].split()
    assert second[:2] == ["keras-vit", "promote"]
    assert main(second[1:]) == 0
    assert entry(target) == ({"stable": 1, "canary": 3}, [1, 3])


def test_an_unlabeled_version_is_not_served(target, capsys):
    make(target, 2)
    label_moves.add(target, 1, "stable", None)
    label_moves.add(target, 2, None, None)
    assert entry(target) == ({"stable": 1}, [1])
    assert "not served until it gets a label" in capsys.readouterr().out


def test_other_entries_comments_and_permissions_are_kept(target):
    head = "# who owns this file\n\n# and why\n"
    target.config.write_text(head + OTHER)
    target.config.chmod(0o640)
    make(target, 1)
    label_moves.add(target, 1, "stable", "/models/m")
    text = target.config.read_text()
    assert text.startswith(head)
    config = text_format.Parse(text, ModelServerConfig())
    assert config.model_config_list.config[0].base_path == "/models/other"
    assert config.model_config_list.config[1].base_path == "/models/m"
    assert target.config.stat().st_mode & 0o777 == 0o640
    assert {path.name for path in target.config.parent.iterdir()} == {
        "m",
        "models.config",
        ".lock",
    }


def test_a_symlink_to_the_config_file_is_kept(target):
    real = target.config.with_name("real.config")
    target.config.symlink_to(real)
    make(target, 1)
    label_moves.add(target, 1, "stable", None)
    assert target.config.is_symlink()
    assert "stable" in real.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model_config_lost {}", "not a model config file"),
        ("model_config_list {", "not a model config file"),
        ("model_config_list {\n # why\n}", "comments between its fields"),
        (OTHER + "# the end", "comments between its fields"),
        ("custom_model_config {}", "must have a model_config_list"),
    ],
)
def test_an_unsupported_config_file_is_not_changed(target, text, message):
    target.config.write_text(text)
    make(target, 1)
    with pytest.raises(CommandError, match=message):
        label_moves.add(target, 1, "stable", None)
    assert target.config.read_text() == text


def test_a_number_sign_in_quotes_is_not_a_comment(target):
    target.config.write_text(OTHER.replace("other", "oth#er"))
    make(target, 1)
    label_moves.add(target, 1, "stable", None)
    assert "oth#er" in target.config.read_text()


def test_a_failed_write_keeps_the_config_file(target, monkeypatch):
    make(target, 1)
    target.config.write_text(OTHER)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("keras_vit.common.atomic_files.flush", fail)
    with pytest.raises(CommandError, match="No space left"):
        label_moves.add(target, 1, "stable", None)
    assert target.config.read_text() == OTHER
    assert not list(target.config.parent.glob(".models.config*"))


def test_a_reader_of_the_config_file_is_not_disturbed(target):
    make(target, 1)
    target.config.write_text(OTHER)
    with target.config.open() as opened:
        label_moves.add(target, 1, "stable", None)
        assert opened.read() == OTHER


def test_concurrent_changes_are_all_kept(target):
    def add(name):
        with model_config.changing(target.config) as config:
            model_config.add_entry(config, name, f"/models/{name}")

    threads = [threading.Thread(target=add, args=(f"m{i}",)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    names = {m.name for m in model_config.read(target.config).model_config_list.config}
    assert names == {f"m{i}" for i in range(16)}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("promote --version 9", 1, "no version 9. There are: 1, 2"),
        ("promote --label none", 1, "no label none. There are: stable"),
        ("promote --version 1 --to previous", 2, "reserved for rollback"),
        ("promote --version 1 --to a/b", 2, "a label must not contain /"),
        ("promote --version 1 --served_from m", 2, "begin with"),
        ("promote --version 1 --served_from /n", 1, "is served from"),
        ("prune --name nobody", 1, "has no model nobody"),
    ],
)
def test_errors_are_reported_and_change_nothing(
    target, arguments, status, message, capsys
):
    make(target, 2)
    label_moves.add(target, 1, "stable", None)
    before = target.config.read_text()
    command, *rest = arguments.split()
    assert run(command, target, *rest) == status
    assert message in capsys.readouterr().err
    assert target.config.read_text() == before


@pytest.mark.parametrize("command", ["versions", "promote", "prune", "rollback"])
def test_a_missing_config_file_is_reported(target, command, capsys):
    make(target, 2)
    assert run(command, target) == 1
    error = capsys.readouterr().err
    assert error.endswith(f"--config {target.config}: no such file\n")
    assert not target.config.exists()


def test_a_new_config_file_is_reported(target, capsys):
    make(target, 2)
    label_moves.add(target, 1, "stable", None)
    assert f"{target.config}: a new file" in capsys.readouterr().out
    label_moves.add(target, 2, "stable", None)
    assert "new file" not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["versions", "prune", "rollback"])
def test_a_missing_folder_is_reported(tmp_path, command, capsys):
    arguments = [] if command == "versions" else ["--without_config"]
    assert main([command, str(tmp_path / "none"), *arguments]) == 1
    assert "none: no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["prune", "rollback"])
def test_commands_that_remove_versions_need_a_config_file_or_its_absence(
    tmp_path, command
):
    folder = str(tmp_path)
    assert main([command, folder]) == 2
    assert main([command, folder, "--without_config", "--config", "c"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prune", "m", "--without_config", "--keep", "0"], "must be at least 1"),
        (["promote", "m"], "are required: --config"),
        (["rollback"], "are required: FOLDER"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_prune_keeps_labeled_and_newest_versions(target, capsys):
    make(target, 7)
    label_moves.add(target, 2, "stable", None)
    label_moves.add(target, 4, "canary", None)
    assert run("prune", target, "--keep", 2) == 0
    assert "1, 3, 5 would be removed" in capsys.readouterr().out
    assert versions(target.folder) == [1, 2, 3, 4, 5, 6, 7]
    assert run("prune", target, "--keep", 2, "--yes") == 0
    assert versions(target.folder) == [2, 4, 6, 7]
    names = {path.name for path in target.folder.iterdir()}
    assert names == {"2", "4", "6", "7", ".lock"}


def test_prune_keeps_versions_of_a_foreign_policy(target):
    make(target, 5)
    target.config.write_text(
        'model_config_list { config { name: "m" base_path: "/models/m" '
        "model_version_policy { latest { num_versions: 2 } } "
        'version_labels { key: "old" value: 1 } } }'
    )
    assert run("prune", target, "--keep", 1, "--yes") == 0
    assert versions(target.folder) == [1, 4, 5]


def test_prune_keeps_versions_of_other_models_of_the_folder(target):
    make(target, 3)
    label_moves.add(target, 3, "stable", None)
    label_moves.add(target._replace(name="twin"), 1, "stable", None)
    assert run("prune", target, "--keep", 1, "--yes") == 0
    assert versions(target.folder) == [1, 3]


def test_rollback_without_a_config_file_hides_the_newest_version(target, capsys):
    make(target, 2)
    rollback = ["rollback", str(target.folder), "--without_config"]
    assert main(rollback) == 0
    assert versions(target.folder) == [1]
    assert main(rollback) == 1
    assert "no version to go back to" in capsys.readouterr().err
    make(target, 1)
    assert versions(target.folder) == [1, 3], "2 is not used again"


def test_list_does_not_truncate_in_a_pipe(target, capsys):
    put(target)
    label_moves.add(target, 1, "x" * 100, None)
    assert run("versions", target) == 0
    assert "x" * 100 in capsys.readouterr().out


def test_list_shows_labels_and_damage(target, capsys):
    make(target, 1)  # without a manifest
    put(target)
    label_moves.add(target, 1, "stable", None)
    label_moves.add(target, 2, "canary", None)
    capsys.readouterr()
    assert run("versions", target) == 0
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert first.split()[:3] == ["1", "stable", "-"]
    assert second.split()[:4] == ["2", "canary", "2026-01-02", "03:04"]
    (target.folder / "1" / "saved_model.pb").unlink()
    with (target.folder / "2" / "saved_model.pb").open("ab") as file:
        file.write(b"!")
    assert run("versions", target, "--verify") == 1
    shown = capsys.readouterr().out
    assert "m/2/saved_model.pb: changed" in shown
    assert "m/1/assets.extra/manifest.json: missing or not readable" in shown


class Requests(threading.Thread):
    """Requests of the label `stable`, and without a label, during its block."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.answers, self.failures = [], []
        self.clients = [RestClient(url, "m", label="stable"), RestClient(url, "m")]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.join(30)

    def run(self):
        while not self.stopped.is_set():
            for client in self.clients:
                try:
                    self.answers.append(ask(client))
                except ServingError as error:
                    self.failures.append(error)


def ask(client):
    return client.predict({"x": [0.0]})["version"].tolist()[0]


@pytest.fixture
def server(target):
    """A server that polls the config file every second, with version 1 stable."""
    put(target)
    label_moves.add(target, 1, "stable", None)
    config = model_config.read(target.config)
    flags = {
        "model_config_file": str(target.config),
        "model_config_file_poll_wait_seconds": 1,
        "allow_version_labels_for_unavailable_models": True,
        "max_num_load_retries": 0,  # by default five, a minute apart
    }
    with local_server(config, **flags) as running:
        yield running


@pytest.mark.slow
def test_labels_move_on_a_server_without_losing_a_request(target, server):
    """Export, canary, promote, rollback, under constant requests."""
    url = server.rest_url
    target = target._replace(rest=url)

    def labeled(label):
        with RestClient(url, "m", label=label) as client:
            return ask(client)

    with Requests(url) as requests:
        label_moves.add(target, put(target), "canary", None)
        assert (labeled("stable"), labeled("canary")) == (1, 2)
        assert run("promote", target, "--rest", url) == 0
        assert (labeled("stable"), labeled("previous")) == (2, 1)
        label_moves.add(target, put(target), "canary", None)
        assert (labeled("stable"), labeled("canary")) == (2, 3)
        assert run("rollback", target, "--rest", url) == 0
        assert (labeled("stable"), labeled("canary")) == (1, 3)
    assert requests.failures == []
    assert len(requests.answers) > 100
    assert {1, 2, 3} == set(requests.answers)
    # No label points to 2 any more.
    wait_for(lambda: server_status.states(url, "m")[2].state == "END", 20)


def test_a_version_that_cannot_be_loaded_gets_no_label(target, server, capsys):
    target = target._replace(rest=server.rest_url)
    make(target, 1)  # its saved_model.pb is empty
    with pytest.raises(CommandError, match="cannot load version 2 of m"):
        label_moves.add(target, 2, "stable", None)
    assert entry(target) == ({"stable": 1}, [1])


@pytest.fixture
def served_from_labels(target):
    """Versions 1 to 3, of which 2 is stable, 1 previous and 3 the canary."""
    make(target, 3)
    for version, label in ((1, "stable"), (2, "stable"), (3, "canary")):
        for _ in ("loads it", "points there"):
            label_moves.add(target, version, label, None)
    return target


NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize("command", ["promote", "rollback"])
@pytest.mark.usefixtures("without_retries")
def test_an_unreachable_server_is_reported(served_from_labels, command, capsys):
    before = served_from_labels.config.read_text()
    assert run(command, served_from_labels, "--rest", NOWHERE) == 1
    assert NOWHERE in capsys.readouterr().err
    assert served_from_labels.config.read_text() == before


@pytest.mark.parametrize("text", [None, OTHER])
@pytest.mark.usefixtures("without_retries")
def test_a_first_label_needs_the_server_and_its_config_file(target, text):
    make(target, 1)
    if text:
        target.config.write_text(text)
    message = NOWHERE if text else "models.config: no such file: the server at"
    with pytest.raises(CommandError, match=message):
        label_moves.add(target._replace(rest=NOWHERE), 1, "stable", None)
    assert target.config.exists() == bool(text)
    assert not text or target.config.read_text() == text


@pytest.mark.parametrize("error", [CommandError("gave up"), KeyboardInterrupt()])
@pytest.mark.parametrize("last", ["wait_available", "wait_points"])
@pytest.mark.parametrize(
    "change",
    [
        lambda target: label_moves.add(target, 3, "stable", None),
        lambda target: label_moves.add(target, 1, "new", None),
        lambda target: label_moves.add(target._replace(name="n"), 3, "stable", None),
        label_moves.roll_back,
    ],
)
def test_a_failed_move_restores_the_config_file(
    served_from_labels, change, last, error, monkeypatch
):
    def fail(*_):
        changed.append(served_from_labels.config.read_text())
        raise error

    changed = []
    before = served_from_labels.config.read_text()
    monkeypatch.setattr(server_status, "states", lambda *_: {})
    monkeypatch.setattr(server_status, "wait_available", lambda *_: None)
    monkeypatch.setattr(server_status, last, fail)
    with pytest.raises(type(error)):
        change(served_from_labels._replace(rest="http://127.0.0.1:8501"))
    assert served_from_labels.config.read_text() == before
    assert last == "wait_available" or changed != [before]


@pytest.mark.parametrize("label", [None, "stable", "canary"])
def test_the_printed_serve_command_works(target, label, capsys):
    put(target)
    label_moves.add(target, 1, label, None)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("to serve it: keras-vit serve --")
    flags = parse_flags(shlex.split(line)[5:])
    config = config_of(flags)
    options = dataclasses.asdict(flags)
    for name in ("port", "rest_api_port"):
        del options[name]
    with (
        local_server(config, **options) as server,
        RestClient(server.rest_url, "m", label=label) as client,
    ):
        assert ask(client) == 1


def test_the_serve_command_is_printed_once_and_for_local_folders_only(target, capsys):
    make(target, 2)
    label_moves.add(target, 1, None, None)
    assert "to serve it" in capsys.readouterr().out
    label_moves.add(target, 1, "stable", None)
    assert "--allow_version_labels_for_unavailable_models" in capsys.readouterr().out
    label_moves.add(target, 2, "canary", None)
    label_moves.add(target._replace(name="n"), 1, "stable", "/models/n")
    assert "to serve it" not in capsys.readouterr().out
