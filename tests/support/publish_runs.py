"""Publishes versions in a process that may be killed; see test_publish.py.

publish_runs.py FOLDER COUNT [KILL_AT]: publishes COUNT versions of two files each. With
KILL_AT, the process kills itself at its KILL_AT-th call that changes the file system.
"""

import os
import pathlib
import signal
import sys

sys.argv[0] = "keras-vit"  # a command starts without Keras
from serving.rollout.versions import staged_version  # noqa: E402

TEXT = "x" * 100_000
CHANGES = ("mkdir", "rename", "replace", "fsync", "open", "rmdir", "unlink", "remove")


def main(base_path, count, kill_at=0):
    if kill_at:
        die_at(kill_at)
    print("ready", flush=True)
    for _ in range(count):
        with staged_version(base_path) as (folder, _):
            # A server that finds the first file needs the second.
            (folder / "saved_model.pb").write_text(TEXT)
            (folder / "variables").mkdir()
            (folder / "variables" / "variables.index").write_text(TEXT)


def die_at(number):
    """Die at the n-th call that changes the disk; gives what counts one."""
    calls = iter(range(1, number + 1))

    def count():
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(original):
        def call(*arguments, **keywords):
            count()
            return original(*arguments, **keywords)

        return call

    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))
    return count


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:]))
