"""docker/gateway: nginx itself before the local server, over TLS."""

import base64
import contextlib
import http.client
import json
import os
import re
import ssl
import subprocess

import grpc
import httpx2
import pytest
from docker_files import (
    DEPLOYMENT_PAGE,
    DOCKER,
    PHOTO,
    compose,
    compose_server,
    exit_status,
    free_port,
    run_page_commands,
    succeeds,
    tool,
    wait_for,
)
from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc

from serving.client import (
    GrpcClient,
    MessageTooLarge,
    RestClient,
    Unauthenticated,
    Unavailable,
)

pytestmark = pytest.mark.slow

MIB = 2**20


class Gateway:
    """nginx with docker/gateway, on free ports, before the local server."""

    def __init__(self, folder, server):
        self.folder = folder
        self.port, self.health_port = free_port(), free_port()
        self.token = self._make_secrets()
        self.certificate = folder / "docker" / "secrets" / "tls.crt"
        self.log = folder / "log"
        (folder / "tmp").mkdir()
        config = (DOCKER / "gateway" / "nginx.conf").read_text()
        for path, other in {
            " /tmp/": f" {folder}/tmp/",
            "/run/secrets/": f"{folder}/docker/secrets/",
            "js_path /etc/nginx/": f"js_path {DOCKER}/gateway/",
            "listen 127.0.0.1:8080": f"listen 127.0.0.1:{self.health_port}",
            "listen 8443": f"listen 127.0.0.1:{self.port}",
            "tfserving:8501": f"127.0.0.1:{server.rest_port}",
            "tfserving:8500": f"127.0.0.1:{server.grpc_port}",
        }.items():
            assert path in config, path
            config = config.replace(path, other)
        self.config = folder / "nginx.conf"
        self.config.write_text(config)

    def _make_secrets(self):
        """By the commands of docs/deployment.md."""
        page = DEPLOYMENT_PAGE.read_text("utf-8")
        [block] = re.findall(r"```sh\n(mkdir -p docker/secrets.*?)```", page, re.DOTALL)
        output = succeeds("bash", "-ec", f"{block}\necho $TOKEN", cwd=self.folder)
        return output.split()[-1]

    def http(self, token=None):
        """An HTTP client of the gateway, with its certificate and a token."""
        return httpx2.Client(
            base_url=f"https://localhost:{self.port}",
            headers={"Authorization": f"Bearer {token or self.token}"},
            verify=self.trust(),
        )

    def trust(self):
        return ssl.create_default_context(cafile=self.certificate)

    def clients(self, token=None, timeout=20):
        """The project's own clients, with its certificate and a token."""
        header = f"Bearer {token or self.token}"
        rest = RestClient(
            f"https://localhost:{self.port}",
            "vit",
            headers={"Authorization": header},
            verify=self.trust(),
            timeout=timeout,
        )
        credentials = grpc.ssl_channel_credentials(self.certificate.read_bytes())
        metadata = {"authorization": header}
        address = f"localhost:{self.port}"
        return rest, GrpcClient(
            address, "vit", metadata=metadata, credentials=credentials, timeout=timeout
        )

    @contextlib.contextmanager
    def running(self):
        """nginx under this configuration, once its health check is good."""
        nginx = tool("nginx", "apt-get install nginx-light libnginx-mod-http-js")
        # In the image everything runs as one user; started by root, workers would not.
        user = " user root;" if os.geteuid() == 0 else ""
        command = [nginx, "-c", str(self.config), "-g", f"daemon off;{user}"]
        succeeds(*command, "-t")
        check = compose()["services"]["gateway"]["healthcheck"]
        with (
            self.log.open("w") as log,
            subprocess.Popen(command, stdout=log) as process,
        ):
            try:
                wait_for(lambda: exit_status(check, self.health_port) == 0)
                yield self
            finally:
                process.terminate()


@pytest.fixture(scope="module")
def server(tmp_path_factory, tiny_vit):
    tool("nginx", "apt-get install nginx-light libnginx-mod-http-js")
    with compose_server(tiny_vit, tmp_path_factory) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(server, tmp_path_factory):
    for program in ("openssl", "curl"):
        tool(program, f"apt-get install {program}")
    with Gateway(tmp_path_factory.mktemp("gateway"), server).running() as gateway:
        yield gateway


def test_the_documented_requests_pass_the_gateway(gateway, tmp_path):
    folder = gateway.folder
    status, predictions = run_page_commands(
        "8443", gateway.port, folder, TOKEN=gateway.token
    )
    assert json.loads(status)["model_version_status"][0]["state"] == "AVAILABLE"
    assert json.loads(predictions)["predictions"][0]["scores"]


def test_both_clients_go_through_the_gateway(gateway):
    for client in gateway.clients():
        assert client.status()[0].state == "AVAILABLE"
        assert len(client.classify([PHOTO])[0].labels) == 5


@pytest.mark.parametrize("path", ["/v1/models/vit", "/v1/models/vit:predict", "/"])
@pytest.mark.parametrize("token", ["wrong", "Bearer", '" ; default x;'])
def test_an_unknown_token_is_refused(gateway, path, token):
    with gateway.http(token) as client:
        for answer in (client.get(path), client.post(path, content=b"{}")):
            assert answer.status_code == 401
            assert "token" in answer.json()["error"]


def test_both_clients_report_a_wrong_token(gateway):
    for client in gateway.clients("wrong"):
        with pytest.raises(Unauthenticated):
            client.classify([PHOTO])


