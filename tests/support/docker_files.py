"""The files in docker/ as data, and the local server started from their commands."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import sklearn.datasets
import yaml
from server_process import server_process

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DEPLOYMENT_PAGE = ROOT / "docs" / "deployment.md"
PHOTO = pathlib.Path(sklearn.datasets.__file__).parent / "images" / "china.jpg"
VIRTUAL_ENVIRONMENT = pathlib.Path(sys.executable).parent
# Left in a checkout by a kill, by Python, by an installation, or by a person.
STRAY = {
    "train": [
        *("notes.txt", "training/photo.jpg", "serving/models/1/saved_model.pb"),
        *("training/.staging-1/a.py", "keras_vit/.lock", "training/.env.py"),
        "serving/__pycache__/a.py",
        "serving/client/keras_vit_client.egg-info/PKG-INFO",
    ],
    "serve": [
        *("models/.lock", "models/vit/.lock", "models/vit/.removed-3/saved_model.pb"),
        *("models/vit/.staging-1/variables/variables.index", "docker/secrets/tls.key"),
        *("docker/.env", "docker/tfserving/notes.txt"),
    ],
}


class Server(NamedTuple):
    """A local server in a process of its own: its ports, and its /config."""

    rest_port: str
    grpc_port: str
    config: pathlib.Path


def compose() -> dict:
    """docker/compose.yaml with its merge keys resolved."""
    return yaml.safe_load((DOCKER / "compose.yaml").read_text())


def server_command() -> list[str]:
    """The server's command line in compose.yaml, with each variable's default."""
    command = compose()["services"]["tfserving-cpu"]["command"]
    return [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", argument) for argument in command]


def is_in_context(image: str, path: str) -> bool:
    """Whether Docker sends a file to the build of an image: the last pattern decides.

    A pattern of a folder holds for what is in it.
    """
    ignore = (DOCKER / f"{image}.Dockerfile.dockerignore").read_text()
    found = True
    parents = [path, *map(str, pathlib.PurePath(path).parents)][:-1]
    for line in re.findall(r"^[^#\s].*", ignore, re.MULTILINE):
        pattern = re.escape(line.lstrip("!")).replace(r"\*\*/", "(.*/)?")
        pattern = pattern.replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
        if any(re.fullmatch(pattern, parent) for parent in parents):
            found = line.startswith("!")
    return found


def files_of_the_checkout() -> set[str]:
    """The paths of all files that git does not ignore."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    listed = succeeds(*command, cwd=ROOT).splitlines()
    return {path for path in listed if (ROOT / path).exists()}


def tool(name: str, package: str) -> str:
    """The path of a command; skips the test, with what to install, without it."""
    beside = VIRTUAL_ENVIRONMENT / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: {package}")
    return found


def succeeds(*command: str | pathlib.Path, **options) -> str:
    """What a command prints; fails the test with its output if the command fails."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def published(tiny_vit, tmp_path_factory) -> pathlib.Path:
    """A folder in which version 1 of `vit` is published, once for all test files."""
    from serving.export.publish import publish

    models = tmp_path_factory.getbasetemp() / "published"
    if not models.exists():
        publish(tiny_vit(), models / "vit")
    return models


def make_secrets(folder: pathlib.Path, name: str) -> str:
    """Runs the page's commands up to `docker` that begin so; returns their $TOKEN."""
    page = DEPLOYMENT_PAGE.read_text("utf-8")
    [block] = re.findall(
        rf"```sh\n({re.escape(name)}.*?)(?:docker |```)", page, re.DOTALL
    )
    return succeeds("bash", "-ec", f"{block}\necho $TOKEN", cwd=folder).strip()


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def page_commands(port: str) -> list[str]:
    """The commands in docs/deployment.md that ask a port with curl, each whole."""
    page = DEPLOYMENT_PAGE.read_text("utf-8")
    blocks = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    whole = re.sub(r"\\\n\s*|(?<=\|)\n\s*", " ", blocks)
    return [x for x in whole.splitlines() if "curl " in x and f":{port}/" in x]


@contextlib.contextmanager
def served(
    command: list[str], config: pathlib.Path, models: pathlib.Path, root: pathlib.Path
) -> Iterator[Server]:
    """The local server under a container's very command, on free ports.

    /config and /models, which are mounted in a container, become folders below `root`,
    on the command line and inside the files of /config.
    """
    mounted = root / "config"
    mounted.mkdir()
    for path in config.glob("*.config"):
        text = path.read_text().replace('"/models/', f'"{models}/')
        (mounted / path.name).write_text(text)
    arguments = [argument.replace("=/config/", f"={mounted}/") for argument in command]
    for port in ("--port=8500", "--rest_api_port=8501"):
        arguments.remove(port)
    with server_process(root / "server.log", *arguments) as server:
        ports = (address.rpartition(":")[2] for address in (server.rest, server.grpc))
        yield Server(*ports, mounted)


@contextlib.contextmanager
def compose_server(tiny_vit, tmp_path_factory) -> Iterator[Server]:
    """The local server under compose.yaml's command line, with a published model."""
    models = published(tiny_vit, tmp_path_factory)
    root = tmp_path_factory.mktemp("compose")
    with served(server_command(), DOCKER / "tfserving", models, root) as server:
        yield server


def exit_status(health_check, port, **environment):
    """Runs a health check of compose.yaml as Docker would."""
    command = [part.replace("$$", "$") for part in health_check["test"][1:]]
    command[-1], changed = re.subn(
        r"/dev/tcp/127\.0\.0\.1/\d+", f"/dev/tcp/127.0.0.1/{port}", command[-1]
    )
    assert changed == 1
    environment["PATH"] = os.environ["PATH"]
    return subprocess.run(
        command, env=environment, timeout=10, capture_output=True, check=False
    ).returncode


def check_documented_requests(port, folder):
    """The page's requests to a server are answered."""
    status, metadata, predictions, metrics = run_page_commands("8501", port, folder)
    assert json.loads(status)["model_version_status"][0]["state"] == "AVAILABLE"
    assert json.loads(metadata)["model_spec"]["name"] == "vit"
    assert len(json.loads(predictions)["predictions"][0]["scores"]) == 5
    assert "# TYPE :tensorflow:serving:request_count counter" in metrics


def run_page_commands(port, other_port, folder, **environment):
    """What each of the page's commands for a port prints, with another port."""
    (folder / ".curlrc").write_text("fail\nsilent\nshow-error\n")
    (folder / "photo.jpg").write_bytes(PHOTO.read_bytes())
    environment = {**os.environ, "CURL_HOME": str(folder), **environment}
    return [
        succeeds(
            "bash",
            *("-euo", "pipefail", "-c", line.replace(f":{port}/", f":{other_port}/")),
            cwd=folder,
            env=environment,
        )
        for line in page_commands(port)
    ]
