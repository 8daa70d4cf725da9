"""Short runs are answered in the event loop; most runs need no deadline."""

import asyncio
import ctypes
import json
import re
import threading
from pathlib import Path

import pytest
import tensorflow as tf
from test_local_server import request

from serving.local import LocalServer, pace
from serving.local.pace import MayTakeLong, Pace, may_wait
from serving.local.session import LoadedModel

IN_LOOP = "local-server"
ENOUGH = 16
ROWS = tf.TensorSpec([None], tf.float32, "x")


def noted(*notes, steady=True):
    runs = Pace(steady)
    for note in notes:
        runs.note(*note)
    return runs


SHORT = (8, 8, 100)


@pytest.mark.parametrize(
    ("runs", "inputs", "short"),
    [
        (noted(*[SHORT] * ENOUGH), 8, True),
        (noted(*[SHORT] * ENOUGH), 9, False),
        (noted(*[SHORT] * (ENOUGH - 1)), 8, False),
        (noted(*[SHORT] * ENOUGH, (8, 8, 2001)), 8, False),
        (noted(*[SHORT] * ENOUGH, (8, 8, 2000)), 8, True),
        (noted(*[SHORT] * ENOUGH, (8, 4097, 100)), 8, False),
        (noted((8, 8, 2001), *[SHORT] * ENOUGH), 8, True),
        # What was short once is not known to be short after a long run.
        (noted((64, 8, 100), (8, 8, 2001), *[SHORT] * ENOUGH), 64, False),
        (noted(*[SHORT] * ENOUGH, steady=False), 8, False),
    ],
)
def test_short_is_what_was_short_often_enough_at_that_size(runs, inputs, short):
    async def in_loop():
        return runs.is_short(inputs)

    assert runs.is_short(inputs) is short
    if short:
        assert asyncio.run(in_loop())
    else:
        with pytest.raises(MayTakeLong):
            asyncio.run(in_loop())


def save(folder, function, *signature):
    """Saves a function as version 1; returns the folder of versions."""
    module = tf.Module()
    module.serve = tf.function(function, input_signature=signature)
    tf.saved_model.save(module, str(folder / "1"), signatures=module.serve)
    return folder


def double(x):
    return {"y": 2 * x}


def loop(x):
    turns = tf.cast(tf.reduce_sum(x), tf.int32)
    return {"y": tf.while_loop(lambda i, y: i < turns, next_turn, [0, x])[1]}


def next_turn(i, y):
    return i + 1, y / 2


def batched(x):
    batch = tf.nondifferentiable_batch_function(1, 4, 1000)
    return {"y": batch(lambda x: 2 * x)(x)}


def echo(s):
    return {"s": tf.identity(s)}


def graph_of(function, *signature):
    concrete = tf.function(function).get_concrete_function(*signature)
    return concrete.graph.as_graph_def()


def test_loops_and_batches_may_wait():
    assert not may_wait(graph_of(double, ROWS))
    assert may_wait(graph_of(loop, ROWS))
    assert may_wait(graph_of(batched, ROWS))
    # In a function that another one calls.
    assert may_wait(graph_of(lambda x: tf.function(loop)(x), ROWS))
    by_tensorflow_1 = tf.compat.v1.GraphDef()
    by_tensorflow_1.node.add(name="loop", op="Enter")
    assert may_wait(by_tensorflow_1)


@pytest.fixture
def ran_in(monkeypatch):
    """Names of the threads in which models ran, one for each run."""
    names = []
    run = LoadedModel._run

    def note(*arguments):
        names.append(threading.current_thread().name)
        return run(*arguments)

    monkeypatch.setattr(LoadedModel, "_run", note)
    return names


def ask(server, value):
    body = json.dumps({"instances": value})
    return request(server, "POST", "/v1/models/m:predict", body)


