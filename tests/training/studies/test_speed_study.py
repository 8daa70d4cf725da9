"""The speed of a model: the search for the best and the largest batch."""

import dataclasses

import pytest
import tensorflow as tf
from tiny_recipe import TINY_RECIPE

from keras_vit.costs import variant_costs
from training.studies import speed


class Device:
    """Takes `overhead + images / rate` seconds for a step, up to `most` images.

    Each call takes `start` seconds beside its steps.
    """

    def __init__(self, overhead, rate, most, start=0.0):
        self.overhead, self.rate, self.most = overhead, rate, most
        self.start = start
        self.now = 0.0

    def __call__(self, batch, count):
        if batch > self.most:
            raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
        self.now += self.start + count * (self.overhead + batch / self.rate)

    def clock(self):
        """Seconds so far."""
        return self.now


@pytest.mark.parametrize(
    ("device", "batch"),
    [
        (Device(0.4, 1000, 100), 64),  # faster with each batch until memory is full
        (Device(0.0, 10**5, 10**9), 1),  # as fast with any batch: two are enough
        (Device(0.1, 100, 10**9), 64),  # a step of 64 takes longer than half a second
        (Device(0.1, 1000, 16, start=0.2), 8),  # the start of a call does not count
    ],
)
def test_the_peak_is_that_of_the_best_batch(device, batch):
    peak = speed.peak_speed(device, device.clock)
    expected = batch / (device.overhead + batch / device.rate)
    assert peak == pytest.approx(expected)


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


@pytest.mark.slow
@pytest.mark.usefixtures("eager_test")
def test_a_model_is_measured(monkeypatch):
    monkeypatch.setattr(speed, "LARGEST", 2)
    monkeypatch.setattr(speed, "MORE_STEPS", 1)
    report = speed.measure(TINY_RECIPE)
    assert report["tokens"] == 5
    assert report["forward_images_per_second"] > 0
    assert report["images_per_second"] > 0
    assert report["largest_batch_is"] == "closed form, 16 GB"
    assert report["device_name"] == "CPU"
