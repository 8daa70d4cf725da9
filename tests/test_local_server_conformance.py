"""The local server answers as a recorded TensorFlow Serving did, where there is one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from serving.local import LocalServer

CORPUS = Path(
    os.environ.get("KERAS_VIT_CONFORMANCE")
    or Path(__file__).parents[2] / "shared" / "conformance"
)
# Fair to refuse: very deep nesting, and shapes that contradict the SignatureDef.
REFUSED = {
    "P44-deep-unused",
    "P44-deep-signature",
    "P44-rank-254",
    "P44-rank-5000-column",
    "P45-shape-unchecked",
    "G13-shape-unchecked",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if not (CORPUS / "replay.py").exists():
        pytest.skip("no recorded exchanges: set KERAS_VIT_CONFORMANCE")
    template = (CORPUS / "models.config.in").read_text()
    text = template.replace("@MODELS@", str(CORPUS.resolve() / "models"))
    monitoring = tmp_path_factory.mktemp("config") / "monitoring.config"
    monitoring.write_text("prometheus_config { enable: true }")
    with LocalServer(
        text_format.Parse(text, ModelServerConfig()),
        rest_port=0,
        grpc_port=0,
        allow_version_labels_for_unavailable_models=True,
        monitoring_config_file=str(monitoring),
        enable_grpc_healthcheck_service=True,
    ) as running:
        yield running


def replay(server, *flags):
    """The ids of the exchanges that differ."""
    addresses = ["--rest", server.rest_url, "--grpc", server.grpc_address]
    done = subprocess.run(
        [sys.executable, str(CORPUS / "replay.py"), *addresses, *flags],
        capture_output=True,
        text=True,
        timeout=300,
    )
    *differences, summary = done.stdout.splitlines()
    assert " passed, " in summary
    assert not summary.startswith("0 passed")
    return {line.partition(": ")[0] for line in differences}


def test_routes_predict_and_grpc_basics_are_all_as_recorded(server):
    assert replay(server, "--only", "^(R0|R1|P0|P1|G0)") == set()


def test_in_any_order_only_what_is_fair_to_refuse_differs(server):
    assert replay(server, "--shuffle", "7") <= REFUSED
