"""What the models share: config, classifier, the grammar of keras.applications."""

import functools
import numbers
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras

from keras_vit import pixel_range
from keras_vit.specs import image_size_pair


def _looking(name: str) -> Callable[..., Any]:
    """A method of `keras.Model` that looks at the range of its images before."""

    @functools.wraps(getattr(keras.Model, name))
    def method(self, *args, **kwargs):
        self._look_at(*args[:1], **kwargs)
        return getattr(super(ImageModel, self), name)(*args, **kwargs)

    return method


class ImageModel(keras.Model):
    """A functional model that its constructor's arguments describe completely.

    A subclass passes them to `describe` once the functional model is there, and every
    argument becomes an attribute and a part of the config.

    A warning comes once where the range of the images shows that they are pixels from 0
    to 255 and should be normalised, or the other way round. No graph changes by that.
    """

    preprocessing: Any
    include_preprocessing = True
    # Whether the images are normalised where there is no `preprocessing`.
    _reads_normalised = True
    _range_is_clear = False

    def __call__(self, *args, **kwargs):
        """Calls the model on images; see `call`."""
        self._look_at(*args[:1])
        return super().__call__(*args, **kwargs)

    fit = _looking("fit")
    evaluate = _looking("evaluate")
    predict = _looking("predict")

    def _look_at(self, x=None, **_) -> None:
        raw = self.reads_raw_pixels
        if self._range_is_clear or not (raw or self._reads_normalised):
            return
        problem = pixel_range.problem(x, raw)
        self._range_is_clear = problem is not None
        if problem:
            warnings.warn(f"{self.name}: {problem}", stacklevel=3)

    def describe(self, arguments: Mapping[str, Any], policy) -> None:
        """Keeps the constructor's arguments, for `get_config` and as attributes."""
        self.dtype_policy = policy
        for argument, value in arguments.items():
            setattr(self, argument, value)
        self._argument_names = tuple(arguments)

    @classmethod
    def from_variant(
        cls,
        variant: str,
        weights: str | os.PathLike[str] | None = None,
        resample: str = "google",
        grid: tuple[int, int] | None = None,
        **kwargs,
    ):
        """Builds a published size.

        Args:
            variant: Its name, such as `"B/16"`, `"R50+B/16"` or `"R50x1"`.
            weights: A name of `keras_vit.list_weights(variant)`, `"hf://owner/name"`,
                the path of a checkpoint of any family or of a `.weights.h5` file, or
                `None` for random weights. They decide what `kwargs` leave open.
            resample: How positions go to another grid; see `load_checkpoint`.
            grid: (h, w) of the positions in a file that does not state it; see there.
            **kwargs: The other arguments of the class.

        Raises:
            ValueError: There is no such size, or weights that do not fit.
        """
        if weights is not None:
            from keras_vit.weights.build import build_variant

            return build_variant(cls, variant, weights, kwargs, resample, grid)
        return cls(**{**cls.variant_arguments(variant), **kwargs})

    @classmethod
    def variant_arguments(cls, variant: str) -> dict[str, Any]:
        """The arguments that make a published size; ValueError for no such size."""
        raise NotImplementedError

    @property
    def reads_raw_pixels(self) -> bool:
        """Whether the inputs are pixels from 0 to 255, which the model normalises."""
        return self.preprocessing is not None and self.include_preprocessing

    def get_config(self):
        """The constructor's arguments, serialised."""
        config = {name: getattr(self, name) for name in self._argument_names}
        if self.class_names is not None:
            config["class_names"] = list(self.class_names)
        config["preprocessing"] = keras.saving.serialize_keras_object(
            self.preprocessing
        )
        config["dtype"] = keras.saving.serialize_keras_object(self.dtype_policy)
        frozen = [layer.name for layer in self.layers if not layer.trainable]
        return {**config, "name": self.name, "frozen_layers": frozen}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Rebuilds the model from `get_config()`."""
        config = dict(config)
        for key in ("preprocessing", "dtype"):
            config[key] = keras.saving.deserialize_keras_object(
                config[key], custom_objects=custom_objects
            )
        frozen = config.pop("frozen_layers")
        model = cls(**config)
        for name in frozen:
            model.get_layer(name).trainable = False
        return model


def check_counts(arguments: dict[str, Any], names: Iterable[str]) -> None:
    """Makes these arguments plain integers; ValueError for one below 1."""
    for name in names:
        value = arguments[name]
        if not isinstance(value, numbers.Integral) or value < 1:
            raise ValueError(
                f"`{name}` must be an integer of at least 1. Received: {name}={value!r}"
            )
        arguments[name] = int(value)  # NumPy's integers are no JSON


def check_rates(arguments: Mapping[str, Any], names: Iterable[str]) -> None:
    """ValueError for an argument outside [0, 1)."""
    for name in names:
        if not 0.0 <= arguments[name] < 1.0:
            raise ValueError(
                f"`{name}` must be in [0, 1). Received: {name}={arguments[name]}"
            )


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """ValueError for a value that is none of the choices."""
    if value not in choices:
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(repr, choices))}. "
            f"Received: {name}={value!r}"
        )


def check_model(model: Any) -> None:
    """TypeError for a model of another kind, such as one around one of ours."""
    if not isinstance(model, ImageModel) or hasattr(model, "backbone"):
        raise TypeError(
            "`model` must be a VisionTransformer or a ResNet of keras_vit, such as the "
            f"`backbone` of an ImageClassifier. Received: model={model!r}"
        )


def check_labels(
    *, image_size, channels, classes, class_names, preprocessing, **_
) -> None:
    """ValueError where what surrounds a model does not fit it."""
    if class_names is not None and len(class_names) != classes:
        raise ValueError(
            "`class_names` must have one name for each class. "
            f"Received: {len(class_names)} names, classes={classes}"
        )
    if preprocessing is None:
        return
    for name in ("mean", "std"):
        value = getattr(preprocessing, name)
        if isinstance(value, tuple) and len(value) != channels:
            raise ValueError(
                f"`preprocessing` must have one {name}, or one for each channel. "
                f"Received: preprocessing.{name}={value}, channels={channels}"
            )
    if preprocessing.image_size != image_size:
        raise ValueError(
            "`preprocessing` must produce images of `image_size`. "
            f"Received: preprocessing.image_size={preprocessing.image_size}, "
            f"image_size={image_size}"
        )


def connect_classifier(x, classes, head_bias_init, classifier_activation):
    """The linear classifier on features [B, D], in float32; nothing without classes."""
    if classes is None:
        return x
    return keras.layers.Dense(
        classes,
        activation=classifier_activation,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(head_bias_init),
        dtype="float32",
        name="head",
    )(x)


def application(
    model_class: Any,
    variant: str,
    name: str,
    top: str,
    poolings: Mapping[str | None, str],
) -> Callable[..., Any]:
    """A constructor for one size in the grammar of `keras.applications`.

    Args:
        model_class: Its `from_variant(variant, ...)` builds the model.
        variant: Name of the size, such as `"B/16"`.
        name: Name of the constructor.
        top: The `head` under the classifier.
        poolings: The `head` for each value of `pooling` where there is no classifier.
    """

    def build(
        include_top: bool = True,
        weights: str | os.PathLike[str] | None = None,
        input_shape: tuple[int, int, int] | None = None,
        pooling: str | None = None,
        classes: int | None = None,
        classifier_activation: str | None = "softmax",
        name: str | None = None,
        **kwargs,
    ):
        check_choice("pooling", pooling, tuple(poolings))
        arguments = {"name": name, **kwargs}
        if input_shape is not None:
            if again := sorted({"image_size", "channels"} & kwargs.keys()):
                raise ValueError(
                    "`input_shape` must be alone. "
                    f"Received: input_shape={input_shape}, and {', '.join(again)}"
                )
            if not isinstance(input_shape, Sequence) or len(input_shape) != 3:
                raise ValueError(
                    "`input_shape` must be (height, width, channels). "
                    f"Received: input_shape={input_shape}"
                )
            arguments["image_size"] = image_size_pair((input_shape[0], input_shape[1]))
            arguments["channels"] = input_shape[2]
        if not include_top:
            arguments.setdefault("head", poolings[pooling])
            arguments["classes"] = None
        else:
            arguments["classifier_activation"] = classifier_activation
            if classes is not None:
                arguments["classes"] = classes
            if weights is None:
                arguments.setdefault("head", top)
        model = model_class.from_variant(variant, weights=weights, **arguments)
        if include_top and model.classes is None:
            raise ValueError(
                "`classes` must be given, or include_top=False: these weights have no "
                f"classifier. Received: weights={weights!r}"
            )
        return model

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"""{variant}, as `keras.applications` would have it.

    Args:
        include_top: Whether the classifier is on top.
        weights: A name of `keras_vit.list_weights("{variant}")`, `"hf://owner/name"`,
            the path of a checkpoint of any family or of a `.weights.h5` file, or
            `None` for random weights.
        input_shape: (H, W, C); that of the weights when absent, or (224, 224, 3).
        pooling: Without the top: one of {", ".join(map(repr, poolings))}. `None` gives
            all of the last layer's features, the others one vector [B, D].
        classes: Number of classes: that of the weights when absent, or 1,000. Another
            one than theirs gives a new classifier.
        classifier_activation: Activation of the scores, or `None` for logits.
        name: Name of the model.
        **kwargs: Other arguments of `{model_class.__name__}`; `resample`, how positions
            go to another grid (see `load_checkpoint`).

    Returns:
        A `{model_class.__name__}` that reads pixels in [-1, 1] (`preprocess_input`), or
        pixels from 0 to 255 where `preprocessing` is given.

    Raises:
        ValueError: An argument or weights that do not fit.
    """
    return build
