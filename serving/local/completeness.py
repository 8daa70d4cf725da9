"""Whether a graph has the tensors that its signatures name.

TensorFlow Serving finds out at the first request, when the old version is gone.
"""

import tensorflow as tf
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, TensorInfo

from .status_errors import FailedPrecondition


def check_signatures(graph: tf.Graph, meta_graph: MetaGraphDef) -> None:
    """Refuses a version that could not answer.

    Args:
        graph: the graph that was loaded.
        meta_graph: the same as saved_model.pb has it.

    Raises:
        FailedPrecondition: a signature names a tensor that is not in the graph.
    """
    for key, signature in meta_graph.signature_def.items():
        for infos in (signature.inputs, signature.outputs):
            for alias, info in infos.items():
                if info.WhichOneof("encoding") == "name" and not _is_in(graph, info):
                    raise FailedPrecondition(
                        f"signature {key}: the graph has no tensor {info.name}, "
                        f"which {alias} should be"
                    )


def _is_in(graph: tf.Graph, info: TensorInfo) -> bool:
    try:
        graph.as_graph_element(info.name)
    except (KeyError, ValueError):
        return False
    return True
