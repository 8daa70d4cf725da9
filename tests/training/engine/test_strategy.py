"""Distribution strategies, and their errors."""

import json

import pytest
import tensorflow as tf

from training.engine import strategy as strategies
from training.engine.cluster import parse_cluster
from training.engine.strategy import (
    check_same_step,
    check_workers,
    gather,
    is_chief,
    lost_workers,
    make_strategy,
    worker_count,
)
from training.errors import RecipeError, RunError, WorkerLost
from training.recipe import DataConfig, Recipe

ADDRESSES = ["10.0.0.1:2222", "10.0.0.2:2222"]


def recipe(strategy="auto", **options):
    return Recipe(data=DataConfig("digits"), strategy=strategy, **options)


def tf_config(workers=ADDRESSES, kind="worker", index=1, **cluster):
    return json.dumps(
        {
            "cluster": {"worker": workers, **cluster},
            "task": {"type": kind, "index": index},
        }
    )


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def test_tf_config_has_the_workers_index():
    assert parse_cluster(tf_config()) == (1, tuple(ADDRESSES))
    assert parse_cluster(tf_config(["localhost:80"], index=0)) == (0, ("localhost:80",))


@pytest.mark.parametrize(
    "text",
    [
        None,
        "{",
        "[]",
        "{}",
        '{"cluster": {"worker": ["a:1"]}}',
        tf_config(index=2),
        tf_config(index=-1),
        tf_config(index=True),
        tf_config(kind="chief"),
        tf_config(chief=["10.0.0.9:2222"]),
        tf_config({"10.0.0.1:2222": 0}, index=0),
        tf_config(["10.0.0.1", "10.0.0.2"]),
        tf_config([":2222", "10.0.0.2:2222"]),
        tf_config(["10.0.0.1:0", "10.0.0.2:2222"]),
        tf_config(["10.0.0.1:65536", "10.0.0.2:2222"]),
        tf_config(["10.0.0.1:http", "10.0.0.2:2222"]),
        tf_config([1, 2]),
        tf_config(["10.0.0.1:2222", "10.0.0.1:2222"]),
    ],
)
def test_a_malformed_tf_config_is_an_error(text, monkeypatch):
    with pytest.raises(RecipeError, match="TF_CONFIG must be JSON such as"):
        parse_cluster(text)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
        with pytest.raises(RecipeError, match="TF_CONFIG") as error:
            make_strategy(recipe())
        assert "\n" not in str(error.value)


def test_divided_weights_need_jax():
    with pytest.raises(RecipeError, match=r"fsdp needs .* KERAS_BACKEND=jax"):
        make_strategy(recipe("fsdp"))


def test_several_workers_need_tf_config():
    with pytest.raises(RecipeError, match=r"TF_CONFIG.*Received: None"):
        make_strategy(recipe("multi_worker"))


@pytest.mark.parametrize("name", ["auto", "one_device"])
def test_one_device_is_the_default_strategy(name):
    strategy = make_strategy(recipe(name))
    assert strategy is tf.distribute.get_strategy()
    assert is_chief(strategy)
    assert worker_count(strategy) == 1
    assert gather(strategy, 7) == [7]


def test_one_device_ignores_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config())
    assert make_strategy(recipe("one_device")).num_replicas_in_sync == 1


def test_mirrored_uses_all_devices():
    strategy = make_strategy(recipe("mirrored"))
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    devices = tf.config.list_logical_devices("CPU")
    assert strategy.num_replicas_in_sync == len(devices)
    assert is_chief(strategy)


def test_an_unknown_tpu_is_a_one_line_error():
    for name in (None, "local"):
        with pytest.raises(RecipeError, match="`tpu` must be") as error:
            make_strategy(recipe("tpu", tpu=name))
        assert "\n" not in str(error.value)
        assert f"Received: {name!r}" in str(error.value)


@pytest.mark.parametrize(("batch_size", "accumulation"), [(9, 2), (6, 4), (1, 2)])
def test_replicas_and_micro_batches_must_divide_the_batch(batch_size, accumulation):
    with pytest.raises(RecipeError, match="`batch_size` must be a multiple"):
        make_strategy(recipe(batch_size=batch_size, accumulation=accumulation))


def several(monkeypatch, numbers):
    """Let `gather` return the numbers of several workers."""
    monkeypatch.setattr(strategies, "gather", lambda strategy, number: numbers)
    return tf.distribute.get_strategy()


def test_a_worker_with_another_recipe_is_rejected(monkeypatch):
    check_workers(several(monkeypatch, [5, 5, 5]), "0123456789abcdef")
    with pytest.raises(RecipeError, match="all workers must have the same recipe"):
        check_workers(several(monkeypatch, [5, 5, 6]), "0123456789abcdef")


def test_a_fingerprint_fits_into_the_integer_that_is_compared(monkeypatch):
    sent = []
    monkeypatch.setattr(
        strategies, "gather", lambda strategy, number: sent.append(number) or [number]
    )
    for name in ("f" * 16, "f" * 14 + "ef"):
        check_workers(tf.distribute.get_strategy(), name)
    assert sent[0] != sent[1]
    assert max(sent) < 2**63


def test_a_worker_with_another_folder_is_rejected(monkeypatch):
    check_same_step(several(monkeypatch, [40, 40]), 40)
    with pytest.raises(RunError, match="steps 40, 0"):
        check_same_step(several(monkeypatch, [40, 0]), 40)


UNHEALTHY = "Collective ops is aborted by:\n The following tasks are unhealthy"


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.UnavailableError(None, None, "failed to connect\nto all addresses"),
        tf.errors.AbortedError(None, None, UNHEALTHY),
        tf.errors.InternalError(None, None, UNHEALTHY),
    ],
)
def test_a_lost_worker_is_a_one_line_error(monkeypatch, error):
    monkeypatch.setenv("TF_CONFIG", tf_config())
    with (
        pytest.raises(WorkerLost, match="another worker has ended") as caught,
        lost_workers(),
    ):
        raise error
    assert caught.value.exit_status == 77
    assert "\n" not in str(caught.value)


def test_other_errors_are_not_converted(monkeypatch):
    mine = tf.errors.InvalidArgumentError(None, None, "a shape")
    monkeypatch.setenv("TF_CONFIG", tf_config())
    with pytest.raises(tf.errors.InvalidArgumentError), lost_workers():
        raise mine


def test_a_single_process_cannot_lose_a_worker():
    mine = tf.errors.UnavailableError(None, None, "a bucket")
    with pytest.raises(tf.errors.UnavailableError), lost_workers():
        raise mine
