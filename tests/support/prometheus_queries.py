"""Prometheus's HTTP interface, and the queries of the dashboard in docker/grafana."""

import contextlib
import json
import urllib.parse
import urllib.request

import httpx2
from docker_files import DOCKER, PHOTO

from serving.client import GrpcClient, RestClient


def dashboard_queries(title: str | None = None) -> list[str]:
    """The queries of all panels, or of one, for all models and over a minute."""
    dashboard = DOCKER / "grafana" / "dashboards" / "serving.json"
    return [
        target["expr"].replace("$__rate_interval", "1m").replace("$model", ".*")
        for panel in json.loads(dashboard.read_text())["panels"]
        if title in (None, panel["title"])
        for target in panel["targets"]
    ]


def ask(url: str, query: str) -> list[float] | None:
    """The values of a query; None while Prometheus does not answer."""
    with contextlib.suppress(OSError):
        address = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        answer = json.load(urllib.request.urlopen(address, timeout=10))
        return [float(series["value"][1]) for series in answer["data"]["result"]]
    return None


def ask_both(rest_port: str, grpc_port: str) -> bool:
    """Send requests to the model `vit` of a server, good ones and a mistake."""
    url = f"http://127.0.0.1:{rest_port}"
    mistake = httpx2.post(f"{url}/v1/models/vit:predict", content=b'{"instances": []}')
    rest, grpc = RestClient(url, "vit"), GrpcClient(f"127.0.0.1:{grpc_port}", "vit")
    return all([rest.classify([PHOTO]), grpc.classify([PHOTO]), mistake.is_error])


def all_is_seen(url: str) -> bool:
    """Whether mistakes and answers of both interfaces grew between two scrapes."""
    counts = (
        ':tensorflow:serving:request_count{status="INVALID_ARGUMENT"}',
        ':tensorflow:serving:request_latency_count{API="predict"}',
        ':tensorflow:serving:request_latency_count{API="Predict"}',
    )
    return all(any(ask(url, f"increase({count}[1m])") or []) for count in counts)
