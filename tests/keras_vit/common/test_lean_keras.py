"""What commands keep Keras from importing, in processes of their own."""

import os
import subprocess
import sys

import pytest

LEAN = """
import importlib.util
import sys
sys.argv[0] = "keras-vit"  # which imports no Keras with keras_vit
from keras_vit.common.lean_keras import UNUSED, import_lean

import_lean()
import {first}
import keras

print(*sorted(set(UNUSED) & set(sys.modules)))
for name in UNUSED:
    if importlib.util.find_spec(name):
        importlib.import_module(name)
layer = keras.layers.Dense(1, kernel_initializer="ones")
print(int(layer(keras.ops.ones((1, 5)))[0, 0]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "backend", "imported"),
    [
        ("tensorflow", "tensorflow", ""),
        ("keras", "jax", "jax"),
    ],
)
def test_keras_imports_nothing_that_is_unused_and_others_may(first, backend, imported):
    """With JAX as the backend, Keras gets it; afterwards everybody gets everything."""
    result = subprocess.run(
        [sys.executable, "-c", LEAN.format(first=first)],
        capture_output=True,
        text=True,
        env=os.environ | {"KERAS_BACKEND": backend},
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == imported
    assert lines[-1] == "5"
