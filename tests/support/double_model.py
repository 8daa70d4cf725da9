"""A SavedModel that doubles numbers, with a signature for each kind of failure."""

import tensorflow as tf
from pause import pause

ROWS = tf.TensorSpec([None], tf.float32, "x")


def low_and_high(x):
    """Two classes with the scores 1 - x and x, of numbers [N, 1]."""
    classes = tf.tile(tf.constant([["low", "high"]]), [tf.shape(x)[0], 1])
    return {"classes": classes, "scores": tf.concat([1 - x, x], 1)}


def save_double_model(folder):
    """Save y = 2 x and the other signatures."""
    module = tf.Module()

    @tf.function(input_signature=[ROWS])
    def double(x):
        return {"y": 2 * x}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "s")])
    def echo(s):
        return {"s_bytes": tf.identity(s), "length": tf.strings.length(s)}

    @tf.function(input_signature=[ROWS])
    def below_100(x):
        check = tf.debugging.assert_less(x, 100.0, message="x must be below 100")
        with tf.control_dependencies([check]):
            return {"y": tf.identity(x)}

    @tf.function(input_signature=[tf.TensorSpec([None, 2, 3], tf.uint8, "images")])
    def mean(images):
        count = tf.shape(images)[0]
        check = tf.debugging.assert_positive(count, message="empty batch")
        with tf.control_dependencies([check]):  # [] has no axes 1 and 2 either
            return {"mean": tf.reduce_mean(tf.cast(images, tf.float32), [1, 2])}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
    def regress(inputs):
        feature = tf.io.FixedLenFeature([1], tf.float32)
        return {"outputs": 2 * tf.io.parse_example(inputs, {"x": feature})["x"]}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
    def classify(inputs):
        feature = tf.io.FixedLenFeature([1], tf.float32)
        return low_and_high(tf.io.parse_example(inputs, {"x": feature})["x"])

    signatures = {
        "serving_default": double,
        "echo": echo,
        "below_100": below_100,
        "mean": mean,
        "pause": pause,
        "regress": regress,
        "classify": classify,
    }
    tf.saved_model.save(module, str(folder), signatures=signatures)
    return folder
