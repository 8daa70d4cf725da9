"""A tiny Vision Transformer whose sizes all differ."""

import numpy as np

TINY = {
    "image_size": (22, 14),
    "patch_size": 2,
    "width": 15,
    "depth": 2,
    "mlp_dim": 23,
    "heads": 5,
    "classes": 7,
}

NO_QKV_BIASES = {"query_bias": False, "key_bias": False, "value_bias": False}


def numpy(tensor):
    """The values of a tensor of any backend."""
    import keras

    return keras.ops.convert_to_numpy(tensor)


def small(**kwargs):
    """A tiny model with its initial weights."""
    import keras_vit

    return keras_vit.VisionTransformer(**{**TINY, **kwargs})


def small_classifier(*layers, size=(22, 14), name=None, **kwargs):
    """An `ImageClassifier` of three classes around these layers."""
    import keras

    import keras_vit

    images = keras.Input((*size, 3))
    backbone = keras.Sequential([images, *layers], name=name)
    return keras_vit.ImageClassifier(backbone=backbone, **{"classes": 3, **kwargs})


def build_vit(seed=11, **kwargs):
    """A tiny model with random weights, biases included."""
    import keras

    keras.utils.set_random_seed(seed)
    return with_random_weights(small(**kwargs), seed)


def with_random_weights(model, seed):
    random = np.random.default_rng(seed)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(random.normal(scale=0.3, size=weight.shape))
    return model


class Pool:
    """Models of former tests, which get new weights: building takes five times as long.

    A test that changes more than weights must build its own.
    """

    def __init__(self):
        self._idle, self._taken = {}, []

    def take(self, seed=11, **kwargs):
        """`build_vit`, or a model of the same arguments that no test has."""
        key = repr(sorted(kwargs.items()))
        idle = self._idle.setdefault(key, [])
        model = with_random_weights(idle.pop(), seed) if idle else None
        model = model or build_vit(seed, **kwargs)
        self._taken.append((key, model))
        return model

    def give_back(self):
        """End a test: its models are for others."""
        for key, model in self._taken:
            self._idle[key].append(model)
        self._taken.clear()