def test_plain_http_is_refused(gateway):
    assert (
        httpx2.get(f"http://localhost:{gateway.port}/v1/models/vit").status_code == 400
    )


def test_a_large_request_is_413(gateway):
    body = b'{"instances": ["' + bytes(25 * MIB)
    with gateway.http() as client:
        assert client.post("/v1/models/vit:predict", content=body).status_code == 413
        chunks = (body[i : i + MIB] for i in range(0, len(body), MIB))
        assert client.post("/v1/models/vit:predict", content=chunks).status_code == 413


def test_both_clients_report_a_request_that_is_too_large(gateway):
    for client in gateway.clients():
        with pytest.raises(MessageTooLarge):
            client.predict({"image_bytes": [bytes(25 * MIB)]})


DEEP = {
    "lists": '{"instances": ' + "[" * 65 + "]" * 65 + "}",
    "objects": '{"a": ' * 65 + "1" + "}" * 65,
    "unclosed": "[" * 100_000,
    "after an escaped quote": '{"signature_name": "\\"", "instances": ' + "[" * 65,
    "after a backslash": '{"signature_name": "\\\\", "instances": ' + "[" * 65,
}


@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP.keys())
def test_deep_json_never_reaches_the_server(gateway, body):
    with gateway.http() as client:
        answer = client.post("/v1/models/vit:predict", content=body)
    assert (answer.status_code, answer.json()) == (
        400,
        {"error": "JSON nested deeper than 64 levels"},
    )


@pytest.mark.parametrize(
    "text", ["[" * 99, '\\"' + "[" * 99, "{" * 99 + '\\\\\\"' + "[" * 99]
)
def test_brackets_in_a_string_do_not_count_as_nesting(gateway, text):
    body = f'{{"signature_name": "{text}", "instances": [[1]]}}'
    with gateway.http() as client:
        answer = client.post("/v1/models/vit:predict", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("Serving signature name:")


def test_a_wide_request_passes(gateway):
    body = f'{{"signature_name": "none", "instances": [{"[{}]," * 99}[1]]}}'
    with gateway.http() as client:
        answer = client.post("/v1/models/vit:predict", content=body)
    assert answer.json()["error"].startswith("Serving signature name:")


def test_a_request_in_chunks_is_guarded_and_answered(gateway):
    chunks = [
        b'{"instances": [{"b64": "',
        base64.b64encode(PHOTO.read_bytes()),
        b'"}]}',
    ]
    with gateway.http() as client:
        good = client.post("/v1/models/vit:predict", content=iter(chunks))
        deep = client.post("/v1/models/vit:predict", content=iter([b"["] * 65))
    assert len(good.json()["predictions"]) == 1
    assert (deep.status_code, "deeper" in deep.text) == (400, True)


def test_compressed_json_is_refused(gateway):
    headers = {"Content-Encoding": "gzip"}
    with gateway.http() as client:
        answer = client.post("/v1/models/vit:predict", content=b"x", headers=headers)
    assert answer.status_code == 415


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/monitoring/prometheus/metrics", 404),
        ("GET", "/v1/models/../../monitoring/prometheus/metrics", 404),
        ("GET", "/", 404),
        ("DELETE", "/v1/models/vit", 405),
        ("POST", "/v1/models/vit", 405),
        ("GET", "/v1/models/nope", 404),
        ("GET", "/v1/models/vit/metadata", 200),
    ],
)
def test_only_inference_requests_pass(gateway, method, path, status):
    with gateway.http() as client:
        assert client.request(method, path).status_code == status


def test_the_gateway_refuses_configuration_reloads(gateway):
    trust = grpc.ssl_channel_credentials(gateway.certificate.read_bytes())
    token = grpc.access_token_call_credentials(gateway.token)
    credentials = grpc.composite_channel_credentials(trust, token)
    with grpc.secure_channel(f"localhost:{gateway.port}", credentials) as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        request = model_management_pb2.ReloadConfigRequest()
        with pytest.raises(grpc.RpcError) as refused:
            stub.HandleReloadConfigRequest(request, timeout=20)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_connections_per_client_are_limited(gateway):
    waiting = []
    for _ in range(32):
        connection = http.client.HTTPSConnection(
            "localhost", gateway.port, context=gateway.trust(), timeout=20
        )
        connection.putrequest("POST", "/v1/models/vit:predict")
        connection.putheader("Authorization", f"Bearer {gateway.token}")
        connection.putheader("Content-Length", "10")
        connection.endheaders(b"[")
        waiting.append(connection)
    with gateway.http() as client:
        wait_for(lambda: client.get("/v1/models/vit").status_code == 429, seconds=5)
        for connection in waiting:
            connection.close()
        wait_for(lambda: client.get("/v1/models/vit").status_code == 200)


def test_the_log_names_the_client_and_omits_its_token(gateway):
    with gateway.http() as client:
        client.get("/v1/models/named")
    wait_for(lambda: "/v1/models/named" in gateway.log.read_text())
    log = gateway.log.read_text()
    assert re.search(r' alice \[[^]]*\] "GET /v1/models/named', log)
    assert gateway.token not in log


def test_a_stopped_server_is_unavailable(server, tmp_path):
    nothing = str(free_port())
    gone = server._replace(rest_port=nothing, grpc_port=nothing)
    with Gateway(tmp_path, gone).running() as gateway:
        for client in gateway.clients(timeout=2):
            with pytest.raises(Unavailable):
                client.status()
