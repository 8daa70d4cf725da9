"""The speed of a model: the search for the best and the largest batch."""

import dataclasses

import pytest
import tensorflow as tf
from tiny_recipe import TINY_RECIPE

from keras_vit.costs import variant_costs
from training.studies import speed


class Device:
    """Takes `overhead + images / rate` seconds for a step, up to `most` images."""

    def __init__(self, overhead, rate, most):
        self.overhead, self.rate, self.most = overhead, rate, most
        self.now = 0.0

    def __call__(self, batch, count):
        if batch > self.most:
            raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
        self.now += count * (self.overhead + batch / self.rate)

    def clock(self):
        """Seconds so far."""
        return self.now


@pytest.mark.parametrize(
    ("device", "batch"),
    [
        (Device(1.0, 1000, 64), 64),  # faster with each batch until memory is full
        (Device(0.0, 50, 10**9), 1),  # as fast with any batch
        (Device(0.1, 100, 10**9), 256),  # a doubled batch gains less than 5 %
    ],
)
def test_the_peak_is_that_of_the_best_batch(device, batch):
    peak = speed.peak_speed(device, device.clock)
    expected = batch / (device.overhead + batch / device.rate)
    assert peak == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(
    ("most", "largest"), [(0, 0), (1, 1), (100, 64), (10**6, 65536)]
)
def test_the_largest_batch_is_the_last_power_of_two_that_fits(most, largest):
    assert speed.largest_batch(Device(0, 1, most)) == largest


def test_the_closed_form_leaves_room_for_the_weights():
    costs = variant_costs("L/16")
    batch = speed.closed_form_batch(costs)
    needed = 16 * costs.parameters + batch * costs.training_bytes
    assert needed <= 16e9 < needed + costs.training_bytes
    huge = dataclasses.replace(costs, parameters=2 * 10**9)
    assert speed.closed_form_batch(huge) == 0


def test_a_model_is_measured(monkeypatch):
    monkeypatch.setattr(speed, "LARGEST", 2)
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    report = speed.measure(TINY_RECIPE)
    assert report["tokens"] == 5
    assert report["forward_images_per_second"] > 0
    assert report["images_per_second"] > 0
    assert report["largest_batch_is"] == "closed form, 16 GB"
    assert report["device_name"] == "CPU"
