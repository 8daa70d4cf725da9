"""docker/ on a container engine: its images, compose.yaml as a whole, and training.

`make docker-test`. What is missing is built and pulled; docs/deployment.md says what
these tests ran with. They use the ports and commands of that page.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading

import grpc
import httpx2
import pytest
from docker_files import (
    DEPLOYMENT_PAGE,
    DOCKER,
    PHOTO,
    ROOT,
    STRAY,
    check_documented_requests,
    compose,
    files_of_the_checkout,
    is_in_context,
    make_secrets,
    published,
    run_page_commands,
    succeeds,
    tool,
)
from polling import wait_for
from prometheus_queries import all_is_seen, ask, ask_both, dashboard_queries

from serving.client import GrpcClient, RestClient, Unauthenticated

pytestmark = pytest.mark.engine

BUILD = ("docker", "build", *shlex.split(os.environ.get("DOCKER_BUILD_FLAGS", "")))
REST = "http://127.0.0.1:8501"
PROMETHEUS = "http://127.0.0.1:9090"
KILLED = 137
# Of the runs: this user, but never root, who may do what others may not.
USER = os.getuid() or 1234


@pytest.fixture(scope="module", autouse=True)
def engine():
    tool("docker", "https://docs.docker.com/engine/install")
    for words in (["info"], ["compose", "version"], ["buildx", "version"]):
        done = subprocess.run(["docker", *words], capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip() or "no answer").splitlines()[0]
            pytest.skip(f"`docker {' '.join(words)}`: {reason}")


def docker(*words, **options):
    return succeeds("docker", *words, **options)


def inspected(container, template):
    return docker("inspect", container, "--format", f"{{{{{template}}}}}").strip()


def is_there(image):
    """Whether an image is on this machine, or can be brought to it."""
    return any(
        subprocess.run(["docker", *words, image], capture_output=True).returncode == 0
        for words in (["image", "inspect"], ["pull"])
    )


@contextlib.contextmanager
def running(*words):
    """A container in the background, by its id."""
    container = docker("run", "--detach", *words).strip()
    try:
        yield container
    finally:
        docker("rm", "--force", container)


# --- images


@pytest.mark.parametrize("image", STRAY)
def test_an_images_context_has_what_the_ignore_file_says(image, tmp_path):
    """By the engine's own reading of the file; other tests read it on their own."""
    tree, out = tmp_path / "tree", tmp_path / "out"
    files = {*files_of_the_checkout(), *STRAY[image], "models/vit/1/saved_model.pb"}
    for path in files:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).touch()
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("FROM scratch\nCOPY . /\n")
    ignore = DOCKER / f"{image}.Dockerfile.dockerignore"
    shutil.copyfile(ignore, f"{dockerfile}.dockerignore")
    succeeds(*BUILD, "-f", dockerfile, "--output", f"type=local,dest={out}", tree)
    found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert found == {path for path in files if is_in_context(image, path)}


@pytest.fixture(scope="module")
def train_image():
    succeeds(*BUILD, "-f", DOCKER / "train.Dockerfile", "-t", "keras-vit/train", ROOT)
    return "keras-vit/train"


def test_the_train_image_has_only_what_was_installed(train_image):
    find = ("run", "--rm", "--user", "0", "--entrypoint", "find", train_image)
    folders = ("/source", "/keras-vit", "/home/keras-vit", "/root", "/tmp")
    # Hidden ones, such as root's .bashrc, are Debian's.
    assert docker(*find, *folders, "-type", "f", "-not", "-path", "*/.*") == ""
    [module] = docker(*find, "/usr", "-path", "*/keras_vit/__main__.py").split()
    assert "-packages/" in module


@pytest.fixture
def private_models(tiny_vit, tmp_path_factory, tmp_path):
    """A tree with models that its owner alone may read, and unfinished versions."""
    tree = tmp_path / "tree"
    shutil.copytree(published(tiny_vit, tmp_path_factory), tree / "models")
    shutil.copytree(DOCKER / "tfserving", tree / "docker" / "tfserving")
    for path in STRAY["serve"]:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).touch()
    succeeds("chmod", "-R", "go=", tree)
    return tree


