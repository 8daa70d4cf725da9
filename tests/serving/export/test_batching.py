"""Batching: concurrent requests share batches, and fail independently."""

import concurrent.futures
import threading

import numpy as np
import pytest
import tensorflow as tf
from few_formats import few_formats
from saved_models import SavedModel, examples, pictures, png_files

from serving import batching_parameters
from serving.export import signatures
from serving.export.batching import batched, write_parameters
from serving.export.options import ExportOptions

LONG = 300_000_000  # microseconds: a batch that does not fill up would be noticed
ROWS = tf.TensorSpec([None], tf.float32)
FIVE = ("serving_default", "serve_images", "serve_pixels", "embed", "classify")


def at_once(*calls):
    """Make concurrent calls; return their results or exceptions."""

    def outcome(call):
        try:
            return call()
        except tf.errors.OpError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(outcome, calls))


def with_size(rows):
    """Each row unchanged, and the size of its batch."""
    size = tf.cast(tf.fill(tf.shape(rows), tf.size(rows)), tf.float32)
    return {"row": rows, "size": size}


def graph_function(function, **options):
    run = batched(function, ROWS, ExportOptions(**options))
    return tf.function(run, input_signature=[ROWS])


def test_concurrent_calls_share_a_batch_and_get_their_own_rows():
    run = graph_function(with_size, max_batch_size=5, batch_timeout_micros=LONG)
    one, two, other = at_once(
        lambda: run([1.0, 2.0]), lambda: run([3.0]), lambda: run([4.0, 5.0])
    )
    assert [value["row"].numpy().tolist() for value in (one, two, other)] == [
        [1, 2],
        [3],
        [4, 5],
    ]
    sizes = [*one["size"].numpy(), *two["size"].numpy(), *other["size"].numpy()]
    assert sizes == [5] * 5


def test_a_batch_is_padded_to_a_power_of_two():
    run = graph_function(with_size, max_batch_size=8, batch_timeout_micros=0)
    for rows, size in ((1, 1), (2, 2), (3, 4), (5, 8)):
        values = run(np.arange(rows, dtype="float32"))
        assert values["size"].numpy().tolist() == [size] * rows
        assert values["row"].numpy().tolist() == list(range(rows))


def test_a_large_request_is_split():
    run = graph_function(with_size, max_batch_size=4, batch_timeout_micros=0)
    values = run(np.arange(64, dtype="float32"))
    assert values["row"].numpy().tolist() == list(range(64))
    assert set(values["size"].numpy()) == {4}


def test_two_models_in_one_process_do_not_share_a_queue():
    """Their rows would run through whichever came last."""
    options = {"max_batch_size": 2, "batch_timeout_micros": 300_000}
    runs = [
        graph_function(lambda rows, n=n: {"y": rows * n}, **options) for n in (2.0, 3.0)
    ]
    for _ in range(3):
        two, three = at_once(*[lambda run=run: run([1.0])["y"] for run in runs])
        assert (two, three) == (2, 3)


def test_a_full_queue_rejects_requests_as_unavailable():
    started, go_on = threading.Event(), threading.Event()

    def wait(rows):
        started.set()
        assert go_on.wait(30)
        return rows

    run = graph_function(
        lambda rows: {"y": tf.numpy_function(wait, [rows], tf.float32)},
        max_batch_size=1,
        batch_timeout_micros=0,
        num_batch_threads=1,
        max_enqueued_batches=1,
    )
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        first = threads.submit(run, [1.0])
        assert started.wait(30)
        # One batch runs and one may wait. Which of three gets that place is open.
        others = [threads.submit(run, [float(n)]) for n in (2, 3, 4)]
        done, _ = concurrent.futures.wait(
            others, 30, return_when=concurrent.futures.FIRST_EXCEPTION
        )
        go_on.set()
        refused = done.pop().exception(30)
        assert first.result(30)["y"] == 1
    assert isinstance(refused, tf.errors.UnavailableError)
    assert "queue to which this task was submitted is full" in refused.message


