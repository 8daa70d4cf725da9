"""The local server gives the answers that a TensorFlow Serving 2.20 gave."""

import importlib.util
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from server_process import server_process

CORPUS = Path(
    os.environ.get("KERAS_VIT_CONFORMANCE")
    or Path(__file__).parents[4] / "shared" / "conformance"
).resolve()
# Where the local server differs, and why; the table in serving/README.md has the same.
DIFFERENCES = {
    "R22-root": "`/` is the page",
    "P12-duplicate-key": "a key that comes twice is refused, not dropped",
    "P38-in": "`Inf` is not read, only `Infinity`",
    "P44-deep-unused": "nesting beyond Python's recursion limit is refused",
    "P44-deep-signature": "nesting beyond Python's recursion limit is refused",
    "P44-rank-254": "NumPy has 64 dimensions at most",
    "P44-rank-255": "NumPy has 64 dimensions at most; the error names the row",
    "P44-rank-5000-column": "nesting beyond Python's recursion limit is refused",
    "P45-shape-unchecked": "`Session.run` refuses what contradicts the signature",
    "G13-shape-unchecked": "`Session.run` refuses what contradicts the signature",
    "G26-full-name": "grpcio-health-checking gives no text with NOT_FOUND",
    "G26-unknown": "grpcio-health-checking gives no text with NOT_FOUND",
}
SIDE_BY_SIDE = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A process with the flags that the corpus's README gives."""
    if not (CORPUS / "replay.py").exists():
        pytest.skip("no recorded exchanges: set KERAS_VIT_CONFORMANCE")
    folder = tmp_path_factory.mktemp("config")
    template = (CORPUS / "models.config.in").read_text()
    models, monitoring = folder / "models.config", folder / "monitoring.config"
    models.write_text(template.replace("@MODELS@", str(CORPUS / "models")))
    monitoring.write_text(
        'prometheus_config { enable: true path: "/monitoring/prometheus/metrics" }'
    )
    with server_process(
        folder / "server.log",
        f"--model_config_file={models}",
        f"--monitoring_config_file={monitoring}",
        "--allow_version_labels_for_unavailable_models",
        "--enable_grpc_healthcheck_service",
    ) as running:
        yield running
        assert running.process.poll() is None


@pytest.mark.slow
def test_replay_finds_only_the_documented_differences(server):
    addresses = ["--rest", server.rest, "--grpc", server.grpc]
    done = subprocess.run(
        [sys.executable, str(CORPUS / "replay.py"), *addresses],
        capture_output=True,
        text=True,
        timeout=300,
    )
    *differences, summary = done.stdout.splitlines()
    assert {line.partition(": ")[0] for line in differences} == set(DIFFERENCES)
    assert not summary.startswith("0 passed")


@pytest.mark.slow
def test_concurrent_requests_get_the_same_answers(server):
    replayer = importlib.util.spec_from_file_location("replay", CORPUS / "replay.py")
    replay = importlib.util.module_from_spec(replayer)
    replayer.loader.exec_module(replay)
    exchanges = {
        transport: [json.loads(line) for line in (CORPUS / f"{transport}.jsonl").open()]
        for transport in ("rest", "grpc")
    }

    def run(seed):
        clients = {
            "rest": replay.Rest(server.rest),
            "grpc": replay.Grpc(server.grpc, str(CORPUS / "models")),
        }
        both = exchanges["rest"] + exchanges["grpc"]
        order = random.Random(seed).sample(both, len(both) // 8)
        differ = set()
        for exchange in order:
            client = clients[exchange["transport"]]
            if list(client.compare(exchange, client.call(exchange))):
                differ.add(exchange["id"])
        return differ, DIFFERENCES.keys() & {exchange["id"] for exchange in order}

    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        for differ, expected in threads.map(run, range(SIDE_BY_SIDE)):
            assert differ == expected
