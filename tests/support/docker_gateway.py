"""nginx itself with the configuration of docker/gateway, before a local server."""

import contextlib
import http.client
import os
import pathlib
import re
import socket
import ssl
import subprocess

import grpc
import httpx2
import pytest
from docker_files import (
    DEPLOYMENT_PAGE,
    DOCKER,
    compose,
    exit_status,
    free_port,
    succeeds,
    tool,
)
from polling import wait_for

from serving.client import GrpcClient, RestClient


def nginx() -> str:
    """The path of nginx with njs; skips the test without one that is new enough."""
    path = tool("nginx", "apt-get install nginx libnginx-mod-{http-js,stream}")
    done = subprocess.run([path, "-v"], capture_output=True, text=True, check=True)
    version = done.stderr.strip().rpartition("/")[2]
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < (1, 25):
        pytest.skip(f"nginx {version} is installed, 1.25 is wanted")
    return path


class Gateway:
    """nginx with docker/gateway, on free ports, before the local server."""

    def __init__(self, folder, server):
        self.folder = folder
        self.port, self.health_port = free_port(), free_port()
        self.tokens = self._make_secrets()
        self.token = self.tokens["alice"]
        self.certificate = folder / "docker" / "secrets" / "tls.crt"
        self.log = folder / "log"
        (folder / "tmp").mkdir()
        config = (DOCKER / "gateway" / "nginx.conf").read_text()
        for path, other in {
            " /tmp/": f" {folder}/tmp/",
            "unix:/tmp/": f"unix:{folder}/tmp/",
            "/run/secrets/": f"{folder}/docker/secrets/",
            "js_path /etc/nginx/gateway/": f"js_path {DOCKER}/gateway/",
            "listen 127.0.0.1:8080": f"listen 127.0.0.1:{self.health_port}",
            "listen 8443": f"listen 127.0.0.1:{self.port}",
        }.items():
            assert path in config, path
            config = config.replace(path, other)
        self.config = folder / "nginx.conf"
        self.config.write_text(config)
        upstream = (DOCKER / "gateway" / "upstream.conf").read_text()
        (folder / "upstream.conf").write_text(
            upstream.replace("tfserving:8501", f"127.0.0.1:{server.rest_port}").replace(
                "tfserving:8500", f"127.0.0.1:{server.grpc_port}"
            )
        )

    def _make_secrets(self):
        """By the commands of docs/deployment.md."""
        page = DEPLOYMENT_PAGE.read_text("utf-8")
        [(files, token)] = re.findall(
            r"```sh\n(mkdir -p docker/secrets.*?)(TOKEN=.*?)```", page, re.DOTALL
        )
        succeeds("bash", "-ec", files, cwd=self.folder)
        tokens = {}
        for name in ("alice", "bob", "carol", "dave", "erin"):
            script = f"{token.replace('alice', name)}\necho $TOKEN"
            tokens[name] = succeeds("bash", "-ec", script, cwd=self.folder).strip()
        return tokens

    def http(self, token=None):
        """An HTTP client of the gateway, with its certificate and a token."""
        return httpx2.Client(
            base_url=f"https://localhost:{self.port}",
            headers={"Authorization": f"Bearer {token or self.token}"},
            verify=self.trust(),
            timeout=60,
        )

    def trust(self):
        return ssl.create_default_context(cafile=self.certificate)

    def connect(self, source="127.0.0.1"):
        """A connection over which nothing has been sent yet, not even for TLS."""
        address = ("127.0.0.1", self.port)
        return socket.create_connection(address, timeout=30, source_address=(source, 0))

    def connect_tls(self, source="127.0.0.1", protocol="http/1.1"):
        """A connection for bytes as they are, which clients would refuse to send."""
        context = self.trust()
        context.set_alpn_protocols([protocol])
        return context.wrap_socket(self.connect(source), server_hostname="localhost")

    def post(self, headers=b"", name="alice", source="127.0.0.1"):
        """A connection on which a request to predict has been sent, less its body."""
        connection = self.connect_tls(source)
        connection.sendall(
            b"POST /v1/models/vit:predict HTTP/1.1\r\nHost: localhost\r\n"
            + f"Authorization: Bearer {self.tokens[name]}\r\n".encode()
            + headers
            + b"\r\n"
        )
        return connection

    def memory(self):
        """What nginx's processes hold, in bytes; shared pages count once."""
        total = 0
        for process in [self.process.pid, *_children(self.process.pid)]:
            rollup = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
            total += 1024 * int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1])
        return total

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
        # In the image everything runs as one user; started by root, workers would not.
        user = " user root;" if os.geteuid() == 0 else ""
        command = [nginx(), "-c", str(self.config), "-g", f"daemon off;{user}"]
        service = compose()["services"]["gateway"]
        environment = os.environ | service["environment"]
        succeeds(*command, "-t")
        with (
            self.log.open("w") as log,
            subprocess.Popen(command, stdout=log, env=environment) as self.process,
        ):
            try:
                wait_for(self.is_healthy)
                yield self
            finally:
                self.process.terminate()

    def is_healthy(self):
        check = compose()["services"]["gateway"]["healthcheck"]
        return exit_status(check, self.health_port) == 0


def answer(connection):
    """The status, headers and body that come back on a connection."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, response.headers, response.read()


def _children(process):
    return pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
