"""Version policy, retries and unloading, with a fake loader."""

import pytest
from served_versions import config
from tensorflow_serving.apis.model_pb2 import ModelSpec

from serving.local.config import read_model_config
from serving.local.flags import ServerOptions
from serving.local.server_core import ServedModels
from serving.local.status_errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    StartError,
    StatusError,
)
from serving.local.version_lifecycle import State

NAMES = {number: name for name, number in State.State.items()}


class Loaded:
    """A fake loaded model that only knows its folder."""

    def __init__(self, folder):
        self.folder = folder
        self.closed = False

    def close(self):
        self.closed = True


class Loader:
    """A fake loader with scripted failures.

    Attributes:
        failures: by the folder's name, the errors of its next loads.
        loaded: the folders' names in the order of loading.
        before: called before a load returns.
    """

    def __init__(self):
        self.failures = {}
        self.loaded = []
        self.before = lambda name: None

    def __call__(self, folder):
        name = folder.rpartition("/")[2]
        if self.failures.get(name):
            raise self.failures[name].pop(0)
        self.before(name)
        self.loaded.append(name)
        return Loaded(folder)


@pytest.fixture
def loader():
    return Loader()


@pytest.fixture
def base(tmp_path):
    """Make version folders in a base path."""
    path = tmp_path / "m"
    path.mkdir()

    def make(*names):
        for name in names:
            (path / name).mkdir()
        return path

    return make


def models(loader, **flags):
    flags = {"load_retry_interval_micros": 0, "max_num_load_retries": 0, **flags}
    return ServedModels(ServerOptions(**flags), loader)


@pytest.fixture
def served(loader, base):
    """Served models with version 1."""
    served = models(loader)
    served.start(config(base("1")))
    return served


def states(served):
    status = served.status(ModelSpec(name="m"))
    return {one.version: NAMES[one.state] for one in status.model_version_status}


def found(served, **choice):
    spec = ModelSpec(name="m")
    for name, value in choice.items():
        if name == "version":
            spec.version.value = value
        else:
            spec.version_label = value
    with served.use(spec) as (_, number):
        return number


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ("", {7}),
        ("latest { }", {7}),
        ("latest { num_versions: 2 }", {5, 7}),
        ("latest { num_versions: 9 }", {1, 5, 7}),
        ("all { }", {1, 5, 7}),
        ("specific { versions: 1 versions: 5 }", {1, 5}),
        ("specific { versions: 5 versions: 6 }", {5}),
    ],
)
def test_the_policy_selects_versions(loader, base, policy, wanted):
    path = base("1", "005", "7", ".staging-9", "9x", "-3", "9223372036854775808")
    served = models(loader)
    served.start(config(path, policy))
    assert set(states(served)) == wanted
    assert set(loader.loaded) <= {"1", "005", "7"}
    assert found(served) == max(wanted)


def test_of_two_spellings_of_a_number_one_is_served(loader, base):
    served = models(loader)
    served.start(config(base("007", "7")))
    assert states(served) == {7: "AVAILABLE"}
    assert loader.loaded == ["7"]


def test_the_old_version_goes_only_once_the_new_one_is_there(served, loader, base):
    seen = []
    loader.before = lambda name: seen.append((name, states(served)))
    base("2")
    served.refresh(scan=True)
    assert seen == [("2", {1: "AVAILABLE", 2: "LOADING"})]
    assert states(served) == {1: "END", 2: "AVAILABLE"}


@pytest.mark.parametrize(("flag", "retries"), [(2, 2), (None, 5)])
def test_max_num_load_retries_limits_attempts(loader, base, flag, retries):
    path = base("1")
    served = models(loader, max_num_load_retries=flag)
    served.start(config(path))
    base("2")
    loader.failures["2"] = [StatusError("no", "DATA_LOSS") for _ in range(9)]
    seen = []
    for _ in range(retries + 3):
        due = served.refresh(scan=True)
        seen.append((states(served)[2], due is not None))
    assert seen == [("LOADING", True)] * retries + [("END", False)] * 3
    assert len(loader.failures["2"]) == 9 - (1 + retries)
    assert found(served) == 1


def test_load_retry_interval_separates_attempts(loader, base):
    path = base("1")
    served = models(
        loader, max_num_load_retries=2, load_retry_interval_micros=3_600_000_000
    )
    served.start(config(path))
    base("2")
    loader.failures["2"] = [StatusError("no")]
    for _ in range(3):
        served.refresh(scan=True)
    assert states(served)[2] == "LOADING"
    assert loader.loaded == ["1"]


