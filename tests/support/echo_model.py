"""A SavedModel with the signatures of an export and predictable answers.

The labels of an image are its bytes, its scores depend on their number, its embedding
is the first four of them; images that begin with "bad" are refused.
"""

import tensorflow as tf
from pause import pause

IMAGES = tf.TensorSpec([None], tf.string, "image_bytes")


def guarded(image_bytes):
    good = tf.strings.substr(image_bytes, 0, 3) != b"bad"
    with tf.control_dependencies(
        [tf.debugging.Assert(tf.reduce_all(good), ["no image"])]
    ):
        return tf.identity(image_bytes)


def save(folder):
    """Save the model in a folder."""
    module = tf.Module()

    @tf.function(input_signature=[IMAGES])
    def classify(image_bytes):
        content = guarded(image_bytes)[:, tf.newaxis]
        size = tf.strings.length(content)
        return {
            "classes": tf.concat([content, tf.strings.upper(content)], 1),
            "class_ids": tf.cast(tf.concat([size, size + 1], 1), tf.int64),
            "scores": 1 / tf.cast(tf.concat([size, size + 1], 1), tf.float32),
        }

    @tf.function(input_signature=[IMAGES])
    def embed(image_bytes):
        values = tf.io.decode_raw(guarded(image_bytes), tf.uint8, fixed_length=4)
        return {"embedding": tf.cast(values, tf.float32) / 8}

    @tf.function(input_signature=[IMAGES])
    def attention(image_bytes):
        content = guarded(image_bytes)
        rows = tf.fill([tf.size(content), 2, 3], 1 / 6)
        return {"rollout": rows, "seen_bytes": content}

    tensors = {
        "floats": tf.TensorSpec(None, tf.float32, "floats"),
        "integers": tf.TensorSpec(None, tf.int64, "integers"),
        "bytes": tf.TensorSpec(None, tf.uint8, "bytes"),
        "flags": tf.TensorSpec(None, tf.bool, "flags"),
        "strings_bytes": tf.TensorSpec(None, tf.string, "strings_bytes"),
    }

    @tf.function
    def echo(**inputs):
        return {name: tf.identity(value) for name, value in inputs.items()}

    signatures = {
        "serving_default": classify,
        "embed": embed,
        "attention": attention,
        "echo": echo.get_concrete_function(**tensors),
        "pause": pause,
    }
    tf.saved_model.save(module, str(folder), signatures=signatures)
