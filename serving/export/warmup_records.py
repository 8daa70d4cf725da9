"""Warm-up records: requests that a server runs before a version is ready.

TensorFlow Serving refuses a version if one record fails, so `verify` runs them all. The
largest batch covers the memory of smaller ones, and one image the part of the graph
that belongs to each other signature; with every signature at every batch size, ViT-B/16
took 67 s to load on two cores.
"""

import itertools
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from keras_vit.common.file_names import WARMUP_REQUESTS

from .verification_inputs import example

MAX_RECORDS = 1000  # TensorFlow Serving refuses more
MAIN = "serving_default"


Request = tuple[str, int]


def requests(
    signatures: Iterable[str], batch_sizes: Sequence[int], kind: str
) -> list[Request]:
    """List the signature and the number of images of each record."""
    if kind == "full":
        return [(name, size) for size in batch_sizes for name in signatures]
    return [(name, batch_sizes[-1] if name == MAIN else 1) for name in signatures]


def write(
    folder: pathlib.Path, records: Iterable[Request], signatures: Mapping[str, Any]
) -> None:
    """Write the warm-up records of a version, the first 1000."""
    import tensorflow as tf

    path = folder / WARMUP_REQUESTS
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for name, size in itertools.islice(records, MAX_RECORDS):
            log = _log(name, signatures[name]["inputs"], size)
            writer.write(log.SerializeToString())


def _log(signature: str, inputs: Mapping[str, Any], size: int) -> Any:
    """The PredictionLog of one request of `size` images."""
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    log = prediction_log_pb2.PredictionLog()
    if signature == "classify":
        request = log.classify_log.request
        image = tf.train.Example.FromString(example(_png()))
        request.input.example_list.examples.extend([image] * size)
    else:
        request = log.predict_log.request
        for name, spec in inputs.items():
            # A single value is broadcast, which keeps the file small.
            value = [_png()] * size if spec["dtype"] == "string" else 0
            shape = [size, *spec["shape"][1:]]
            tensor = tf.make_tensor_proto(value, spec["dtype"], shape)
            request.inputs[name].CopyFrom(tensor)
    request.model_spec.signature_name = signature
    return log


def read(folder: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read the warm-up records of a version: signature names and inputs."""
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    path = str(folder / WARMUP_REQUESTS)
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        if log.HasField("classify_log"):
            request = log.classify_log.request
            examples = request.input.example_list.examples
            inputs = {"inputs": [one.SerializeToString() for one in examples]}
        else:
            request = log.predict_log.request
            tensors = request.inputs.items()
            inputs = {name: tf.make_ndarray(tensor) for name, tensor in tensors}
        yield request.model_spec.signature_name, inputs


def _png() -> bytes:
    """A small valid image: 8x8 black pixels."""
    import tensorflow as tf

    png: bytes = tf.io.encode_png(tf.zeros([8, 8, 1], tf.uint8)).numpy()
    return png
