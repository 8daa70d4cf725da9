"""Works in forks that die before one change of the disk after another.

    killed_forks.py saves FOLDER KEEP     checkpoints, see test_checkpoint.py
    killed_forks.py copies FOLDER FROM    versions, see test_copy_command.py

The n-th fork works in FOLDER/fork-n. Prints JSON: the exit status of each fork, up to
the first that was not killed. A process of its own, without TensorFlow: a fork of one
that has threads may wait forever for a lock that one of them held.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def folders(name, folder, argument):
    """The forks' folders; all forks but the last were killed, and that succeeded."""
    command = [sys.executable, __file__, name, folder, argument]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    *killed, last = json.loads(result.stdout.splitlines()[-1])
    assert (set(killed), last) == ({-signal.SIGKILL}, 0), result.stderr
    return [folder / f"fork-{number + 1}" for number in range(len(killed) + 1)]


def saves(keep):
    """Save a second checkpoint; NumPy can be interrupted while it writes."""
    import numpy as np
    from publish_runs import die_at
    from small_checkpoints import make

    from training.engine.checkpoint import save

    whole = np.savez

    def work(folder, number):
        def savez(path, **arrays):
            whole(path, **arrays)
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2])
            count()
            path.write_bytes(data)

        save(folder, make(1))
        np.savez = savez
        count = die_at(number)
        return 0 if save(folder, make(2), int(keep)) else 1

    return work


def copies(source):
    """Copy a version."""
    from publish_runs import die_at

    from serving.__main__ import main

    def work(folder, number):
        die_at(number)
        return main(["copy", source, str(folder)])

    return work


def _fork(work, folder, number):
    child = os.fork()
    if child == 0:
        status = 99
        try:
            status = work(folder / f"fork-{number}", number)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    _, name, folder, argument = sys.argv
    sys.argv[0] = "keras-vit"  # a command starts without Keras
    sys.path.insert(0, str(Path(__file__).parents[2]))
    work = {"saves": saves, "copies": copies}[name](argument)
    found = []
    while not found or found[-1] == -signal.SIGKILL:
        found.append(_fork(work, Path(folder), len(found) + 1))
    assert not {"tensorflow", "jax"} & set(sys.modules)
    print(json.dumps(found))
