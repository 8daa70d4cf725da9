"""A SavedModel with a signature for each type and shape that the protocol carries."""

import tensorflow as tf

# What JSON can carry in; `float` is the default signature's.
ECHOED = (
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint32",
    "uint64",
    "bool",
    "string",
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
    serialized = spec("string", [None], "inputs")

    def feature(inputs):
        needed = tf.io.FixedLenFeature([1], tf.float32)
        return tf.io.parse_example(inputs, {"x": needed})["x"]

    @tf.function(input_signature=[serialized])
    def regress(inputs):
        return {"outputs": 2 * feature(inputs)}

    @tf.function(input_signature=[serialized])
    def classify(inputs):
        x = feature(inputs)
        classes = tf.tile(tf.constant([["low", "high"]]), [tf.shape(x)[0], 1])
        return {"classes": classes, "scores": tf.concat([1 - x, x], 1)}

    @tf.function(input_signature=[serialized])
    def double_scores(inputs):
        return {"scores": tf.cast(feature(inputs), tf.float64)}

    @tf.function(input_signature=[serialized])
    def number_classes(inputs):
        return {"classes": feature(inputs)}

    @tf.function(input_signature=[serialized])
    def double_outputs(inputs):
        return {"outputs": tf.cast(feature(inputs), tf.float64)}

    @tf.function(input_signature=[serialized])
    def one_score(inputs):
        return {"scores": feature(inputs)[:1]}

    @tf.function(input_signature=[serialized])
    def flat_scores(inputs):
        return {"scores": feature(inputs)[:, 0]}

    return {
        "regress": regress,
        "classify": classify,
        "double_scores": double_scores,
        "number_classes": number_classes,
        "double_outputs": double_outputs,
        "one_score": one_score,
        "flat_scores": flat_scores,
    }


def _half_out():
    @tf.function(input_signature=[spec("float32", [None], "x")])
    def half_out(x):
        return {"y": tf.cast(x, tf.float16)}

    return {"half_out": half_out}
