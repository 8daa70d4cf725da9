"""Exports that decode JPEG and PNG alone, for tests that are not about formats."""

import contextlib
from unittest import mock

from keras_vit.image_files import formats
from serving.export.signatures import ServingGraph


@contextlib.contextmanager
def few_formats():
    """What is exported here decodes JPEG and PNG alone.

    The other formats are half of the time of tracing an export, and of optimizing each
    signature when it first runs.
    """
    decode = ServingGraph._decode
    kept = {name: formats._SIGNATURES[name] for name in ("jpeg", "png")}

    def decode_kept(graph, files, name):
        with mock.patch.object(formats, "_SIGNATURES", kept):
            return decode(graph, files, name)

    with mock.patch.object(ServingGraph, "_decode", decode_kept):
        yield
