"""The operations of a SavedModel's signatures, and what each device would run."""

import tensorflow as tf
from tensorflow.python.saved_model import loader_impl

LOOPS = ("While", "StatelessWhile")
BRANCHES = {"CPU": 0, "GPU": 1}


def graph_of(folder):
    """The graph of a SavedModel, with its functions."""
    return loader_impl.parse_saved_model(str(folder)).meta_graphs[0].graph_def


def with_branches_of(folder, device):
    """Rewrite a SavedModel as if each operation were placed on a device.

    Every `DeviceIndex` becomes what it is there.
    """
    saved = loader_impl.parse_saved_model(str(folder))
    graph = saved.meta_graphs[0].graph_def
    index = tf.make_tensor_proto(BRANCHES[device], tf.int32)
    for nodes in (graph.node, *(f.node_def for f in graph.library.function)):
        for name in [node.name for node in nodes if node.op == "DeviceIndex"]:
            for node in nodes:
                for i, each in enumerate(node.input):
                    if each == f"{name}:index:0":
                        node.input[i] = f"{name}:output:0"
                if node.name == name:
                    node.op = "Const"
                    node.attr.clear()
                    node.attr["value"].tensor.CopyFrom(index)
                    node.attr["dtype"].type = index.dtype
    (folder / "saved_model.pb").write_bytes(saved.SerializeToString())


def operations(graph, signature, device="CPU", start="", skipped=()):
    """Walk through the operations of a signature that a device can reach.

    Args:
        graph: From `graph_of`.
        signature: Its name.
        device: Whose branch is taken where the device decides.
        start: The operation that the walk starts inside of, at any depth; by default
            the signature.
        skipped: Operations that the walk does not enter.

    Yields:
        Each operation and its place: its own device, else that of the call or loop that
        it is in, as TensorFlow places it.
    """
    functions = {each.signature.name: each for each in graph.library.function}
    [root] = (n for n in functions if n.startswith(f"__inference_{signature}_"))

    def walk(name, place, entered):
        nodes = functions[name].node_def
        indices = {node.name for node in nodes if node.op == "DeviceIndex"}
        for node in nodes:
            here = node.device or place
            if entered:
                yield node, here
            if node.op in skipped:
                continue
            called = _called(node)
            if node.input and node.input[0].partition(":")[0] in indices:
                called = [called[BRANCHES[device]]]
            for each in called:
                yield from walk(each, here, entered or node.op == start)

    return walk(root, "", not start)


def _called(node):
    values = [node.attr[key] for key in sorted(node.attr)]
    return [
        function.name
        for value in values
        for function in (*value.list.func, value.func)
        if function.name
    ]