def test_an_image_with_models_serves_those_that_only_their_owner_could_read(
    private_models,
):
    build = ("-f", DOCKER / "serve.Dockerfile", "--build-arg", "MODELS=models")
    succeeds(*BUILD, *build, "-t", "keras-vit/test-models", private_models)
    confined = ("--init", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")
    publish = ("--publish", "127.0.0.1::8501")
    with running(*confined, *publish, "keras-vit/test-models") as container:
        wait_for(lambda: inspected(container, ".State.Health.Status") == "healthy", 300)
        assert docker("exec", container, "id", "-u").strip() == "10001"
        listed = docker("exec", container, "ls", "-A", "/models", "/models/vit")
        assert listed.split() == ["/models:", "vit", "/models/vit:", "1"]
        address = docker("port", container, "8501").strip()
        assert RestClient(f"http://{address}", "vit").classify([PHOTO])
        docker("stop", container)
        assert inspected(container, ".State.ExitCode") != str(KILLED)
    docker("image", "rm", "keras-vit/test-models")


# --- training


@pytest.fixture
def train(train_image, tmp_path):
    """The `docker run` of the page, with its runs in a folder of their own."""
    runs = tmp_path / "runs"
    page = DEPLOYMENT_PAGE.read_text("utf-8")
    [flags] = re.findall(r"docker run --rm (--init --stop-timeout \d+) ", page)
    mounted = ("--user", f"{USER}:{USER}", "-v", f"{runs}:/keras-vit/runs")
    return runs, (*flags.split(), *mounted, train_image)


def test_a_missing_folder_of_runs_is_reported_before_tensorflow_is_imported(train):
    """Docker creates it, as root's."""
    runs, words = train
    command = ["docker", "run", "--rm", *words, "fit", "--recipe", "digits"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    reason = "runs/digits: cannot be written: Permission denied"
    assert done.stderr == f"keras-vit fit: {reason}\n"
    assert list(runs.iterdir()) == []


def test_a_stopped_training_resumes_from_its_checkpoint(train):
    runs, words = train
    runs.mkdir()
    if os.getuid() != USER:
        os.chown(runs, USER, USER)
    history = runs / "digits" / "history.csv"
    with running(*words, "fit", "--recipe", "digits", "--epochs", "20") as container:
        wait_for(history.exists, 600)
        docker("stop", container)
        assert inspected(container, ".State.ExitCode") == "75"
        told = subprocess.run(["docker", "logs", container], capture_output=True)
        assert b"keras-vit resume runs/digits" in told.stderr
    assert any((runs / "digits" / "checkpoints").iterdir())
    assert not (runs / "digits" / "report.json").exists()
    docker("run", "--rm", *words, "resume", "runs/digits")
    assert len(history.read_text().splitlines()) == 1 + 20
    assert (runs / "digits" / "report.json").exists()


# --- compose.yaml


class Stack:
    """compose.yaml's server, gateway and monitoring under a name of their own."""

    def __init__(self, folder):
        self.folder = folder
        secrets = folder / "docker" / "secrets"
        self.token = make_secrets(folder, "mkdir -p docker/secrets")
        make_secrets(folder, "install -d docker/secrets")
        self.environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": "keras-vit-test",
            "MODELS": str(folder / "models"),
            "CONFIG": str(folder / "config"),
            "SECRETS": str(secrets),
        }
        images = {
            name: re.sub(r"\$\{.*?\}", "", service["image"])
            for name, service in compose()["services"].items()
            if not name.startswith("tfserving-")
        }
        others = [name for name, image in images.items() if is_there(image)]
        self.services = ["tfserving-cpu", *others]
        # What `sudo chown 101` does on the page.
        mount = ("--user", "0", "-v", f"{secrets}:/secrets", "--entrypoint", "chown")
        files = [f"/secrets/{name}" for name in ("tls.crt", "tls.key", "tokens")]
        docker("run", "--rm", *mount, images["gateway"], "101", *files)

    def compose(self, *words):
        profiles = [f"--profile={name}" for name in ("cpu", "gateway", "monitoring")]
        command = ("docker", "compose", "-f", DOCKER / "compose.yaml", *profiles)
        return succeeds(*command, *words, env=self.environment)

    def container(self, service):
        return self.compose("ps", "--all", "--quiet", service).strip()

    def is_healthy(self, service):
        return inspected(self.container(service), ".State.Health.Status") == "healthy"


@pytest.fixture(scope="module")
def stack(tiny_vit, tmp_path_factory):
    if not is_there("tensorflow/serving:2.20.0"):
        pytest.skip("tensorflow/serving:2.20.0 cannot be pulled")
    folder = tmp_path_factory.mktemp("stack")
    shutil.copytree(published(tiny_vit, tmp_path_factory), folder / "models")
    shutil.copytree(DOCKER / "tfserving", folder / "config")
    tiny_vit(seed=12).save(folder / "best.keras")
    stack = Stack(folder)
    try:
        stack.compose("up", "--detach", "--wait", "--build", *stack.services)
        yield stack
    finally:
        stack.compose("down", "--volumes")


def test_the_project_has_the_name_in_the_file(stack):
    environment = {**stack.environment}
    del environment["COMPOSE_PROJECT_NAME"]
    words = ("compose", "-f", DOCKER / "compose.yaml", "config", "--format", "json")
    assert json.loads(docker(*words, env=environment))["name"] == "keras-vit"


def test_the_documented_requests_are_answered(stack, tmp_path):
    check_documented_requests("8501", tmp_path)


def test_rest_and_grpc_answer_alike(stack):
    [by_rest] = RestClient(REST, "vit").classify([PHOTO])
    [by_grpc] = GrpcClient("127.0.0.1:8500", "vit").classify([PHOTO])
    assert by_rest.labels == by_grpc.labels


def test_the_gateway_answers_the_documented_requests(stack):
    token = {"TOKEN": stack.token}
    *_, predictions = run_page_commands("8443", "8443", stack.folder, **token)
    assert json.loads(predictions)["predictions"][0]["scores"]


def test_the_gateway_passes_grpc_of_clients_with_a_token_only(stack):
    certificate = (stack.folder / "docker" / "secrets" / "tls.crt").read_bytes()
    trust = grpc.ssl_channel_credentials(certificate)

    def client(token):
        header = {"authorization": f"Bearer {token}"}
        return GrpcClient("localhost:8443", "vit", metadata=header, credentials=trust)

    assert client(stack.token).classify([PHOTO])
    with pytest.raises(Unauthenticated):
        client("wrong").classify([PHOTO])


def test_containers_run_as_ordinary_users_on_read_only_file_systems(stack):
    for service in stack.services:
        container = stack.container(service)
        assert docker("exec", container, "id", "-u").strip() != "0", service
        command = ["docker", "exec", container, "touch", "/etc/written"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert "Read-only file system" in done.stderr, service
        [confined] = json.loads(docker("inspect", container))
        assert confined["HostConfig"]["CapDrop"] == ["ALL"], service
        assert confined["HostConfig"]["Memory"] > 0, service


def test_labels_are_rolled_out_as_on_the_page(stack):
    """By its commands: export with a label, promote, rollback."""
    page = DEPLOYMENT_PAGE.read_text("utf-8")
    [block] = re.findall(r"```sh\n(keras-vit export runs/new/best.*?)```", page, re.S)
    config = stack.folder / "config" / "models.config"
    seen = []
    for line in block.replace("\\\n", " ").splitlines():
        for written, here in {
            "runs/new/best.keras": stack.folder / "best.keras",
            "models/vit": stack.folder / "models" / "vit",
            "docker/tfserving/models.config": config,
        }.items():
            line = re.sub(rf"(?<=\s){written}(?=\s)", str(here), line)
        command = [sys.executable, "-m", "keras_vit", *shlex.split(line)[1:]]
        succeeds(*command, cwd=ROOT)
        seen.append((version_of("stable"), version_of("canary")))
    assert seen == [("1", "2"), ("2", "2"), ("1", "1")]


def version_of(label):
    answer = httpx2.get(f"{REST}/v1/models/vit/labels/{label}/metadata")
    return answer.json()["model_spec"]["version"]


def test_prometheus_answers_every_query_of_the_dashboard(stack):
    metrics = httpx2.get(f"{REST}/monitoring/prometheus/metrics").text
    wait_for(lambda: ask_both("8501", "8500") and all_is_seen(PROMETHEUS), 300)
    queries = dashboard_queries()
    if ":batching:" not in metrics:  # the batch op's own, which a stand-in lacks
        queries = [query for query in queries if ":batching:" not in query]
    assert len(queries) >= 15
    assert [query for query in queries if not ask(PROMETHEUS, query)] == []
    rules = httpx2.get(f"{PROMETHEUS}/api/v1/rules").json()["data"]["groups"]
    assert {rule["health"] for group in rules for rule in group["rules"]} == {"ok"}


def test_grafana_has_the_dashboard(stack):
    if "grafana" not in stack.services:
        pytest.skip("Grafana's image cannot be pulled")
    password = (stack.folder / "docker/secrets/grafana_password").read_text().strip()
    found = httpx2.get("http://127.0.0.1:3000/api/search", auth=("admin", password))
    assert [board["title"] for board in found.json()]


def test_a_server_that_dies_is_started_again(stack):
    container = stack.container("tfserving-cpu")
    # All processes but the first, which ends with the server.
    subprocess.run(["docker", "exec", container, "bash", "-c", "kill -KILL -1"])
    wait_for(lambda: inspected(container, ".RestartCount") == "1")
    wait_for(lambda: stack.is_healthy("tfserving-cpu"), 300)
    assert RestClient(REST, "vit").classify([PHOTO])


def test_the_gateway_answers_a_request_that_is_in_flight_when_it_stops(stack):
    certificate = stack.folder / "docker" / "secrets" / "tls.crt"
    context = ssl.create_default_context(cafile=str(certificate))
    head = "POST /v1/models/vit:predict HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Authorization: Bearer {stack.token}\r\nContent-Length: 2\r\n\r\n{{"
    address = ("127.0.0.1", 8443)
    with (
        socket.create_connection(address, timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(head.encode())
        stopping = threading.Thread(target=stack.compose, args=("stop", "gateway"))
        stopping.start()
        wait_for(lambda: not is_reached(context))
        connection.sendall(b"}")
        answer = connection.recv(2**16).decode()
        stopping.join()
    assert answer.startswith("HTTP/1.1 400 ")
    assert "instances" in answer


def is_reached(context):
    """Whether nginx itself answers; Docker's port is open as long as the container."""
    with contextlib.suppress(httpx2.TransportError):
        httpx2.get("https://localhost:8443", verify=context)
        return True
    return False


def test_every_service_stops_before_it_is_killed(stack):
    stack.compose("stop")
    for service in stack.services:
        code = inspected(stack.container(service), ".State.ExitCode")
        assert code != str(KILLED), service
