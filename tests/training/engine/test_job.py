"""Which processes were started together, from what their launchers set."""

import http.server
import threading
import urllib.parse

import pytest

from training.engine import tpu_runtime
from training.engine.job import LAUNCHERS, Job, this_job

# As process 1 of 2 on this node saw them, of mpirun (Open MPI 5.0.11) and mpiexec
# (MPICH); of srun they are those of its manual.
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
MPICH = {
    "PMI_SIZE": "4",
    "PMI_RANK": "3",
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_LOCALID": "1",
}
TPU_VARIABLES = (
    *("JAX_PLATFORMS", "TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS"),
    *("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES", "TPU_SKIP_MDS_QUERY"),
    *("MEGASCALE_NUM_SLICES", "GCE_METADATA_IP"),
)


@pytest.fixture
def environment(monkeypatch):
    """A function that sets the variables of a launcher, and no other's."""
    own = [variable for launcher in LAUNCHERS for variable in launcher[1:]]

    def make(variables):
        for name in (*own, *TPU_VARIABLES):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    make({})
    return make


@pytest.fixture
def tpu(environment, tmp_path, monkeypatch):
    """This machine gets a chip of a TPU v5e."""
    monkeypatch.setattr(tpu_runtime, "DEVICES", tmp_path)
    (tmp_path / "chip").mkdir()
    (tmp_path / "chip" / "vendor").write_text("0x1ae0\n")
    (tmp_path / "chip" / "device").write_text("0x0063\n")
    return environment


@pytest.fixture
def metadata(tpu):
    """The attributes that Compute Engine's metadata server has, empty at first."""
    attributes = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name = urllib.parse.urlsplit(self.path).path.rpartition("/")[2]
            known = self.headers["Metadata-Flavor"] == "Google" and name in attributes
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(attributes.get(name, "").encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tpu({"GCE_METADATA_IP": f"127.0.0.1:{server.server_port}"})
        yield attributes
        server.shutdown()


def test_a_process_without_a_launcher_is_alone(environment):
    assert this_job() == Job("no launcher", 1)


@pytest.mark.parametrize("variables", [OPEN_MPI, MPICH, SLURM])
def test_the_processes_of_a_launcher_are_found(environment, variables):
    environment(variables)
    assert this_job()[1:] == (4, 3, 1)


@pytest.mark.parametrize(
    "variables",
    [
        OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
        MPICH | {"MPI_LOCALNRANKS": "1"},
        SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1(x4)"},
    ],
)
def test_a_process_alone_on_its_node_has_no_number_there(environment, variables):
    environment(variables)
    assert this_job().number_on_node is None


def test_nodes_with_different_numbers_of_processes_share(environment):
    environment(SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1,3"})
    assert this_job().number_on_node == 1


@pytest.mark.parametrize("inner", [OPEN_MPI, MPICH])
def test_mpi_within_slurm_counts_its_own_processes(environment, inner):
    helpers = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    environment(SLURM | helpers | inner)
    assert this_job().processes == 4


@pytest.mark.parametrize(
    "variables",
    [
        # An interactive shell is a step of one process; a batch script is none.
        SLURM | {"SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
        # A job array.
        SLURM
        | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"}
        | {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "9"},
    ],
)
def test_a_shell_a_script_and_a_job_array_are_alone(environment, variables):
    environment(variables)
    assert this_job().processes == 1


@pytest.mark.parametrize(
    ("variables", "hosts"),
    [
        ({"TPU_WORKER_HOSTNAMES": "a,b,c,d"}, 4),
        ({"TPU_PROCESS_ADDRESSES": "a:1,b:1", "TPU_WORKER_HOSTNAMES": "a"}, 2),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "MEGASCALE_NUM_SLICES": "3"}, 6),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, 1),
        ({"TPU_PROCESS_BOUNDS": "1,1,1", "MEGASCALE_NUM_SLICES": "2"}, 2),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_PROCESS_BOUNDS": "1,1,1"}, 1),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_HOST_BOUNDS": "1,1,1"}, 1),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "JAX_PLATFORMS": "cpu"}, 1),
    ],
)
def test_the_hosts_of_a_tpu_slice_are_counted(tpu, variables, hosts):
    tpu(variables)
    assert this_job().processes == hosts


def test_a_tpu_vm_asks_the_metadata_server(metadata, monkeypatch):
    assert this_job().processes == 1
    metadata["worker-network-endpoints"] = "x:y:10.0.0.1,x:y:10.0.0.2"
    assert this_job() == Job("a Cloud TPU", 2)
    metadata["tpu-env"] = "ZONE: 'z'\nMEGASCALE_NUM_SLICES: '3'\n"
    assert this_job().processes == 6
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    assert this_job().processes == 1


def test_a_tpu_vm_without_network_is_alone(tpu):
    tpu({"GCE_METADATA_IP": "127.0.0.1:1"})
    assert this_job().processes == 1


def test_other_machines_ask_no_metadata_server(environment, monkeypatch):
    monkeypatch.setattr("training.engine.job._metadata", pytest.fail)
    assert this_job().processes == 1
