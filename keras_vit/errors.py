"""Errors of files and models; a wrong argument is a plain ValueError, as in Keras."""


class KerasViTError(ValueError):
    """Base class: a file, or a model, cannot be used."""


class WeightsFileError(KerasViTError):
    """A weights file is missing, damaged or of an unknown format."""


class ImageFileError(KerasViTError):
    """An image file is missing, damaged or of an unknown format."""


class CheckpointError(KerasViTError):
    """A checkpoint does not fit a model, which is unchanged."""


class NotApplicableError(KerasViTError):
    """A model does not have what an analysis shows."""
