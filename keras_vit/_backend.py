"""Check on import that Keras runs on TensorFlow or JAX."""

import sys

SUPPORTED = ("tensorflow", "jax")


def _check() -> None:
    """Raise ImportError for another backend, installed or not."""
    failure = None
    try:
        import keras  # noqa: F401
    except (ImportError, ValueError) as error:
        failure = error
    # Left by a Keras that failed, too: it reads the environment variable and its
    # configuration file before it imports the backend.
    config = sys.modules.get("keras.src.backend.config")
    backend = config.backend() if config is not None else None
    if config is None and getattr(failure, "name", None) == "torch":
        backend = "torch"  # for which Keras imports PyTorch while it reads these
    if backend is not None and backend not in SUPPORTED:
        # With the package's own name, `python -m keras_vit` prints no traceback.
        raise ImportError(
            "Keras's backend must be one of "
            f"{', '.join(map(repr, SUPPORTED))} for keras_vit: set the environment "
            'variable KERAS_BACKEND, or "backend" in ~/.keras/keras.json. '
            f"Received: backend={backend!r}",
            name="keras_vit",
        ) from None
    if failure is not None:
        raise failure


_check()
