"""The job of this process: how many were started together, by Slurm, MPI or on a TPU.

Read without TensorFlow and JAX. JAX finds the same jobs, but has no public function
that says how many processes it would wait for.
"""

import os
import re
import urllib.request
from typing import NamedTuple

from .tpu_runtime import generation_here

METADATA = "http://{}/computeMetadata/v1/instance/attributes/{}"
SECONDS = 5.0  # for the metadata server, which is next to every Cloud TPU, to answer


class Job(NamedTuple):
    """A job of one or more processes."""

    launcher: str  # what started them
    processes: int
    process: int | None = None  # this one's number, from 0; None where JAX finds it
    # Its number among those on this node, where there are several.
    number_on_node: int | None = None


NO_LAUNCHER = Job("no launcher", 1)


class Launcher(NamedTuple):
    """The environment variables that a launcher sets, all of them."""

    name: str
    processes: str
    process: str
    on_node: str  # how many are on this node, or on each: 1(x4)
    number_on_node: str


# The innermost first: within Slurm, mpirun and mpiexec start their helpers with srun.
LAUNCHERS = (
    Launcher(
        "mpirun (Open MPI)",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    Launcher(
        "mpiexec (MPICH, Intel MPI)",
        "PMI_SIZE",
        "PMI_RANK",
        "MPI_LOCALNRANKS",
        "MPI_LOCALRANKID",
    ),
    # Of the step: SLURM_NTASKS is the job's in a shell that is a step of one process.
    Launcher(
        "srun (Slurm)",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_PROCID",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_LOCALID",
    ),
)


def this_job() -> Job:
    """The job that this process belongs to; of one process where nothing says so."""
    job = launched_job()
    hosts = _tpu_hosts() if job is NO_LAUNCHER else 1
    return Job("a Cloud TPU", hosts) if hosts > 1 else job


def launched_job() -> Job:
    """`this_job`, without looking for a TPU."""
    for launcher in LAUNCHERS:
        values = [os.environ.get(variable) for variable in launcher[1:]]
        if None not in values:
            processes, process, on_node, number = map(str, values)
            alone = on_node.partition("(")[0] == "1"
            return Job(
                launcher.name,
                int(processes),
                int(process),
                None if alone else int(number),
            )
    return NO_LAUNCHER


def _tpu_hosts() -> int:
    """Hosts of this machine's TPU slice, or of several slices; 1 without a TPU."""
    platforms = os.environ.get("JAX_PLATFORMS") or "tpu"
    if generation_here() is None or "tpu" not in platforms:
        return 1
    hosts = os.environ.get("TPU_PROCESS_ADDRESSES")
    hosts = hosts or os.environ.get("TPU_WORKER_HOSTNAMES")  # both on GKE
    bounds = (os.environ.get(f"TPU_{of}_BOUNDS") for of in ("PROCESS", "HOST"))
    if "1,1,1" in bounds:  # this process was given a part of the slice for itself
        hosts = ""
    slices = os.environ.get("MEGASCALE_NUM_SLICES")
    if hosts is None:
        hosts = _metadata("worker-network-endpoints")
        if hosts and slices is None:
            found = re.search(r"MEGASCALE_NUM_SLICES: *'?(\d+)", _metadata("tpu-env"))
            slices = found and found[1]
    return (hosts.count(",") + 1) * int(slices or 1)


def _metadata(name: str) -> str:
    """An attribute of this Compute Engine machine; empty where it has none."""
    if "TPU_SKIP_MDS_QUERY" in os.environ:
        return ""
    server = os.environ.get("GCE_METADATA_IP", "metadata.google.internal")
    request = urllib.request.Request(  # noqa: S310
        METADATA.format(server, name), headers={"Metadata-Flavor": "Google"}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=SECONDS) as answer:
            content: bytes = answer.read()
            return content.decode()
    except OSError:
        return ""
