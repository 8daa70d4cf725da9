"""TensorFlow without the lines that its libraries print while they are loaded."""

import contextlib
import faulthandler
import importlib.abc
import importlib.machinery
import os
import sys
import types
import warnings
from collections.abc import Iterator, Sequence


def quiet_tensorflow() -> None:
    """Let TensorFlow, once it is imported, print fatal errors only.

    Whatever else goes wrong is an exception. `TF_CPP_MIN_LOG_LEVEL` wins where it is
    set: 0 for all lines.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # On a Python whose support will end, from what TensorFlow imports for Cloud TPUs.
    warnings.filterwarnings("ignore", r"(?s).*Python version", FutureWarning, "google")
    # The code that protobuf generated for TensorFlow is older than protobuf 6.
    warnings.filterwarnings("ignore", "Protobuf gencode version", UserWarning)
    if "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, _QuietImport())


class _QuietImport(importlib.abc.MetaPathFinder):
    """TensorFlow 2.21 logs before it has read the variable, and again in each process.

    Whichever module imports it first: Keras, a data set, the local server.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Find TensorFlow; nothing else, so that the next finder goes on.

        It may be called several times: packages look whether there is a TensorFlow.
        """
        if fullname != "tensorflow":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_quietly(module: types.ModuleType) -> None:
                sys.meta_path.remove(self)
                with without_native_lines():
                    load(module)

            spec.loader.exec_module = load_quietly  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def without_native_lines() -> Iterator[None]:
    """Drop what is written to the descriptor of standard error but by Python.

    Python's lines go to a copy of the descriptor, also that of a process that aborts.
    The copy stays open: handlers that modules create meanwhile write to it. Where
    `TF_CPP_MIN_LOG_LEVEL` is 0, nothing is dropped.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    stderr = open(os.dup(2), "w", buffering=1)  # noqa: SIM115
    traced = faulthandler.is_enabled()
    faulthandler.enable(stderr)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        with contextlib.redirect_stderr(stderr):
            yield
    finally:
        os.dup2(stderr.fileno(), 2)
        faulthandler.disable()
        if traced:
            faulthandler.enable()
