"""TensorBoard's event files, read back."""

import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read_events(folder):
    """Tag -> {step: value}; the steps of a tag are distinct."""
    events = EventAccumulator(str(folder), {"tensors": 0})
    events.Reload()
    tags = {}
    for tag in events.Tags()["tensors"]:
        found = [(e.step, tf.make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)]
        tags[tag] = dict(found)
        assert len(tags[tag]) == len(found), f"{tag} has a step twice"
    return tags
