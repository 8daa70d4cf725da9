"""The metrics page, parsed by Prometheus's own client library."""

import threading

import grpc
import numpy as np
import pytest
from double_model import save_double_model
from prometheus_client.parser import text_string_to_metric_families
from served_versions import warmup_file
from server_requests import local_server, predict_request, prediction_stub, request

from serving.local.metrics import Counter, Histogram, Metrics

PATH = "/monitoring/prometheus/metrics"
SERVING = ":tensorflow:serving:"


def samples(page):
    """Samples by name and labels, as Prometheus parses them."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def of(page, name, **labels):
    found, key = samples(page), tuple(sorted(labels.items()))
    # Prometheus's library gives every counter the ending of newer formats.
    return found.get((name, key), found.get((f"{name}_total", key)))


@pytest.fixture(scope="module")
def base_path(tmp_path_factory):
    """A version with two warm-up requests."""
    folder = save_double_model(tmp_path_factory.mktemp("double") / "1")
    warmup_file(folder, *[predict_request("double", x=np.float32([1]))] * 2)
    return folder.parent


@pytest.fixture
def server(base_path, monitoring):
    models = {"double": base_path}
    with local_server(models, monitoring_config_file=monitoring) as running:
        yield running


def page_of(server):
    status, page = request(server, "GET", PATH)
    assert status == 200
    return page


def test_loads_and_warm_ups_are_counted(server, base_path):
    page = page_of(server)
    folder = str(base_path / "1")
    load = ":tensorflow:cc:saved_model:load_"
    warmup = f"{SERVING}model_warmup_"
    assert of(page, f"{load}attempt_count", model_path=folder, status="success") == 1
    assert of(page, f"{load}latency", model_path=folder) > 0
    assert of(page, f"{warmup}latency_count", model_path=folder, status="OK") == 1
    assert of(page, f"{warmup}records_read", model_path=folder) == 2
    assert of(page, ":tensorflow:core:graph_runs") == 2


def test_requests_are_counted_by_model_interface_and_status(server):
    path = "/v1/models/double:predict"
    for _ in range(3):
        assert request(server, "POST", path, '{"instances": [1.0]}')[0] == 200
    assert request(server, "POST", path, '{"instances": ["a"]}')[0] == 400
    assert request(server, "GET", "/v1/models/double")[0] == 200
    assert request(server, "GET", "/v1/models/nope")[0] == 404
    with prediction_stub(server) as stub:
        stub.Predict(predict_request("double", x=np.float32([1, 2])))
        with pytest.raises(grpc.RpcError):
            stub.Predict(predict_request("double", "nope"))
    page = page_of(server)
    count, latency = f"{SERVING}request_count", f"{SERVING}request_latency_count"
    runtime = f"{SERVING}runtime_latency_count"
    double = {"model_name": "double"}
    assert of(page, count, **double, status="OK") == 5
    assert of(page, count, **double, status="INVALID_ARGUMENT") == 1
    assert of(page, count, **double, status="FAILED_PRECONDITION") == 1
    assert of(page, count, model_name="nope", status="NOT_FOUND") == 1
    assert of(page, latency, **double, API="predict", entrypoint="REST") == 3
    assert of(page, latency, **double, API="Predict", entrypoint="GRPC") == 1
    assert of(page, latency, **double, API="", entrypoint="REST") == 1
    assert of(page, runtime, **double, API="Predict", runtime="TF1") == 4
    assert of(page, ":tensorflow:core:graph_runs") == 2 + 4
    assert of(page, ":tensorflow:core:graph_run_time_usecs_histogram_count") == 6


def test_examples_are_counted(server):
    body = '{"signature_name": "regress", "examples": [{"x": 1.0}, {"x": 2.0}]}'
    for _ in range(2):
        status, _ = request(server, "POST", "/v1/models/double:regress", body)
        assert status == 200
    page = page_of(server)
    examples = f"{SERVING}request_example_count"
    assert of(page, f"{examples}_total", model="double") == 4
    assert of(page, f"{examples}s_count", model="double") == 2
    assert of(page, f"{examples}s_sum", model="double") == 4
    assert of(page, f"{examples}s_bucket", model="double", le="2") == 0
    assert of(page, f"{examples}s_bucket", model="double", le="4") == 2


def test_a_server_without_requests_lists_its_metrics(server):
    page = page_of(server)
    kinds = {
        family.name: family.type for family in text_string_to_metric_families(page)
    }
    assert kinds[f"{SERVING}request_count"] == "counter"
    assert kinds[f"{SERVING}request_latency"] == "histogram"
    assert f"# TYPE {SERVING}request_latency histogram\n" in page


def test_histograms_are_those_of_tensorflow():
    histogram = Histogram("/tensorflow/serving/request_latency", [10, 18, 32.4], "le_")
    values = [9.9, 10, 17, 18, 32.4, 1e9]
    for value in values:
        histogram.add(value, "a")
    lines = histogram.lines("h")
    # TensorFlow counts what equals a bound above it.
    expected = np.histogram(values, [-np.inf, 10, 18, 32.4, np.inf])[0].cumsum()
    assert [int(line.rpartition(" ")[2]) for line in lines[:4]] == expected.tolist()
    assert lines[2] == 'h_bucket{le_="a",le="32.4"} 4'
    assert lines[4] == f'h_sum{{le_="a"}} {sum(values)}'
    assert lines[5] == 'h_count{le_="a"} 6'


def test_names_that_would_break_the_page_are_escaped():
    metrics = Metrics()
    name = 'a"b\\c\nd{e}, f=\u2713'
    metrics.request_count.add(1, name, "OK")
    metrics.request_latency.add(5, name, "", "REST")
    count = f"{SERVING}request_count"
    assert of(metrics.page(), count, model_name=name, status="OK") == 1


def test_counts_of_many_threads_are_not_lost():
    counter, histogram = Counter("/c", "name"), Histogram("/h", [1.0])

    def count():
        for number in range(5000):
            counter.add(1, str(number % 3))
            histogram.add(number % 2)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(int(line.rpartition(" ")[2]) for line in counter.lines("c")) == 40_000
    assert histogram.lines("h")[-1] == "h_count{} 40000"
