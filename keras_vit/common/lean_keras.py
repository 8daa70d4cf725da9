"""Keras without the packages that it imports where they are installed."""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

# For data frames, estimators, plots, notebooks and other backends: no command meets
# them through Keras or TensorFlow. A third of what their import takes.
UNUSED = ("IPython", "jax", "matplotlib", "pandas", "sklearn")


def import_lean() -> None:
    """Let Keras and TensorFlow, once they are imported, find nothing of `UNUSED`.

    Whoever imports these packages before or after gets them.
    """
    if sys.modules.keys().isdisjoint({"keras", "tensorflow"}):
        sys.meta_path.insert(0, _WithoutUnused())


class _WithoutUnused(importlib.abc.MetaPathFinder):
    """Finds nothing itself; refuses what is unused while Keras is being imported."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Raise ModuleNotFoundError, which Keras and TensorFlow are prepared for."""
        if (
            fullname in UNUSED
            and (_importing("keras") or _importing("tensorflow"))
            and not (fullname == "jax" and _on_jax())
        ):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def _importing(package: str) -> bool:
    spec = getattr(sys.modules.get(package), "__spec__", None)
    return getattr(spec, "_initializing", False)


def _on_jax() -> bool:
    config = sys.modules.get("keras.src.backend.config")
    return config is not None and config.backend() == "jax"
