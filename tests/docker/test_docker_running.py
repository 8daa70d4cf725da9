"""docker/: compose's very command on the local server, and Prometheus beside it."""

import contextlib
import json
import subprocess
import sys
import urllib.parse
import urllib.request

import httpx2
import pytest
from docker_files import (
    DOCKER,
    PHOTO,
    ROOT,
    compose,
    compose_server,
    exit_status,
    free_port,
    published,
    run_page_commands,
    succeeds,
    tool,
    wait_for,
)

from serving.client import GrpcClient, RestClient

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
    status, metadata, predictions, metrics = run_page_commands(
        "8501", server.rest_port, tmp_path
    )
    assert json.loads(status)["model_version_status"][0]["state"] == "AVAILABLE"
    assert json.loads(metadata)["model_spec"]["name"] == "vit"
    assert len(json.loads(predictions)["predictions"][0]["scores"]) == 5
    assert "# TYPE :tensorflow:serving:request_count counter" in metrics


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
            wait_for(lambda: ask_server(server) and all_is_seen(url))
            yield url
        finally:
            process.terminate()


def ask_server(server):
    """Good requests and mistakes, over both interfaces."""
    url = f"http://127.0.0.1:{server.rest_port}"
    rest = RestClient(url, "vit")
    client = GrpcClient(f"127.0.0.1:{server.grpc_port}", "vit")
    mistake = httpx2.post(f"{url}/v1/models/vit:predict", content=b'{"instances": []}')
    return rest.classify([PHOTO]) and client.classify([PHOTO]) and mistake.is_error


def all_is_seen(url):
    """Whether mistakes and answers of both interfaces grew between two scrapes."""
    counts = (
        ':tensorflow:serving:request_count{status="INVALID_ARGUMENT"}',
        ':tensorflow:serving:request_latency_count{API="predict"}',
        ':tensorflow:serving:request_latency_count{API="Predict"}',
    )
    return all(any(ask(url, f"increase({count}[1m])")) for count in counts)


def ask(url, query):
    """The values of a query; None while Prometheus does not answer."""
    with contextlib.suppress(OSError):
        address = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        answer = json.load(urllib.request.urlopen(address, timeout=10))
        return [float(series["value"][1]) for series in answer["data"]["result"]]


def test_every_query_of_the_dashboard_has_data(prometheus):
    dashboard = json.loads(
        (DOCKER / "grafana" / "dashboards" / "serving.json").read_text()
    )
    asked = 0
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "1m")
            values = ask(prometheus, query.replace("$model", ".*"))
            if NOT_MEASURED_HERE not in query:
                asked += 1
                assert values, target["expr"]
                assert all(value >= 0 for value in values), (target["expr"], values)
    assert asked >= 15


def test_client_and_server_errors_are_counted_separately(prometheus):
    dashboard = json.loads(
        (DOCKER / "grafana" / "dashboards" / "serving.json").read_text()
    )
    [panel] = [panel for panel in dashboard["panels"] if panel["title"] == "Errors"]
    server, client = (
        ask(
            prometheus,
            t["expr"].replace("$__rate_interval", "1m").replace("$model", ".*"),
        )
        for t in panel["targets"]
    )
    assert server == [0]
    assert 0 < client[0] < 1


def test_promtool_reads_the_servers_page(server):
    promtool = tool("promtool", "apt-get install prometheus")
    address = f"http://127.0.0.1:{server.rest_port}/monitoring/prometheus/metrics"
    page = httpx2.get(address).content
    done = subprocess.run([promtool, "check", "metrics"], input=page, check=False)
    # 1 for a page that cannot be read; 3 for remarks about TensorFlow Serving's names.
    assert done.returncode in (0, 3)
