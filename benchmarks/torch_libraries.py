"""Imports PyTorch and timm, before TensorFlow, where they are installed.

Import this first: PyTorch after TensorFlow has crashed. torchvision's build for GPUs
does not load its operators beside a PyTorch for CPUs, and then cannot be imported; timm
needs it, but none of its operators, so that two declarations are enough.
"""

import contextlib


def _import_torchvision(torch):
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


with contextlib.suppress(ImportError):
    import torch

    with contextlib.suppress(ImportError):
        LIBRARY = _import_torchvision(torch)
        import timm  # noqa: F401
    with contextlib.suppress(ImportError):
        import transformers  # noqa: F401