def test_a_short_model_runs_in_the_loop(ran_in, monkeypatch, tmp_path):
    # The machine may be busy.
    monkeypatch.setattr(pace, "_SHORT", 10_000_000)
    monitoring = tmp_path / "monitoring.config"
    monitoring.write_text("prometheus_config { enable: true }")
    with LocalServer(
        {"m": save(tmp_path / "m", double, ROWS)},
        rest_port=0,
        grpc_port=0,
        monitoring_config_file=str(monitoring),
    ) as server:
        for number in range(ENOUGH + 3):
            expected = {"predictions": [0.0, 2.0 * number]}
            assert ask(server, [0, number]) == (200, expected)
        assert IN_LOOP not in ran_in[:ENOUGH]
        assert ran_in[ENOUGH:] == [IN_LOOP] * 3
        assert ask(server, [0, "x"])[0] == 400
        # More numbers than ever before, and a body that takes time to read.
        assert ask(server, [1, 2, 3])[0] == 200
        assert IN_LOOP not in ran_in[-1]
        assert ask(server, [1, 2, 3])[0] == 200
        assert IN_LOOP in ran_in[-1]
        padded = json.dumps({"instances": [1]}) + " " * 5000
        assert request(server, "POST", "/v1/models/m:predict", padded)[0] == 200
        assert IN_LOOP not in ran_in[-1]
        monkeypatch.setattr(pace, "_SHORT", -1)
        for where in (True, False):
            assert ask(server, [1])[0] == 200
            assert (ran_in[-1] == IN_LOOP) is where
        page = request(server, "GET", "/monitoring/prometheus/metrics")[1]
    # Asked in the loop and in vain is not asked twice.
    counted = re.findall(r'request_count\{model_name="m",status="OK"\} (\d+)', page)
    assert counted == [str(len(ran_in))]


@pytest.mark.parametrize(
    ("function", "signature", "value"),
    [
        (loop, ROWS, [1.0]),
        (batched, ROWS, [1.0]),
        (echo, tf.TensorSpec([None], tf.string, "s"), ["x"]),
    ],
    ids=["loop", "batch", "string"],
)
def test_what_may_wait_never_runs_in_the_loop(
    ran_in, monkeypatch, tmp_path, function, signature, value
):
    monkeypatch.setattr(pace, "_SHORT", 10_000_000)
    models = {"m": save(tmp_path / "m", function, signature)}
    with LocalServer(models, rest_port=0, grpc_port=0) as server:
        for _ in range(ENOUGH + 3):
            assert ask(server, value)[0] == 200
    assert IN_LOOP not in ran_in
    assert len(ran_in) == ENOUGH + 3


def below_100(x):
    check = tf.debugging.assert_less(x, 100.0, message="x must be below 100")
    with tf.control_dependencies([check]):
        return {"y": tf.identity(x)}


def each_below_100(x):
    return {"y": tf.map_fn(one_below_100, x)}


def one_below_100(x):
    return below_100(x)["y"]


def kept_rendezvous():
    """How many rendezvous of failed runs TensorFlow keeps for ever."""
    library = Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    try:
        vector = ctypes.c_void_p.in_dll(
            ctypes.CDLL(str(library)),
            "_ZN10tensorflow15LocalRendezvous16aborted_rendezs_E",
        )
    except (OSError, ValueError):
        pytest.skip("this TensorFlow does not show its list of rendezvous")
    begin, end = (ctypes.c_size_t * 2).from_address(vector.value)
    return (end - begin) // ctypes.sizeof(ctypes.c_void_p)


@pytest.mark.parametrize("function", [below_100, each_below_100])
def test_refused_requests_leave_nothing_in_tensorflow(tmp_path, function):
    models = {"m": save(tmp_path / "m", function, ROWS)}
    with LocalServer(models, rest_port=0, grpc_port=0) as server:
        for _ in range(3):
            assert ask(server, [1.0])[0] == 200
        kept = kept_rendezvous()
        for _ in range(50):
            assert ask(server, [1000.0])[0] == 400
        # A machine that was busy for a moment may have made one run look long.
        assert kept_rendezvous() - kept < 10


def test_a_deadline_is_given_unless_runs_end_long_before(monkeypatch):
    now = [0]
    monkeypatch.setattr(pace.time, "perf_counter_ns", lambda: now[0])

    def run(runs, milliseconds):
        begin = runs.begin()
        now[0] += milliseconds * 10**6
        runs.end(begin)

    runs = Pace(steady=False)
    assert not runs.ends_before(1e6)  # nothing is known
    run(runs, 10)
    assert runs.ends_before(0.11)
    assert not runs.ends_before(0.09)
    run(runs, 3000)
    assert not runs.ends_before(29)
    for _ in range(300):
        run(runs, 10)
    assert runs.ends_before(29)
    # One that is under way for long tells it before it ends.
    runs.begin()
    now[0] += 3 * 10**9
    assert not runs.ends_before(29)
