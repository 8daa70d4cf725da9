"""Graphs that decode JPEG and PNG alone, for tests that are not about formats."""

from unittest import mock

from keras_vit.image_files import formats


def few_formats():
    """A context: what is traced or exported there decodes JPEG and PNG alone.

    The other formats are half of the time of tracing an export, and of optimizing each
    of its signatures when it first runs.
    """
    kept = {name: formats._SIGNATURES[name] for name in ("jpeg", "png")}
    return mock.patch.object(formats, "_SIGNATURES", kept)
