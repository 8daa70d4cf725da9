"""docker/: compose's very command on the local server, and Prometheus beside it."""

import subprocess
import sys

import httpx2
import pytest
from docker_files import (
    DOCKER,
    ROOT,
    check_documented_requests,
    compose,
    compose_server,
    exit_status,
    free_port,
    published,
    succeeds,
    tool,
)
from polling import wait_for
from prometheus_queries import all_is_seen, ask, ask_both, dashboard_queries

pytestmark = pytest.mark.slow

SERVER = compose()["services"]["tfserving-cpu"]


@pytest.fixture(scope="module")
def server(tmp_path_factory, tiny_vit):
    with compose_server(tiny_vit, tmp_path_factory) as server:
        yield server


# --- the server


def test_the_health_check_passes_while_the_model_is_loaded(server):
    check = SERVER["healthcheck"]
    assert exit_status(check, server.rest_port, MODEL_NAME="vit") == 0
    assert exit_status(check, server.rest_port, MODEL_NAME="other") != 0
    assert exit_status(check, free_port(), MODEL_NAME="vit") != 0


def test_the_documented_requests_are_answered(server, tmp_path):
    tool("curl", "apt-get install curl")
    check_documented_requests(server.rest_port, tmp_path)


def test_labels_move_without_a_restart(server, tiny_vit, tmp_path_factory):
    models = published(tiny_vit, tmp_path_factory) / "vit"
    url = f"http://127.0.0.1:{server.rest_port}"
    config = server.config / "models.config"
    head = config.read_text().split("model_config_list")[0]
    command = [sys.executable, "-m", "serving", "promote", str(models)]
    flags = ("--config", str(config), "--rest", url, "--version", "1")
    succeeds(*command, *flags, cwd=ROOT)
    assert config.read_text().startswith(head)
    labeled = httpx2.get(f"{url}/v1/models/vit/labels/stable/metadata")
    assert labeled.json()["model_spec"]["version"] == "1"


# --- Prometheus and the dashboard

# TensorFlow's own counters, which the local server does not have.
NOT_MEASURED_HERE = ":batching:"


@pytest.fixture(scope="module")
def prometheus(server, tmp_path_factory):
    """Prometheus with docker/prometheus, once it has scraped answers of each kind."""
    program = tool("prometheus", "apt-get install prometheus")
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    for path in (DOCKER / "prometheus").iterdir():
        text = path.read_text().replace(
            "tfserving:8501", f"127.0.0.1:{server.rest_port}"
        )
        (folder / path.name).write_text(text.replace("_interval: 15s", "_interval: 1s"))
    command = [
        *(program, f"--config.file={folder}/prometheus.yml"),
        *(
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(lambda: ask(url, 'up{job="tfserving"}') is not None)
            wait_for(
                lambda: (
                    ask_both(server.rest_port, server.grpc_port) and all_is_seen(url)
                )
            )
            yield url
        finally:
            process.terminate()


def test_every_query_of_the_dashboard_has_data(prometheus):
    queries = [query for query in dashboard_queries() if NOT_MEASURED_HERE not in query]
    assert len(queries) >= 15
    for query in queries:
        values = ask(prometheus, query)
        assert values, query
        assert all(value >= 0 for value in values), (query, values)


def test_client_and_server_errors_are_counted_separately(prometheus):
    server, client = (ask(prometheus, query) for query in dashboard_queries("Errors"))
    assert server == [0]
    assert 0 < client[0] < 1


def test_promtool_reads_the_servers_page(server):
    promtool = tool("promtool", "apt-get install prometheus")
    address = f"http://127.0.0.1:{server.rest_port}/monitoring/prometheus/metrics"
    page = httpx2.get(address).content
    done = subprocess.run([promtool, "check", "metrics"], input=page, check=False)
    # 1 for a page that cannot be read; 3 for remarks about TensorFlow Serving's names.
    assert done.returncode in (0, 3)
