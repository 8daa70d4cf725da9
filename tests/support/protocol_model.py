"""A SavedModel with a signature for each type and shape that the protocol carries."""

import tensorflow as tf
from double_model import low_and_high

# What JSON can carry in; `float` is the default signature's.
ECHOED = (
    *("float64", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"),
    *("bool", "string"),
)
NOT_IN_JSON = ("uint16", "half")


def spec(dtype, shape, name):
    return tf.TensorSpec(shape, tf.as_dtype(dtype), name)


def save_protocol_model(folder, version):
    """Save the model; the default signature computes 3 x - version."""
    module = tf.Module()
    signatures = {
        **{f"echo_{name}": _echo(name) for name in (*ECHOED, *NOT_IN_JSON)},
        **_several(),
        **_of_examples(),
        **_half_out(),
    }

    @tf.function(input_signature=[spec("float32", None, "x")])
    def default(x):
        return {"y": 3 * x - version}

    signatures["serving_default"] = default
    tf.saved_model.save(module, str(folder / str(version)), signatures=signatures)
    return folder


def _echo(name):
    @tf.function(input_signature=[spec(name, None, "x")])
    def echo(x):
        return {"y": tf.identity(x)}

    return echo


def _several():
    @tf.function(
        input_signature=[
            spec("int64", [None], "number"),
            spec("string", [None], "text"),
            spec("float32", [None, None], "row"),
        ]
    )
    def several(number, text, row):
        return {
            "number": 2 * number,
            "text_bytes": tf.identity(text),
            "total": tf.reduce_sum(row, 1),
        }

    ten = tf.constant(10.0)

    def optional(x, offset=ten):
        """The SignatureDef holds the default of `offset`."""
        return {"y": x + offset}

    of_rows, scalar = spec("float32", [None], "x"), spec("float32", [], "offset")
    with_default = tf.function(optional, input_signature=[of_rows, scalar])
    return {"several": several, "optional": with_default}


def _of_examples():
    needed = {"x": tf.io.FixedLenFeature([1], tf.float32)}

    def of_feature(function):
        """A signature that computes this of the feature `x` [N, 1]."""
        return tf.function(
            lambda inputs: function(tf.io.parse_example(inputs, needed)["x"]),
            input_signature=[spec("string", [None], "inputs")],
        )

    functions = {
        "regress": lambda x: {"outputs": 2 * x},
        "classify": low_and_high,
        "double_scores": lambda x: {"scores": tf.cast(x, tf.float64)},
        "number_classes": lambda x: {"classes": x},
        "double_outputs": lambda x: {"outputs": tf.cast(x, tf.float64)},
        "one_score": lambda x: {"scores": x[:1]},
        "flat_scores": lambda x: {"scores": x[:, 0]},
    }
    return {name: of_feature(function) for name, function in functions.items()}


def _half_out():
    @tf.function(input_signature=[spec("float32", [None], "x")])
    def half_out(x):
        return {"y": tf.cast(x, tf.float16)}

    return {"half_out": half_out}
