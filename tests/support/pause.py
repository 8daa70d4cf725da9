"""An operation that takes a given time and leaves the processor to others."""

import tensorflow as tf
from tensorflow.python.data.experimental.ops import testing


@tf.function(input_signature=[tf.TensorSpec([], tf.int64, "milliseconds")])
def pause(milliseconds):
    """Wait that long, less if the run is cancelled: {"waited": milliseconds}.

    Concurrent runs in one session wait one after the other.
    """
    asleep = tf.data.Dataset.from_tensors(milliseconds).apply(
        testing.sleep(1000 * milliseconds)
    )
    # `take` ends the data set, whose own end would take as long again.
    waited = asleep.take(1).reduce(tf.constant(0, tf.int64), lambda _, value: value)
    return {"waited": waited}
