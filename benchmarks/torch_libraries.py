"""Imports PyTorch before TensorFlow, where it is installed: the one place for that.

    from benchmarks import torch_libraries  # noqa: F401  isort: skip

comes first in every program that imports timm, transformers or PyTorch itself, and
`tests/conftest.py` has it for the tests. PyTorch's build for GPUs, which is what PyPI
has for Linux on x86-64, brings triton, whose library ends the process (a segmentation
fault) when TensorFlow is in it already; the other order works. timm imports triton,
PyTorch itself only when it compiles something.

torchvision's build for GPUs does not load its operators beside a PyTorch for CPUs, and
then cannot be imported; timm needs it, but none of its operators, so that two
declarations are enough.
"""

import contextlib
import importlib.util
import sys
import types
from typing import Any

FIRST = ("torch", "triton")


def _check_order() -> None:
    """ImportError where TensorFlow was faster."""
    late = [
        name
        for name in FIRST
        if name not in sys.modules and importlib.util.find_spec(name) is not None
    ]
    if late and "tensorflow" in sys.modules:
        raise ImportError(
            f"{' and '.join(late)} must be imported before TensorFlow, or triton's "
            "library crashes: begin with `from benchmarks import torch_libraries`. "
            "Received: tensorflow is imported already"
        )


def _import_torchvision(torch: types.ModuleType) -> Any:
    try:
        import torchvision
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(
                f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        import torchvision  # noqa: F401

        return library  # gone with its declarations when nobody holds it
    return None


_check_order()
with contextlib.suppress(ImportError):
    import torch

    with contextlib.suppress(ImportError):
        import triton  # noqa: F401
    with contextlib.suppress(ImportError):
        LIBRARY = _import_torchvision(torch)
