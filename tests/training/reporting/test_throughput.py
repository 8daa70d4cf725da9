"""Throughput with an injected clock; peaks against the data sheets."""

import io
import types
from contextlib import redirect_stdout

import keras
import numpy as np
import pytest

import keras_vit
from training.engine.device_peaks import peak_flops
from training.reporting import throughput
from training.reporting.throughput import (
    Throughput,
    device_name,
    utilization_factor,
)

pytestmark = pytest.mark.backend


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test advances."""
    clock = types.SimpleNamespace(now=100.0)
    fake = types.SimpleNamespace(perf_counter=lambda: clock.now)
    monkeypatch.setattr(throughput, "time", fake)
    return clock


def start(callback, steps, epoch=0):
    callback.set_params({"steps": steps, "epochs": 9})
    callback.on_epoch_begin(epoch)
    return callback


def step(callback, clock, batch, seconds):
    clock.now += seconds
    logs = {}
    callback.on_train_batch_end(batch, logs)
    return logs.get("images_per_second")


def test_the_first_call_counts_only_until_the_second(clock):
    callback = start(Throughput(images_per_step=30), steps=4)
    assert step(callback, clock, 0, 10.0) == 3.0
    assert step(callback, clock, 1, 0.5) == 60.0
    assert step(callback, clock, 2, 1.5) == 30.0


def test_throughput_is_that_of_the_last_seconds(clock):
    callback = start(Throughput(images_per_step=7), steps=100)
    for batch in range(20):
        step(callback, clock, batch, 1.0)
    figures = [step(callback, clock, batch, 0.5) for batch in range(20, 40)]
    # The fewest calls of at least five seconds: five slow ones and a fast one.
    assert figures[0] == pytest.approx(7 * 6 / 5.5)
    assert figures == sorted(figures)
    assert figures[-1] == 14.0


def test_validation_does_not_count_and_an_epoch_has_its_own_figure(clock):
    callback = start(Throughput(images_per_step=10), steps=3)
    for batch in range(3):
        step(callback, clock, batch, 1.0)
    logs = {"loss": 0.5}
    clock.now += 1000.0
    callback.on_epoch_end(0, logs)
    assert logs == {"loss": 0.5, "images_per_second": 10.0}
    start(callback, steps=3, epoch=1)
    assert step(callback, clock, 0, 0.5) == pytest.approx(30 / 2.5)
    step(callback, clock, 1, 0.5)
    step(callback, clock, 2, 1.0)
    callback.on_epoch_end(1, logs)
    assert logs["images_per_second"] == 15.0
    assert callback.step == 6


def test_an_epoch_of_one_call_has_a_figure(clock):
    callback = start(Throughput(images_per_step=10), steps=1)
    step(callback, clock, 0, 4.0)
    logs = {}
    callback.on_epoch_end(0, logs)
    assert logs == {"images_per_second": 2.5}


def test_several_steps_in_a_call_are_counted(clock):
    callback = start(Throughput(images_per_step=10), steps=7)
    step(callback, clock, 2, 1.0)
    assert step(callback, clock, 5, 1.0) == 30.0
    assert step(callback, clock, 6, 1.0) == 20.0


def test_steps_of_a_stopped_run_do_not_count(clock):
    callback = start(Throughput(10, first_step=12), steps=5, epoch=2)
    assert step(callback, clock, 0, 0.001) is None
    assert step(callback, clock, 1, 0.001) is None
    assert step(callback, clock, 2, 5.0) == 2.0
    assert step(callback, clock, 3, 0.5) == 20.0
    assert callback.step == 14


class Late(keras.callbacks.Callback):
    """A callback after Throughput, like a recorder."""

    def on_epoch_end(self, epoch, logs=None):
        self.logs = dict(logs)


@pytest.mark.parametrize("verbose", [1, 2])
def test_keras_logs_the_throughput(verbose):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    late, output = Late(), io.StringIO()
    data = np.ones((24, 3)), np.ones((24, 1))
    callbacks = [Throughput(images_per_step=8), late]
    with redirect_stdout(output):
        history = model.fit(
            *data, batch_size=8, epochs=2, verbose=verbose, callbacks=callbacks
        )
    figures = history.history["images_per_second"]
    assert len(figures) == 2
    assert min(figures) > 0
    assert late.logs["images_per_second"] == figures[-1]
    assert f"images_per_second: {figures[-1]:.4f}" in output.getvalue()


@pytest.mark.parametrize(
    ("device", "precision", "tera"),
    [
        # Names from TensorFlow and JAX; NVIDIA's data sheets, dense.
        ("NVIDIA A100-SXM4-40GB", "mixed_bfloat16", 312),
        ("NVIDIA A100 80GB PCIe", "float32", 156),
        ("NVIDIA H100 80GB HBM3", "mixed_bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "mixed_bfloat16", 756),
        ("NVIDIA H200", "float32", 494.7),
        ("Tesla V100-SXM2-16GB", "mixed_float16", 125),
        ("Tesla V100-PCIE-32GB", "mixed_float16", 112),
        ("Tesla V100-SXM2-16GB", "mixed_bfloat16", None),
        ("Tesla T4", "mixed_float16", 65),
        ("NVIDIA L4", "mixed_bfloat16", 121),
        ("NVIDIA L40S", "mixed_bfloat16", 362),
        # docs.cloud.google.com/tpu/docs; of v2 and v3 one of two cores.
        ("TPU v2", "mixed_bfloat16", 45 / 2),
        ("TPU v3-8", "mixed_bfloat16", 123 / 2),
        ("TPU v4", "mixed_bfloat16", 275),
        ("TPU v5 lite", "mixed_bfloat16", 197),
        ("TPU v5litepod-4", "mixed_bfloat16", 197),
        ("TPU v5p-8", "mixed_bfloat16", 459),
        ("TPU v5", "mixed_bfloat16", 459),
        ("TPU v6 lite", "mixed_bfloat16", 918),
        ("TPU v6e-8", "mixed_bfloat16", 918),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "mixed_bfloat16", None),
        ("NVIDIA A10G", "mixed_bfloat16", None),
        ("NVIDIA GH200 480GB", "mixed_bfloat16", None),
        ("CPU", "float32", None),
    ],
)
def test_peaks_match_the_data_sheets(device, precision, tera):
    peak = peak_flops(device, precision)
    assert peak == (None if tera is None else pytest.approx(tera * 1e12))


@pytest.mark.slow
def test_training_takes_three_times_the_published_forward_pass():
    # DeiT's and BiT's papers and timm: 1.26e9 and 4.1e9 multiply-accumulates at 224.
    for model, giga in ((keras_vit.ViTTi16(), 1.26), (keras_vit.BiTR50x1(), 4.1)):
        share = utilization_factor(model, "float32", 1, "Tesla T4")
        assert share * 8.1e12 == pytest.approx(3 * 2 * giga * 1e9, rel=0.05)


def test_a_model_without_a_closed_form_has_no_utilization():
    backbone = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten()])
    model = keras_vit.ImageClassifier(backbone=backbone, classes=3)
    assert utilization_factor(model, "float32", 1, "Tesla T4") is None


def test_utilization_is_relative_to_all_devices(tiny_vit):
    model = tiny_vit(preprocessing=None)
    n, d, m, classes, depth = 1 + 11 * 7, 15, 23, 7, 2
    blocks = depth * (4 * n * d * d + 2 * n * n * d + 2 * n * d * m)
    macs = 77 * (2 * 2 * 3) * d + blocks + d * classes
    factor = utilization_factor(model, "mixed_bfloat16", 8, "NVIDIA A100-SXM4-80GB")
    assert factor == pytest.approx(6 * macs / (8 * 312e12), rel=1e-12)
    assert utilization_factor(model, "float32", 8, "CPU") is None


def test_the_device_of_this_machine_has_a_name():
    assert device_name() == "CPU"
