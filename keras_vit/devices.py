"""The kind of device that Keras computes on."""

import keras


def on_tensorflow_cpu() -> bool:
    """Whether Keras runs on TensorFlow, and TensorFlow sees no accelerator."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    devices = tf.config.list_logical_devices()
    return not any(device.device_type in ("GPU", "TPU") for device in devices)


def jax_platform() -> str | None:
    """`"cpu"`, `"gpu"` or `"tpu"`; `None` where Keras does not run on JAX."""
    if keras.backend.backend() != "jax":
        return None
    import jax

    return jax.default_backend()
