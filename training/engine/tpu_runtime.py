"""The environment variables that TensorFlow needs on a TPU VM, before it is imported.

TensorFlow reaches TPUs up to v4 through StreamExecutor, and v5p, v5e and v6e through
PJRT, a plugin that libtpu contains: docs/devices.md has the sources.
"""

import importlib.util
import os
from pathlib import Path

from ..errors import RecipeError

DEVICES = Path("/sys/bus/pci/devices")
GOOGLE = "0x1ae0"  # vendor of the chips below, as in jax/_src/hardware_utils.py
CHIPS = {
    "0x0027": "v2 or v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "7x",
}
WITH_PJRT = ("v5p", "v5e", "v6e")
LIBRARY = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"


def set_variables(strategy: str, tpu: str | None) -> None:
    """Set what is not set of the variables of a run on a TPU, and check all."""
    if strategy == "tpu":
        for name, value in _wanted(tpu).items():
            os.environ.setdefault(name, value)
        check_variables(tpu)


def check_variables(tpu: str | None) -> None:
    """Raise RecipeError unless they are right for a TPU that this machine has."""
    for name, wanted in _wanted(tpu).items():
        value = os.environ.get(name)
        fits = Path(value or "").is_file() if name == LIBRARY else value == wanted
        if not fits:
            raise RecipeError(
                f"the environment variable {name} must be {wanted} before TensorFlow "
                f"is imported, for a TPU {generation_here()} and `tpu` {tpu}. "
                f"Received: {value!r}"
            )


def _wanted(tpu: str | None) -> dict[str, str]:
    generation = generation_here()
    values = {}
    if generation in WITH_PJRT:
        values = {"NEXT_PLUGGABLE_DEVICE_USE_C_API": "true", LIBRARY: _libtpu()}
    if generation and tpu != "local":  # a slice, whose servers use all its chips
        values["TPU_LOAD_LIBRARY"] = "0"
    return values


def generation_here() -> str | None:
    """The generation of this machine's TPU, or None."""
    for device in sorted(DEVICES.glob("*")):
        vendor, chip = (_read(device / name) for name in ("vendor", "device"))
        if vendor == GOOGLE and chip in CHIPS:
            return CHIPS[chip]
    return None


def _read(file: Path) -> str:
    return file.read_text().strip() if file.is_file() else ""


def _libtpu() -> str:
    """Path of the library: the package's, else that of Cloud's TPU software."""
    package = importlib.util.find_spec("libtpu")
    folders = package and package.submodule_search_locations
    return str(Path(folders[0] if folders else "/lib", "libtpu.so"))
