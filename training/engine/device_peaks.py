"""What a device can do at most: FLOP/s of matrix products, and a TPU's memory."""

import re

# Peak of dense matrix products, in 1e12 FLOP/s: in the frameworks' default for float32
# (TensorFloat-32 since Ampere, bfloat16 on TPUs), bfloat16 and float16; None where the
# device has no unit for it. From NVIDIA's data sheets (half of the figures "with
# sparsity") and docs.cloud.google.com/tpu/docs/v2 to v6e. A device of TPU v2 and v3 is
# a core, which is half a chip.
PEAKS: dict[str, tuple[float | None, float | None, float | None]] = {
    #                     float32  bfloat16 float16
    "H[12]00 NVL": (417.5, 835.5, 835.5),
    "H100 PCIe": (378.0, 756.0, 756.0),
    "H[12]00": (494.7, 989.4, 989.4),
    "A100": (156.0, 312.0, 312.0),
    "A10": (62.5, 125.0, 125.0),
    "L40S": (183.0, 362.0, 362.0),
    "L4": (60.0, 121.0, 121.0),
    "V100S": (16.4, None, 130.0),
    "V100-PCIE": (14.0, None, 112.0),
    "V100": (15.7, None, 125.0),
    "T4": (8.1, None, 65.0),
    "TPU v2": (22.5, 22.5, None),
    "TPU v3": (61.5, 61.5, None),
    "TPU v4": (275.0, 275.0, None),
    "TPU v5( ?lite|e|litepod)": (197.0, 197.0, None),
    "TPU v5p?": (459.0, 459.0, None),
    "TPU v6( ?lite|e)": (918.0, 918.0, None),
}
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def peak_flops(device_name: str, precision: str) -> float | None:
    """Peak FLOP/s of a device.

    Args:
        device_name: As from `device_name`: "NVIDIA A100-SXM4-40GB", "TPU v4".
        precision: The recipe's `precision`.

    Returns:
        FLOP/s, or None where they are unknown, as of a CPU or a part of a GPU (MIG).
    """
    for pattern, peaks in PEAKS.items():
        if re.search(rf"\b(?:{pattern})\b", device_name) and "MIG" not in device_name:
            peak = peaks[PRECISIONS.index(precision)]
            return None if peak is None else peak * 1e12
    return None


# Memory of a TPU's chip in GiB, by its kind in a topology (docs.cloud.google.com/tpu).
TPU_MEMORY = {"v4": 32, "v5e": 16, "v5p": 95, "v6e": 32}