def test_whatever_a_loader_raises_ends_only_that_version(served, loader, base):
    base("2")
    loader.failures["2"] = [MemoryError("too large")]
    served.refresh(scan=True)
    assert states(served) == {1: "AVAILABLE", 2: "END"}
    error = served.status(ModelSpec(name="m")).model_version_status[0].status
    assert "too large" in error.error_message
    base("3")
    served.refresh(scan=True)
    assert found(served) == 3


def test_a_version_that_failed_is_tried_again_once_it_was_away(served, loader, base):
    base("2")
    loader.failures["2"] = [StatusError("no")]
    served.refresh(scan=True)
    served.refresh(scan=True)
    assert states(served)[2] == "END"
    (base() / "2").rmdir()
    served.refresh(scan=True)
    base("2")
    served.refresh(scan=True)
    assert states(served)[2] == "AVAILABLE"


def test_a_failed_start_names_the_version(loader, base):
    loader.failures["1"] = [StatusError("no such thing")]
    with pytest.raises(StartError, match="model m, version 1, cannot be loaded: no su"):
        models(loader).start(config(base("1")))


def test_a_start_retries_if_the_flag_says_so(loader, base):
    loader.failures["1"] = [StatusError("no")] * 2
    served = models(loader, max_num_load_retries=2)
    served.start(config(base("1")))
    assert found(served) == 1


def test_a_reload_reports_a_model_without_versions_at_once(served, base, tmp_path):
    wanted = config(base())
    (tmp_path / "empty").mkdir()
    wanted.model_config_list.config.add(
        name="n", base_path=str(tmp_path / "empty"), model_platform="tensorflow"
    )
    with pytest.raises(StatusError, match="1 model.s. did not become available"):
        served.reload(wanted)
    assert found(served) == 1


def test_a_request_finds_the_version_that_took_over_meanwhile(served, loader, base):
    """The first attempt finds version 1, which is gone before it can be used."""
    model = served._models["m"]
    look = model.candidates

    def look_and_swap(spec):
        candidates = look(spec)
        if "2" not in loader.loaded:
            base("2")
            served.refresh(scan=True)
        return candidates

    model.candidates = look_and_swap
    assert found(served) == 2


def test_a_model_in_use_is_closed_by_its_last_user(served, loader, base):
    with served.use(ModelSpec(name="m")) as (loaded, _):
        base("2")
        served.refresh(scan=True)
        assert states(served)[1] == "UNLOADING"
        assert not loaded.closed
    assert loaded.closed
    assert states(served)[1] == "END"


def test_labels_move_to_loaded_versions_only(loader, base):
    path = base("1", "2")
    labeled = config(path, "all { }", {"a": 1})
    served = models(loader)
    with pytest.raises(StartError, match="allow_version_labels_for_unavailable_models"):
        served.start(labeled)
    served = models(loader, allow_version_labels_for_unavailable_models=True)
    served.start(labeled)
    assert found(served, version_label="a") == 1
    with pytest.raises(InvalidArgument, match="Unrecognized servable version label: b"):
        found(served, version_label="b")
    served.reload(config(path, "all { }", {"a": 2}))
    assert found(served, version_label="a") == 2
    with pytest.raises(FailedPrecondition, match="Request to assign label to version"):
        served.reload(config(path, "all { }", {"a": 3}))
    assert found(served, version_label="a") == 2
    new = config(path, "all { }", {"b": 3})
    served.reload(new)
    with pytest.raises(NotFound, match="Specific.m, 3."):
        found(served, version_label="b")
    with pytest.raises(NotFound, match="Specific.m, 9."):
        found(served, version=9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model_config_list {", "Error parsing text-format tensorflow.serving"),
        ("model_config_lst { }", "Error parsing text-format"),
        ("model_config_list { config { nam: 'm' } }", "no field named"),
        ("model_config_list { }", "names no model"),
        ("\xff\xfe\x00", "Error parsing"),
        (
            "model_config_list { config { name: 'm' base_path: 'm' } }",
            "Expected model m to have an absolute path or URI; got base_path.*=m",
        ),
        (
            "model_config_list { config { name: 'm' base_path: 'gs://b/m' } }",
            "model m: the local server reads local folders only",
        ),
        (
            "model_config_list { config { name: 'm' base_path: '/m' } "
            "config { name: 'm' base_path: '/n' } }",
            "Illegal to list model m multiple times in config list",
        ),
    ],
)
def test_an_invalid_configuration_file_is_explained(tmp_path, text, message):
    file = tmp_path / "models.config"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(StatusError, match=message):
        read_model_config(str(file))
