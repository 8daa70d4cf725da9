"""SavedModels to serve, and the serving command."""

import subprocess
import sys

import pytest
from double_model import save_double_model
from served_versions import Publisher, save_versions


@pytest.fixture(scope="session")
def base_path(tmp_path_factory):
    """Version 3 of the model that doubles numbers."""
    folder = tmp_path_factory.mktemp("double")
    save_double_model(folder / "3")
    return folder


@pytest.fixture(scope="session")
def monitoring(tmp_path_factory):
    """The path of a configuration file that enables the metrics page."""
    path = tmp_path_factory.mktemp("config") / "monitoring.config"
    path.write_text("prometheus_config { enable: true }")
    return str(path)


@pytest.fixture(scope="session")
def versions(tmp_path_factory):
    """Folders of versions 1 to 3."""
    return save_versions(tmp_path_factory.mktemp("versions"))


@pytest.fixture
def publish(versions, tmp_path):
    """Publish versions under a base path, each with one rename."""
    base_path = tmp_path / "m"
    base_path.mkdir()
    return Publisher(base_path, versions)


@pytest.fixture(scope="session")
def serve_command():
    """Start `python -m serving serve` on free ports."""

    def start(*flags):
        command = [sys.executable, "-m", "serving", "serve", "--port=0"]
        return subprocess.Popen(
            [*command, "--rest_api_port=0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start
