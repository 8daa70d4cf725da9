"""When the processes of a run on JAX join, and what they tell each other."""

import json

import jax
import keras
import pytest
import python_process
import tensorflow as tf
from test_job import MPICH, OPEN_MPI, SLURM, environment  # noqa: F401  a fixture

from training.engine import strategy as strategies
from training.engine.jax_strategy import make_jax_strategy
from training.errors import RecipeError
from training.recipe import DataConfig, Recipe


class Joined(Exception):
    """Raised by `jax.distributed.initialize`, with its arguments."""


def recipe(strategy):
    return Recipe(data=DataConfig("digits"), strategy=strategy)


@pytest.fixture(autouse=True)
def job(environment, monkeypatch):  # noqa: F811
    """A function that sets a launcher's variables; JAX then raises `Joined`."""

    def join(**known):
        raise Joined(known)

    monkeypatch.setattr(jax.distributed, "initialize", join)
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: ["cpu:0"])
    for name in ("TF_CONFIG", "JAX_LOCAL_DEVICE_IDS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    yield environment
    jax.config.update("jax_cpu_enable_async_dispatch", True)  # JAX's own


def joined(strategy):
    """What JAX is told of the run's processes."""
    with pytest.raises(Joined) as error:
        make_jax_strategy(recipe(strategy))
    (known,) = error.value.args
    assert known.pop("heartbeat_timeout_seconds") == 20
    assert known.pop("shutdown_timeout_seconds") == 20
    return known


@pytest.mark.parametrize("strategy", ["auto", "fsdp", "multi_worker"])
@pytest.mark.parametrize("variables", [OPEN_MPI, MPICH, SLURM])
def test_all_that_use_every_device_join_their_job(job, variables, strategy):
    job(variables)
    known = joined(strategy)
    assert known == {"num_processes": 4, "process_id": 3, "local_device_ids": [1]}


@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
def test_the_hosts_of_a_tpu_slice_join_as_jax_knows_them(monkeypatch, strategy):
    monkeypatch.setattr("training.engine.job._tpu_hosts", lambda: 2)
    assert joined(strategy) == {}


@pytest.mark.parametrize("variables", [{}, SLURM | {"SLURM_STEP_NUM_TASKS": "1"}])
def test_one_process_joins_nobody(job, variables):
    job(variables)
    assert make_jax_strategy(recipe("auto")).workers == 1


def test_tf_config_is_all_that_jax_is_told(job, monkeypatch):
    job(SLURM)
    workers = {"worker": ["a:1", "b:2"]}
    config = {"cluster": workers, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert joined("auto") == {
        "coordinator_address": "a:1",
        "num_processes": 2,
        "process_id": 1,
        "cluster_detection_method": "deactivate",
    }


@pytest.mark.parametrize(
    "variables",
    [
        SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1(x4)"},
        SLURM | {"CUDA_VISIBLE_DEVICES": "0"},
        SLURM | {"CUDA_VISIBLE_DEVICES": "-1"},
    ],
)
def test_a_process_has_all_gpus_that_are_its_own(job, variables):
    job(variables)
    assert joined("auto")["local_device_ids"] == []


def test_jaxs_own_variable_chooses_the_gpus(job):
    job(SLURM | {"JAX_LOCAL_DEVICE_IDS": "2,3"})
    assert "local_device_ids" not in joined("auto")


def test_for_jax_no_local_device_ids_are_all():
    code = """
import jax, socket
with socket.create_server(("127.0.0.1", 0)) as free:
    address = f"127.0.0.1:{free.getsockname()[1]}"
jax.distributed.initialize(address, 1, 0, local_device_ids=[])
print(jax.config.values["jax_cuda_visible_devices"])
"""
    variables = SLURM | {"SLURM_STEP_NODELIST": "localhost", "JAX_PLATFORMS": "cpu"}
    assert python_process.run("-c", code, **variables) == "all\n"


@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
def test_several_processes_that_train_alone_are_an_error(job, strategy):
    job(SLURM)
    with pytest.raises(RecipeError, match=f"Received: '{strategy}', 4 processes"):
        make_jax_strategy(recipe(strategy))


@pytest.mark.parametrize("strategy", ["auto", "one_device", "mirrored"])
def test_several_processes_that_have_not_joined_are_an_error(monkeypatch, strategy):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(RecipeError, match=f"Received: '{strategy}', 2 processes"):
        make_jax_strategy(recipe(strategy))


@pytest.mark.parametrize("strategy", ["auto", "one_device", "mirrored", "fsdp"])
def test_an_evaluation_joins_nobody(job, monkeypatch, strategy):
    job(SLURM)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    monkeypatch.setattr("training.engine.jax_strategy.FullySharded", lambda _: None)
    assert strategies.evaluation_strategy(strategy).workers == 1


def test_processes_that_jax_cannot_join_are_an_error(job, monkeypatch):
    def join(**known):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", join)
    job(OPEN_MPI)
    with pytest.raises(
        RecipeError,
        match=r"JAX_COORDINATOR_ADDRESS .*Received: TF_CONFIG=None, 4 processes of "
        r"mpirun \(Open MPI\): coordinator_address should be defined",
    ):
        make_jax_strategy(recipe("auto"))


def test_a_tensorflow_that_has_started_with_gpus_is_an_error(monkeypatch):
    def refuse(devices, kind):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    monkeypatch.setattr(tf.config, "set_visible_devices", refuse)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [gpu, gpu])
    with pytest.raises(RecipeError, match=r"set_visible_devices.*has started with 2"):
        make_jax_strategy(recipe("one_device"))


def test_a_tensorflow_that_has_started_without_gpus_is_none():
    tf.zeros(1)
    assert make_jax_strategy(recipe("one_device")).workers == 1
