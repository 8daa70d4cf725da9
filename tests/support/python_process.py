"""Python in processes of their own: Keras chooses its backend once, at import."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def on(backend, devices=1, optimized=False):
    """The variables of a process on a backend; JAX then sees so many CPUs.

    Without `optimized`, JAX leaves out most of XLA's optimizations: a quarter of the
    time of a tiny `fit`.
    """
    flags = f"--xla_force_host_platform_device_count={devices}"
    variables = {"KERAS_BACKEND": backend, "XLA_FLAGS": flags}
    if not optimized:
        variables["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    return variables


def start(*words, beside=__file__, **variables):
    """Start Python with these arguments.

    It imports our packages, what is in this folder, modules beside a file, and what
    this process finds, such as the libtpu of `make test-tpu`.
    """
    paths = (ROOT, ROOT / "tests" / "support", pathlib.Path(beside).parent)
    found = filter(None, [os.environ.get("PYTHONPATH")])
    search = {"PYTHONPATH": os.pathsep.join([*map(str, paths), *found])}
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        env=os.environ | search | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(process):
    """What a process that must succeed has printed in the end."""
    output, errors = process.communicate()
    assert process.returncode == 0, output + errors
    return output


def run(*words, **options):
    """`start` and `printed`."""
    return printed(start(*words, **options))
