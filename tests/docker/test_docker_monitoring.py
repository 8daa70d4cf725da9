"""docker/: Prometheus's files and Grafana's, as they are written."""

import json
import re

import pytest
import yaml
from docker_files import DOCKER, compose, succeeds, tool
from prometheus_queries import dashboard_queries

PROMETHEUS = DOCKER / "prometheus"
GRAFANA = DOCKER / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "serving.json").read_text())
TARGETS = [
    pytest.param(target, id=f"{panel['title']} {target['refId']}")
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
]
# What TensorFlow Serving 2.20 and the batch op of its TensorFlow count.
METRICS = {
    "request_count": {"model_name", "status"},
    "request_latency": {"model_name", "API", "entrypoint"},
    "runtime_latency": {"model_name", "API", "runtime"},
    "model_warmup_latency": {"model_path", "status"},
    "batching:processed_batch_size_v2": {"model_name", "op_name", "batch_size"},
    "batching:input_batch_size_v2": {"model_name", "op_name"},
    "batching:batch_size": {"model_name", "op_name"},
    "batching:batch_delay_us_v2": {"model_name", "op_name", "processed_batch_size"},
}
METRICS = {f":tensorflow:serving:{name}": labels for name, labels in METRICS.items()}
METRICS |= {
    ":tensorflow:cc:saved_model:load_attempt_count": {"model_path", "status"},
    ":tensorflow:cc:saved_model:load_latency": {"model_path"},
    "up": {"job", "instance"},
}


def promtool():
    return tool("promtool", "apt-get install prometheus")


def test_the_prometheus_configuration_is_valid():
    succeeds(promtool(), "check", "config", PROMETHEUS / "prometheus.yml")


def test_alerts_fire_as_specified():
    succeeds(promtool(), "test", "rules", PROMETHEUS / "alerts_test.yml")


def test_every_alert_is_tested_silent_and_firing():
    [group] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    tests = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
    checks = [check for test in tests for check in test["alert_rule_test"]]
    alerts = {rule["alert"] for rule in group["rules"]}
    assert {c["alertname"] for c in checks if "exp_alerts" in c} == alerts
    assert {c["alertname"] for c in checks if "exp_alerts" not in c} == alerts


def test_prometheus_scrapes_what_the_server_publishes():
    configuration = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    [server] = configuration["scrape_configs"]
    page = (DOCKER / "tfserving" / "monitoring.config").read_text()
    assert f'path: "{server["metrics_path"]}"' in page
    [target] = server["static_configs"][0]["targets"]
    name, port = target.split(":")
    for profile in ("cpu", "gpu"):
        service = compose()["services"][f"tfserving-{profile}"]
        assert name in service["networks"]["default"]["aliases"]
        assert f"--rest_api_port={port}" in service["command"]


def test_every_query_of_the_dashboard_is_promql(tmp_path):
    queries = dashboard_queries()
    rules = [{"record": f"q{i}", "expr": query} for i, query in enumerate(queries)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    output = succeeds(promtool(), "check", "rules", file)
    assert f"{len(TARGETS)} rules found" in output


@pytest.mark.parametrize("target", TARGETS)
def test_queries_name_existing_metrics_and_labels(target):
    names = re.findall(r"(?<![\w:])(:tensorflow[\w:]+|up\b)", target["expr"])
    metrics = {
        re.sub(r"_(bucket|sum|count)$", "", n) for n in names if n not in METRICS
    }
    metrics |= set(names) & set(METRICS)
    assert metrics
    assert metrics <= set(METRICS)
    labels = set(re.findall(r"[{,](\w+)(?:=|!)", target["expr"]))
    for grouped in re.findall(r"by \(([^)]*)\)", target["expr"]):
        labels |= set(grouped.split(", "))
    assert labels - {"le"} <= set.union(*(METRICS[name] for name in metrics))
    legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert legend <= labels


def test_the_dashboard_finds_its_data():
    datasources = GRAFANA / "provisioning" / "datasources" / "prometheus.yml"
    [source] = yaml.safe_load(datasources.read_text())["datasources"]
    used = re.findall(r'"uid": "([^"]*)"', json.dumps(DASHBOARD))
    assert set(used) == {source["uid"], DASHBOARD["uid"]}
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in compose()["services"]


def test_grafana_finds_the_dashboard():
    providers = GRAFANA / "provisioning" / "dashboards" / "serving.yml"
    [provider] = yaml.safe_load(providers.read_text())["providers"]
    folder = provider["options"]["path"]
    grafana = compose()["services"]["grafana"]
    assert f"./grafana/dashboards:{folder}:ro" in grafana["volumes"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{folder}/serving.json"


def test_panels_do_not_overlap():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_grafanas_own_types_keep_every_field():
    """What Grafana does not know would be lost on the way through its types."""
    pytest.importorskip(
        "grafana_foundation_sdk.cog", reason="pip install grafana-foundation-sdk"
    )
    from grafana_foundation_sdk.cog import encoder, plugins
    from grafana_foundation_sdk.models import dashboard

    plugins.register_default_plugins()
    read = dashboard.Dashboard.from_json(DASHBOARD)
    assert_kept(DASHBOARD, json.loads(encoder.JSONEncoder().encode(read)), "dashboard")


def assert_kept(ours, theirs, where):
    if isinstance(ours, dict):
        for name, value in ours.items():
            assert name in theirs, f"{where}.{name}"
            assert_kept(value, theirs[name], f"{where}.{name}")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_kept(mine, other, f"{where}[{number}]")
    else:
        assert ours == theirs, where
