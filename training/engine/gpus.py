"""The NVIDIA GPUs of this machine, counted without TensorFlow or JAX."""

import glob
import itertools
import os
import re
import subprocess

from ..errors import RecipeError

VISIBLE = "CUDA_VISIBLE_DEVICES"  # TensorFlow and JAX use no others
DEVICE_FILES = "/dev/nvidia[0-9]*"
SECONDS = 60.0  # for nvidia-smi to answer


def divided_gpus(workers: int) -> list[dict[str, str]]:
    """The variable that gives each worker of this machine GPUs of its own.

    Returns:
        For each worker `CUDA_VISIBLE_DEVICES`; nothing where there are no GPUs.

    Raises:
        RecipeError: The workers do not divide the GPUs evenly, or would have several
            parts of a GPU (MIG), of which CUDA uses only one in a process.
    """
    gpus = _visible_gpus()
    share, rest = divmod(len(gpus), workers)
    if not gpus:
        return [{}] * workers
    if rest or (share > 1 and any(g.startswith("MIG") for g in gpus)):
        raise RecipeError(
            "`workers` must divide this machine's GPUs evenly, with one part of a GPU "
            f"(MIG) for each; {VISIBLE} selects some, -1 none. "
            f"Received: workers={workers}, GPUs {','.join(gpus)}"
        )
    parts = (gpus[start : start + share] for start in range(0, len(gpus), share))
    return [{VISIBLE: ",".join(part)} for part in parts]


def _visible_gpus() -> list[str]:
    """What `CUDA_VISIBLE_DEVICES` may name: numbers of GPUs, or UUIDs of MIG's parts.

    The variable's own value is read as CUDA does: up to -1 or what names no GPU.
    """
    present = _present_gpus()
    chosen = os.environ.get(VISIBLE)
    if chosen is None or not present:
        return present
    names = (name.strip() for name in chosen.split(","))
    return list(itertools.takewhile(re.compile(r"\d+$|GPU-|MIG-").match, names))


def _present_gpus() -> list[str]:
    """All GPUs that the driver, or a container's runtime, shows to this process."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"],
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS,
        ).stdout
    except (OSError, subprocess.SubprocessError):  # not in every container
        return [str(number) for number in range(len(glob.glob(DEVICE_FILES)))]
    gpus: list[str] = []
    for line in listed.splitlines():
        if gpu := re.match(r"GPU (\d+):", line):
            gpus.append(gpu[1])
        elif part := re.match(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)", line):
            if gpus[-1].isdecimal():  # the GPU whose parts follow
                gpus.pop()
            gpus.append(part[1])
    return gpus