class SizeBackbone(tf.Module):
    """A backbone whose embedding is the batch size, which determines its scores too.

    Rows whose first pixel is above 1 have non-finite outputs.
    """

    def __call__(self, pixel_values):
        first = pixel_values[:, 0, 0, 0]
        size = tf.cast(tf.fill(tf.shape(first), tf.size(first)), tf.float32)
        size = tf.where(first > 1, np.nan, size)
        logits = tf.stack([tf.math.log(size), tf.zeros_like(size)], axis=1)
        return {"logits": logits, "embedding": size[:, None]}


@pytest.fixture
def size_model(tiny_vit, tmp_path, monkeypatch, only):
    """Exports a model around `SizeBackbone`; gives it in a session."""
    monkeypatch.setattr(signatures, "make_backbone", lambda *_: SizeBackbone())

    def export(*names, **options):
        only(*names)
        model = tiny_vit(classes=2, depth=1)
        with few_formats():
            signatures.save(model, tmp_path / "1", ExportOptions(**options))
        return SavedModel(tmp_path / "1")

    return export


def batch_size(answer):
    """The size of the batch that an answer of any signature was in."""
    if "embedding" in answer:
        return round(float(answer["embedding"][0, 0]))
    scores = answer.get("probabilities", answer.get("scores"))[0]
    return round(float(max(scores) / min(scores)))


def test_signatures_share_a_queue_of_images(size_model):
    served = size_model(*FIVE, max_batch_size=4, batch_timeout_micros=LONG)
    images = pictures(3, 1)
    files = png_files(images)
    answers = at_once(
        lambda: served.run("serving_default", files),
        lambda: served.run("serve_images", images),
        lambda: served.run("embed", files),
        lambda: served.run("classify", examples(files)),
    )
    assert [batch_size(answer) for answer in answers] == [4] * 4
    queues = {}
    for node in served.nodes("BatchFunction"):
        [dtype] = node.attr["Tin"].list.type
        queues.setdefault(tf.as_dtype(dtype), []).append(node.attr["shared_name"].s)
    assert {dtype: len(names) for dtype, names in queues.items()} == {
        tf.uint8: 4,
        tf.float32: 1,  # of normalized pixels
    }
    assert [len(set(names)) for names in queues.values()] == [1, 1]


def test_a_non_finite_answer_fails_its_own_request_only(size_model):
    served = size_model("serve_pixels", max_batch_size=3, batch_timeout_micros=LONG)
    good = np.zeros((1, 22, 14, 3), "float32")
    one, bad, other = at_once(
        lambda: served.run("serve_pixels", good),
        lambda: served.run("serve_pixels", good + 2),
        lambda: served.run("serve_pixels", good),
    )
    assert isinstance(bad, tf.errors.InvalidArgumentError)
    assert "the request itself is valid" in bad.message
    assert batch_size(one) == batch_size(other) == 3


def test_refused_requests_do_not_enter_the_queue(size_model):
    """An empty batch is answered, and the others are a full batch without it."""
    served = size_model("embed", max_batch_size=2, batch_timeout_micros=LONG)
    good = png_files(pictures(3, 1))
    answers = at_once(
        lambda: served.run("embed", good),
        lambda: served.run("embed", good[:0]),
        lambda: served.run("embed", np.array([b"no image"], object)),
        lambda: served.run("embed", good),
    )
    refused = [isinstance(a, tf.errors.InvalidArgumentError) for a in answers]
    assert refused == [False, True, True, False]
    assert batch_size(answers[0]) == batch_size(answers[3]) == 2


@pytest.mark.parametrize("batching", ["none", "server"])
def test_without_batching_in_the_graph_each_request_runs_alone(size_model, batching):
    served = size_model("serve_images", batching=batching)
    assert not served.nodes("BatchFunction")
    images = pictures(3, 3)
    assert batch_size(served.run("serve_images", images)) == 3


