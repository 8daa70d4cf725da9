"""Runs SavedModels as a server does, and creates inputs for them."""

import numpy as np
import tensorflow as tf


class SavedModel:
    """A SavedModel in a `tf.compat.v1.Session`.

    `run` uses the C interface, as TensorFlow Serving does: Session.run in Python would
    check shapes before the graph does.
    """

    def __init__(self, folder):
        self.folder = folder
        graph = tf.Graph()
        self.session = tf.compat.v1.Session(graph=graph)
        with graph.as_default():
            loaded = tf.compat.v1.saved_model.load(self.session, ["serve"], str(folder))
        self.session._extend_graph()
        self.graph_def = loaded.graph_def
        self.signatures = {
            name: signature
            for name, signature in loaded.signature_def.items()
            if not name.startswith("__")  # the initialization
        }

    def run(self, name, array):
        """Compute the outputs of a signature with one input."""
        signature = self.signatures[name]
        [given] = signature.inputs.values()
        outputs = {alias: info.name for alias, info in signature.outputs.items()}
        values = self.session._call_tf_sessionrun(
            None,
            {self._place(given.name): array},
            [self._place(output) for output in outputs.values()],
            [],
            None,
        )
        return dict(zip(outputs, values, strict=True))

    def _place(self, name):
        return self.session.graph.get_tensor_by_name(name)._as_tf_output()

    def nodes(self, operation):
        """Find all nodes of an operation, also in functions."""
        functions = self.graph_def.library.function
        nodes = [*self.graph_def.node, *(n for f in functions for n in f.node_def)]
        return [node for node in nodes if node.op == operation]

    def close(self):
        self.session.close()


def strings(values):
    """Create a string input."""
    return np.array(values, object)


def pictures(channels=3, count=3, size=(22, 14)):
    random = np.random.default_rng(1)
    return random.integers(0, 256, (count, *size, channels)).astype("uint8")


def png_files(images):
    return strings([tf.io.encode_png(image).numpy() for image in images])


def examples(files):
    def example(data):
        feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[data]))
        features = tf.train.Features(feature={"image/encoded": feature})
        return tf.train.Example(features=features).SerializeToString()

    return strings([example(data) for data in files])
