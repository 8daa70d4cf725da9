"""Training under two replicas: what stock Keras gets wrong and the trainer does not.

A test that begins with `test_stock_keras_still` fails when Keras has changed: then the
trainer's workaround may go. The trainer's own clipping, steps per execution and XLA on
replicas are in `test_replicas.py`.
"""

import json
import math

import keras
import numpy as np
import pytest
from python_process import printed, start

from training.engine.launch import environments

pytestmark = pytest.mark.slow


def run(*workers):
    """The JSON that the script prints, once for each worker's environment."""
    script = "tests/support/stock_keras_runs.py"
    processes = [start(script, **variables) for variables in workers]
    return [json.loads(printed(process).splitlines()[-1]) for process in processes]


@pytest.fixture(scope="module")
def results():
    return run({})[0]


def test_stock_keras_still_clips_each_replica_by_itself(results):
    """The gradients 10 and -9.8 become 1 and -1, and the weight does not change."""
    assert results["clipping"] == 0


def test_stock_keras_still_sees_an_overflow_on_the_first_replica_only(results):
    assert results["overflow on replica 0"]["stock"] == 0
    assert math.isnan(results["overflow on replica 1"]["stock"])


@pytest.mark.parametrize("replica", [0, 1])
def test_an_overflow_on_any_replica_skips_a_step_and_halves_the_scale(results, replica):
    ours = results[f"overflow on replica {replica}"]["ours"]
    assert ours == [2**14, [0], [0]]  # the scale, the weight on each replica


def test_stock_keras_still_cannot_accumulate(results):
    assert "`merge_call` called while" in results["accumulation"]


def test_stock_keras_still_cannot_run_several_steps_per_execution(results):
    assert "feed a value for placeholder" in results["steps per execution"]


def test_stock_keras_still_cannot_be_compiled_by_xla(results):
    assert "Trying to access resource" in results["XLA"]


def test_stock_keras_still_has_one_dropout_mask_for_all_replicas(results):
    first, second, *_ = results["masks"]["stock"]
    assert first == second


@pytest.mark.parametrize("name", ["ours", "restored"])
def test_each_replica_and_each_step_has_a_dropout_mask_of_its_own(results, name):
    masks = results["masks"][name]
    assert len({tuple(mask) for mask in masks}) == 4
    assert {value for mask in masks for value in mask} == {0, 2}


def test_stock_keras_still_cannot_train_with_several_workers():
    """The first batch is a PerReplica, which it cannot convert (keras#20585)."""
    for answer in run(*environments(2)):
        assert answer.startswith("ValueError: Attempt to convert a value (PerReplica")


@pytest.mark.parametrize("parts", [1, 2])
def test_batch_normalization_averages_its_statistics_over_replicas(results, parts):
    """Each replica normalizes its own images, one micro-batch after the other."""
    images = np.array([1, 2, 4, 7, 11, 16, 22, 29.0])
    mean, variance = np.zeros(2), np.ones(2)
    for part in np.split(images.reshape(2, 4), parts, axis=1):
        mean = 0.75 * mean + 0.25 * part.mean(axis=1)
        variance = 0.75 * variance + 0.25 * part.var(axis=1)
    means, variances = results["normalized"][parts - 1]
    np.testing.assert_allclose(means, [[mean.mean()]] * 2, rtol=1e-6)
    np.testing.assert_allclose(variances, [[variance.mean()]] * 2, rtol=1e-6)


class Arithmetic:
    """The one weight's losses on the five images of `on_arrays`."""

    images = np.linspace(-1, 1, 5)
    labels = (images > 0.1).astype(float)
    weights = np.arange(1.0, 6) ** 2

    def loss(self, weight, weights=None):
        share = 1 / (1 + np.exp(-weight * self.images))
        right = np.where(self.labels == 1, share, 1 - share)
        return np.average(-np.log(right), weights=weights)

    def step(self, weight):
        share = 1 / (1 + np.exp(-weight * self.images))
        slopes = (share - self.labels) * self.images
        return weight - 0.5 * np.average(slopes, weights=self.weights)


def test_arrays_and_sample_weights_are_divided_among_the_replicas(results):
    ours, right = results["arrays"], Arithmetic()
    once = right.step(0.3)
    loss, _norm = ours["train on batch"]
    assert loss == pytest.approx(right.loss(0.3, right.weights), abs=1e-6)
    np.testing.assert_allclose(ours["predict"], 0.3 * right.images, atol=1e-6)
    for name, expected in {
        "evaluate": right.loss(0.3),
        "evaluate weighted": right.loss(0.3, right.weights),
        "test on batch": right.loss(0.3, right.weights),
        "weight": once,
        "weight after fit": right.step(once),
    }.items():
        assert ours[name] == pytest.approx(expected, abs=1e-6), name


def test_keras_still_has_the_private_methods_that_the_trainer_uses():
    assert callable(keras.Model._maybe_symbolic_build)
    assert callable(keras.Model._flatten_layers)
    assert callable(keras.optimizers.Optimizer._backend_update_step)