def test_the_queue_has_the_limits_and_timeout_of_the_options(size_model, tmp_path):
    served = size_model(
        "serve_pixels",
        max_batch_size=6,
        batch_timeout_micros=1234,
        num_batch_threads=3,
        max_enqueued_batches=77,
        max_images=50,
    )
    [node] = served.nodes("BatchFunction")
    assert node.attr["batch_timeout_micros"].i == 1234
    assert node.attr["num_batch_threads"].i == 3
    assert node.attr["max_enqueued_batches"].i == 77
    assert node.attr["max_batch_size"].i == 50
    assert list(node.attr["allowed_batch_sizes"].list.i) == [1, 2, 4, 6]
    parameters = tmp_path / "1" / "batching_params.pbtxt"
    assert not parameters.exists(), "the server's alone"


def test_batched_answers_equal_those_of_single_requests(tiny_vit, tmp_path, only):
    only("serve_images")
    model = tiny_vit(depth=1)
    options = ExportOptions(max_batch_size=8, batch_timeout_micros=50_000)
    signatures.save(model, tmp_path / "1", options)
    served = SavedModel(tmp_path / "1")
    images = pictures(3, 13)
    alone = [served.run("serve_images", image[None])["scores"] for image in images]
    together = at_once(
        *[lambda i=i: served.run("serve_images", i[None])["scores"] for i in images]
    )
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6)
    whole = served.run("serve_images", images)["scores"]
    np.testing.assert_allclose(whole, np.concatenate(alone), rtol=0, atol=1e-6)


def test_server_batching_writes_its_parameters(size_model, tmp_path):
    size_model("serve_pixels", batching="server", max_batch_size=6, max_images=20)
    written = batching_parameters.read(tmp_path / "1" / "batching_params.pbtxt")
    assert written.num_batch_threads.value == 2
    assert batching_parameters.queue_of(written) == batching_parameters.Queue(
        # TensorFlow Serving wants max_batch_size last, though no batch is as large.
        allowed_batch_sizes=(1, 2, 4, 6, 20),
        max_batch_size=20,
        batch_timeout_micros=2000,
        max_enqueued_batches=128,
        enable_large_batch_splitting=True,
        max_execution_batch_size=6,
    )


@pytest.mark.parametrize("max_batch_size", [1, 2, 3, 8, 9, 64])
@pytest.mark.parametrize("more", [0, 1, 55, 2**31 - 65])
def test_batching_parameters_are_valid_for_any_options(tmp_path, max_batch_size, more):
    options = ExportOptions(
        batching="server",
        max_batch_size=max_batch_size,
        max_images=max_batch_size + more,
        batch_timeout_micros=0,
        max_enqueued_batches=1,
    )
    write_parameters(tmp_path, options)
    written = batching_parameters.read(tmp_path / "batching_params.pbtxt")
    sizes = list(written.allowed_batch_sizes)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == written.max_batch_size.value == options.max_images
    assert set(options.allowed_batch_sizes) <= set(sizes)
    assert written.max_execution_batch_size.value == max_batch_size
    batching_parameters.queue_of(written)


@pytest.mark.parametrize(
    "wrong",
    [
        {"top_k": 0},
        {"top_k": 2.5},
        {"max_batch_size": True},
        {"max_images": 2**31},
        {"batch_timeout_micros": -1},
        {"batching": "always"},
        {"precision": "float16"},
    ],
)
def test_invalid_options_are_refused(wrong):
    [(name, value)] = wrong.items()
    with pytest.raises(ValueError, match=f"`{name}` must .*{name}={value!r}"):
        ExportOptions(**wrong)


def test_a_servers_batch_must_fit_into_a_request():
    with pytest.raises(ValueError, match="max_images=4, max_batch_size=8"):
        ExportOptions(batching="server", max_images=4)
    assert ExportOptions(batching="graph", max_images=4).max_images == 4
    assert ExportOptions(batch_timeout_micros=0).batch_timeout_micros == 0


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])],
)
def test_allowed_batch_sizes_are_powers_of_two_and_the_largest(largest, sizes):
    assert ExportOptions(max_batch_size=largest).allowed_batch_sizes == sizes
