"""Forward passes on all devices of a strategy: order, padding, and where they run."""

import json

import keras
import numpy as np
import pytest
import python_process
import tensorflow as tf
from device_spy import DEVICES, digit_files, masked_predictions, probabilities
from image_splits import noise_split
from long_cases import long_after
from tiny_model import build_vit

import keras_vit
from training.architectures.model_reading import read_classifier
from training.data.pipeline import Shard
from training.data.splits import load_splits
from training.engine import forward_pass
from training.engine.forward_pass import ForwardPass, even_batches
from training.engine.run_folder import read_recipe
from training.engine.strategy import evaluation_strategy
from training.evaluation.evaluate import evaluate


@pytest.fixture
def network():
    return build_vit(preprocessing=keras_vit.ImagePreprocessing((22, 14)))


@pytest.mark.backend
@pytest.mark.parametrize("count", long_after(1, [11, 1, 4]))
def test_the_outputs_of_arrays_are_in_order_and_without_padding(network, count):
    images = np.random.default_rng(0).uniform(0, 255, (count, 22, 14, 3))
    outputs = ForwardPass(network, batch_size=4)(images.astype("float32"))
    assert outputs.shape[0] == count
    for image, output in zip(images, outputs, strict=True):
        alone = keras.ops.convert_to_numpy(network(image[np.newaxis]))[0]
        np.testing.assert_allclose(output, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.backend
def test_inputs_may_be_a_dictionary():
    a, b = keras.Input((3,), name="a"), keras.Input((3,), dtype="int32", name="b")
    total = keras.ops.add(a, keras.ops.cast(b, "float32"))
    network = keras.Model({"a": a, "b": b}, total)
    rows = np.arange(15).reshape(5, 3)
    outputs = ForwardPass(network, batch_size=2)(
        {"a": rows.astype("float32"), "b": rows.astype("int32")}
    )
    np.testing.assert_array_equal(outputs, 2.0 * rows)


def test_every_host_of_a_tpu_reads_its_own_part(network):
    """The parts of two hosts, put together as a strategy does, are in order."""
    forward = ForwardPass(network, batch_size=8)
    rows = np.arange(11)
    hosts = [list(forward._array_data(rows, Shard(host, 2, 2))) for host in range(2)]
    assert all(len(batch) == 2 for host in hosts for (batch,) in host)
    steps = zip(
        *(zip(host[::2], host[1::2], strict=True) for host in hosts), strict=True
    )
    read = np.concatenate([b for step in steps for host in step for (b,) in host])
    np.testing.assert_array_equal(read[:11], rows)


def test_a_tpu_with_several_hosts_gets_each_part_once(network, monkeypatch):
    """One process controls all hosts: a pipeline for each, with its own images."""
    strategy = tf.distribute.get_strategy()
    asked = []

    def data(shard):
        asked.append((shard.index, shard.count, shard.replicas))
        return tf.data.Dataset.from_tensors((np.zeros((2, 22, 14, 3), "uint8"),))

    def of_hosts(pipeline):
        for host in range(4):
            pipeline(tf.distribute.InputContext(4, host, 8))
        return pipeline(tf.distribute.InputContext(4, 0, 8))

    monkeypatch.setattr(strategy, "distribute_datasets_from_function", of_hosts)
    forward = ForwardPass(network)
    forward.devices = 8
    list(forward._tensorflow_outputs(forward._distributed(data), 1))
    assert asked[:4] == [(host, 4, 2) for host in range(4)]


@pytest.mark.parametrize(
    ("count", "most", "size"),
    [(1, 256, 1), (256, 256, 256), (257, 256, 129), (360, 256, 180), (65, 64, 33)],
)
def test_no_batch_is_mostly_padding(count, most, size):
    assert even_batches(count, most) == size


def test_a_small_split_is_not_padded_to_a_large_batch(network, monkeypatch):
    sizes = []
    init = ForwardPass.__init__

    def spied(self, *args, **kwargs):
        init(self, *args, **kwargs)
        sizes.append(self.batch_size)

    monkeypatch.setattr(ForwardPass, "__init__", spied)
    network.class_names = list("abcdefg")
    evaluate(network, noise_split(23))
    assert sizes == [23]


@pytest.mark.slow
def test_a_split_is_prepared_once_and_the_weights_are_read_each_time(
    network, monkeypatch
):
    """Another split, or another preprocessing, is not taken for it."""
    prepared, traced = [], []
    batches, call = forward_pass.evaluation_batches, network.stateless_call
    monkeypatch.setattr(
        forward_pass,
        "evaluation_batches",
        lambda split, *args: prepared.append(split) or batches(split, *args),
    )
    monkeypatch.setattr(
        network, "stateless_call", lambda *a, **k: traced.append(1) or call(*a, **k)
    )
    forward = ForwardPass(network, batch_size=4)
    one, other = noise_split(size=(22, 14)), noise_split(size=(31, 37))

    def outputs(split, preprocessing=network.preprocessing):
        return np.concatenate(list(forward.of_split(split, preprocessing)))

    first = outputs(one)
    np.testing.assert_array_equal(outputs(one), first)
    network.set_weights([0.5 * weight for weight in network.get_weights()])
    assert not np.allclose(outputs(one), first)
    assert prepared == [one]
    outputs(other)
    outputs(other, keras_vit.ImagePreprocessing((22, 14), crop_fraction=0.5))
    assert prepared == [one, other, other]
    assert traced == [1]


@pytest.mark.parametrize("name", ["auto", "multi_worker"])
def test_an_evaluation_waits_for_no_other_worker(monkeypatch, name):
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    assert evaluation_strategy(name).num_replicas_in_sync == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "strategy"), [("tensorflow", "mirrored"), ("jax", "fsdp")]
)
def test_all_that_is_not_training_runs_on_all_devices(tmp_path, backend, strategy):
    variables = python_process.on(backend, DEVICES)
    python_process.run("tests/support/device_spy.py", strategy, tmp_path, **variables)
    for name, devices in json.loads((tmp_path / "devices.json").read_text()).items():
        assert len(devices) == DEVICES, name
        assert len(set(devices.values())) == 1, name
        if backend == "jax":
            assert all(device.startswith("divided") for device in devices), name
    outputs = np.load(tmp_path / "outputs.npz")
    model = read_classifier(tmp_path / "run" / "best.keras")
    splits = load_splits(read_recipe(tmp_path / "run").data, 1)
    expected = {
        "finish": evaluate(model, splits.test).probabilities,
        "predict": probabilities(model, digit_files(tmp_path)),
        "masked": masked_predictions(),
    }
    expected["evaluate"] = expected["finish"]
    assert outputs.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(outputs[name], array, atol=1e-5, err_msg=name)
    assert len(list((tmp_path / "attention").iterdir())) == len(outputs["predict"])
