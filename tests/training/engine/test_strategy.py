"""Distribution strategies, and their errors."""

import json
import types

import pytest
import tensorflow as tf
from python_process import printed, start

from training.engine import strategy as strategies
from training.engine.cluster import parse_cluster
from training.engine.job import LAUNCHERS
from training.engine.launch import environments
from training.engine.strategy import (
    check_same_step,
    check_workers,
    evaluation_strategy,
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


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.name)
def test_one_of_several_processes_trains_only_with_the_others(monkeypatch, launcher):
    for variable in launcher[1:]:
        monkeypatch.setenv(variable, "2")
    with pytest.raises(RecipeError, match=r"no TF_CONFIG, 2 processes of .*\("):
        make_strategy(recipe())
    assert evaluation_strategy("one_device").num_replicas_in_sync == 1
    monkeypatch.setenv(launcher.processes, "1")
    assert make_strategy(recipe()).num_replicas_in_sync == 1


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


@pytest.fixture
def workers(monkeypatch):
    """A function: the `communication_options` of a worker, of workers with GPUs."""

    def make(counts, index=0, **options):
        names = [
            f"/job:worker/replica:0/task:{task}/device:GPU:{number}"
            for task, count in enumerate(counts)
            for number in range(count)
        ]
        devices = [types.SimpleNamespace(name=name) for name in names]
        asked = []
        for name, shown in (("logical", devices), ("physical", [0] * counts[index])):
            monkeypatch.setattr(
                tf.config, f"list_{name}_devices", lambda kind, shown=shown: shown
            )
        monkeypatch.setattr(
            tf.distribute,
            "MultiWorkerMirroredStrategy",
            lambda communication_options: asked.append(communication_options),
        )
        addresses = [f"10.0.0.{task}:2222" for task in range(len(counts))]
        monkeypatch.setenv("TF_CONFIG", tf_config(addresses, index=index))
        strategies.open_strategy(recipe("multi_worker", **options))
        return asked[0].implementation.value

    return make


@pytest.mark.parametrize(
    ("counts", "options", "asked", "printed"),
    [
        ((8, 8), {}, "NCCL", "2 workers x 8 GPUs, NCCL"),
        ((1, 1, 1), {"communication": "nccl"}, "NCCL", "3 workers x 1 GPU, NCCL"),
        (
            (8, 8),
            {"communication": "ring"},
            "RING",
            "2 workers x 8 GPUs, a ring over gRPC",
        ),
        ((0, 0), {}, "RING", "2 workers, a ring over gRPC"),
    ],
)
def test_workers_with_gpus_use_nccl_and_the_chief_says_so(
    workers, capsys, counts, options, asked, printed
):
    assert workers(counts, **options) == asked
    assert capsys.readouterr().out == f"{printed}\n"
    assert workers(counts, index=1, **options) == asked
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("index", [0, 1, 2])
def test_workers_with_other_numbers_of_gpus_are_rejected(workers, index):
    with pytest.raises(RecipeError, match="workers 0 to 2 with 8, 8, 0"):
        workers((8, 8, 0), index)


def test_nccl_needs_gpus(workers):
    with pytest.raises(RecipeError, match="`communication` must be auto or ring for"):
        workers((0, 0), communication="nccl")


# CPU:0 has the place of a GPU. A collective of CPUs runs as a ring, whatever it asks.
WORKER = """
import sys
import tensorflow as tf
from training.engine import strategy as strategies
from training.recipe import DataConfig, Recipe

logical = tf.config.list_logical_devices
tf.config.list_physical_devices = lambda kind: [0]
tf.config.list_logical_devices = lambda kind: logical("CPU")
recipe = Recipe(data=DataConfig("digits"), strategy="multi_worker")
strategy = strategies.open_strategy(recipe)

functions = []
traced = tf.function
tf.function = lambda *a, **k: functions.append(traced(*a, **k)) or functions[-1]
print(strategies.gather(strategy, 2**60 + strategies.worker_count(strategy)))

def summed():
    return tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([3]))

tf.function(strategy.run, autograph=False)(summed)
for function in functions:
    [concrete] = function._list_all_concrete_functions()
    nodes = concrete.graph.as_graph_def().node
    print({n.attr["communication_hint"].s for n in nodes if "Collective" in n.op})
"""


@pytest.mark.slow
def test_gradients_go_by_nccl_and_what_compares_recipes_by_a_ring():
    processes = [start("-c", WORKER, **variables) for variables in environments(2)]
    first, second = map(printed, processes)
    both = f"{[2**60 + 2] * 2}\n{{b'ring'}}\n{{b'nccl'}}\n"
    assert first == f"2 workers x 1 GPU, NCCL\n{both}"
    assert second == both


def test_an_unknown_tpu_is_a_one_line_error(monkeypatch):
    # Here nobody listens; TensorFlow waits for a metadata server without an address.
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:9")
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


def test_other_errors_and_those_of_a_single_process_stay(monkeypatch):
    with pytest.raises(tf.errors.UnavailableError), lost_workers():
        raise tf.errors.UnavailableError(None, None, "a bucket")
    monkeypatch.setenv("TF_CONFIG", tf_config())
    with pytest.raises(tf.errors.InvalidArgumentError), lost_workers():
        raise tf.errors.InvalidArgumentError(None, None, "a shape")
