"""The gateway before a local server, once for all test files."""

import pytest
from docker_files import compose_server, tool
from docker_gateway import Gateway, nginx


@pytest.fixture(scope="session")
def gateway_server(tmp_path_factory, tiny_vit):
    nginx()
    with compose_server(tiny_vit, tmp_path_factory) as server:
        yield server


@pytest.fixture(scope="session")
def gateway(gateway_server, tmp_path_factory):
    for program in ("openssl", "curl"):
        tool(program, f"apt-get install {program}")
    folder = tmp_path_factory.mktemp("gateway")
    with Gateway(folder, gateway_server).running() as gateway:
        yield gateway
