"""What this machine's processor can do, for tests of kernels that others lack."""

import pathlib

import pytest

_CPU = pathlib.Path("/proc/cpuinfo")
# oneDNN multiplies bfloat16 where the processor has at least AVX512F.
BFLOAT16_KERNELS = pytest.mark.skipif(
    not (_CPU.exists() and "avx512f" in _CPU.read_text()), reason="needs AVX512F"
)
