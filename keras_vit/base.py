"""The base of all models here: config, classifier, and a check of the pixel range."""

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

import keras

from keras_vit import pixel_range
from keras_vit.checks import (
    check_argument_names,
    check_image_shape,
    check_model_file,
)
from keras_vit.keras_classes import Model
from keras_vit.nested_layers import all_layers, direct_sublayers
from keras_vit.option_rows import rows
from keras_vit.options import ClassifierOptions
from keras_vit.typing import Array, Config, Images, StrPath, Tensor

if TYPE_CHECKING:
    from keras_vit.preprocessing import ImagePreprocessing

Method = TypeVar("Method", bound=Callable[..., Any])


def _with_image_checks(method: Method, always: bool) -> Method:
    """Wrap a method of `keras.Model` so that it checks its images.

    Args:
        always: Whether also after images that fit. Not for what is called for each
            batch, as the values would have to leave the device.
    """

    @functools.wraps(method)
    def checked(self: "ImageModel", x: Any = None, *args: Any, **kwargs: Any) -> Any:
        if "_use_cached_eval_dataset" not in kwargs:  # `fit` has checked these
            x = self._checked(x, always)
        validation = kwargs.get("validation_data")
        if isinstance(validation, (tuple, list)):
            images, *labels = validation
            images = self._checked(images, always, "validation images")
            kwargs["validation_data"] = (images, *labels)
        elif validation is not None:
            kwargs["validation_data"] = self._checked(
                validation, always, "validation images"
            )
        return getattr(super(ImageModel, self), method.__name__)(x, *args, **kwargs)

    return cast(Method, checked)


class ImageModel(Model):
    """A functional model that its constructor's arguments describe completely.

    A subclass's constructor passes its options to `keep_options`, builds the graph from
    the attributes that this sets, and passes inputs and outputs to this class.

    Warns once if the images are pixels from 0 to 255 and the model reads normalized
    ones, or the other way round, and once of validation images. Calls of the model
    are checked until images fit, those of `fit`, `evaluate` and `predict` always. The
    graph is the same with and without.
    """

    options_class: ClassVar[type]
    image_size: tuple[int, int]
    channels: int
    classes: int | None
    class_names: list[str] | None
    classifier_activation: str | None
    include_preprocessing = True
    # Whether images must be normalized where there is no `preprocessing`.
    _reads_normalized = True
    _range_fits = False  # of images that were checked
    _range_warnings: tuple[str, ...] = ()  # what they were about

    if TYPE_CHECKING:
        # An option as the others, but pyright takes an attribute that is an object of
        # Keras for unknown: it looks for `__get__` in Keras's untyped base classes.
        @property
        def preprocessing(self) -> "ImagePreprocessing | None":
            """The layer that normalizes pixels."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse unknown arguments with what was probably meant."""
        check_argument_names(cls, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __init__(
        self, inputs: Images, outputs: Tensor, name: str | None = None
    ) -> None:
        super().__init__(inputs, outputs, name=name)
        self.dtype_policy = self._policy

    def keep_options(self, made: ClassifierOptions) -> None:
        """Make the options attributes, and parts of the config."""
        for name in self._option_names():
            setattr(self, name, getattr(made, name))
        dtype = made.dtype or keras.config.dtype_policy()
        self._policy = keras.dtype_policies.get(dtype)

    def images_input(self) -> keras.KerasTensor:
        """Input [B, H, W, C] of the graph: float32, or float64 if the policy is.

        Keras casts images to it, and its default is the global `floatx`.
        """
        dtype = keras.backend.result_type(self._policy.compute_dtype, "float32")
        shape = (*self.image_size, self.channels)
        return keras.Input(shape, dtype=dtype, name="images")

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Call the model on images; see `call`."""
        self._checked(args[0] if args else kwargs.get("inputs"), always=False)
        return super().__call__(*args, **kwargs)

    fit = _with_image_checks(Model.fit, always=True)
    evaluate = _with_image_checks(Model.evaluate, always=True)
    predict = _with_image_checks(Model.predict, always=True)
    train_on_batch = _with_image_checks(Model.train_on_batch, always=False)
    test_on_batch = _with_image_checks(Model.test_on_batch, always=False)
    predict_on_batch = _with_image_checks(Model.predict_on_batch, always=False)

    def _checked(self, x: Any, always: bool, name: str = "images") -> Any:
        """The same images or batches; checked now, or as the first batch is read."""
        check_image_shape(x, self.input_shape)
        if name in self._range_warnings or (self._range_fits and not always):
            return x
        if not (self.reads_raw_pixels or self._reads_normalized):
            return x
        check = functools.partial(self._check_range, name=name)
        return pixel_range.at_first_batch(x, check)

    def _check_range(self, images: Images, name: str) -> None:
        problem = pixel_range.problem(images, self.reads_raw_pixels, name)
        if problem == "":
            self._range_fits = True
        if problem and name not in self._range_warnings:
            self._range_warnings += (name,)
            # The caller's line, of an array; others are read inside Keras.
            warnings.warn(f"{self.name}: {problem}", stacklevel=5)

    @property
    def options(self) -> Config:
        """The constructor's arguments, but dtype and name."""
        return {name: getattr(self, name) for name in self._option_names()}

    @classmethod
    def _option_names(cls) -> list[str]:
        """All but those that are Keras's own attributes."""
        return [n for n in rows(cls.options_class) if n not in ("dtype", "name")]

    @property
    def reads_raw_pixels(self) -> bool:
        """Whether the inputs are pixels from 0 to 255, which the model normalizes."""
        return self.preprocessing is not None and self.include_preprocessing

    @property
    def pixels(self) -> str | None:
        """The inputs' range: `"raw"` (0 to 255), `"normalized"`, `None` if unknown."""
        if self.reads_raw_pixels:
            return "raw"
        return "normalized" if self._reads_normalized else None

    @property
    def input_pixels(self) -> str:
        """The inputs' range in words, as files, cards and `summary` state it."""
        if self.pixels == "raw":
            return "pixels from 0 to 255"
        if self.pixels is None:
            return "pixels as the backbone reads them, a range that it does not state"
        policy = self.preprocessing
        if policy is None or policy.maps_to_one:
            return "pixels in [-1, 1]"
        return f"pixels normalized by mean={policy.mean}, std={policy.std}"

    def _prepared(self, images: Images) -> Images:
        """The inputs of the graph, as its other layers read them."""
        if self.preprocessing is None or not self.include_preprocessing:
            return images
        return self.preprocessing(images, fitted=True)

    def probabilities(self, outputs: Tensor) -> Array:
        """Probabilities [B, classes] from the model's outputs: softmax of logits."""
        if self.classifier_activation is None:
            outputs = keras.ops.softmax(outputs)
        probabilities: Array = keras.ops.convert_to_numpy(outputs)
        return probabilities

    def summary(
        self,
        *args: Any,
        print_fn: Callable[..., None] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print the layers, as `keras.Model` does, and what the model reads."""
        super().summary(*args, print_fn=print_fn, **kwargs)
        shape = ", ".join(map(str, self.input_shape[1:]))
        (print_fn or print)(f" Input: images [B, {shape}], {self.input_pixels}")

    def save(self, filepath: StrPath, *args: Any, **kwargs: Any) -> None:
        """Save the model as a `.keras` file, as `keras.Model` does.

        Raises:
            ValueError: The file has another suffix, or the model was quantized.
        """
        check_model_file(filepath)
        _check_not_quantized(self)  # before Keras opens the file
        super().save(filepath, *args, **kwargs)

    def get_config(self) -> Config:
        """Return the constructor's arguments and what is trainable, serialized.

        Raises:
            ValueError: The model was quantized; Keras would write a file that it cannot
                open.
        """
        _check_not_quantized(self)
        config = self.options
        if self.class_names is not None:
            config["class_names"] = list(self.class_names)
        config["preprocessing"] = keras.saving.serialize_keras_object(
            self.preprocessing
        )
        config["dtype"] = keras.saving.serialize_keras_object(self.dtype_policy)
        changed = [
            (path, layer.trainable)
            for path, layer, parent in _layers(self)
            if layer.trainable != parent.trainable
        ]
        return {
            **config,
            "name": self.name,
            "trainable": self.trainable,
            "frozen_layers": [path for path, trainable in changed if not trainable],
            "trainable_layers": [path for path, trainable in changed if trainable],
        }

    @classmethod
    def from_config(
        cls, config: Config, custom_objects: dict[str, object] | None = None
    ) -> Self:
        """Rebuild the model from `get_config()`."""
        config = dict(config)
        for key in ("preprocessing", "dtype"):
            config[key] = keras.saving.deserialize_keras_object(
                config[key], custom_objects=custom_objects
            )
        changed = dict.fromkeys(config.pop("frozen_layers"), False)
        # Older files lack these keys.
        changed |= dict.fromkeys(config.pop("trainable_layers", ()), True)
        trainable = config.pop("trainable", True)
        model = cls(**config)
        if not trainable:
            model.trainable = False
        for path, layer, _ in _layers(model):
            if path in changed:
                layer.trainable = changed[path]  # and all in it, which come later
        return model


def _layers(
    parent: keras.layers.Layer, path: str = ""
) -> Iterator[tuple[str, keras.layers.Layer, keras.layers.Layer]]:
    """Yield path, layer and parent of each layer with weights, parents first."""
    for child in direct_sublayers(parent):
        if child.weights:
            yield f"{path}{child.name}", child, parent
            yield from _layers(child, f"{path}{child.name}/")


def _check_not_quantized(model: keras.Model) -> None:
    modes = {layer.quantization_mode for layer in all_layers(model)} - {None}
    if modes:
        raise ValueError(
            "A model must not be quantized before it is saved or rebuilt: its config "
            "does not say which layers are. Save it before `quantize`, or its weights "
            f"by `save_weights`. Received: {model.name!r}, quantized to "
            f"{', '.join(sorted(modes))}"
        )


def check_is_ours(model: object) -> None:
    """Raise ValueError for another model of Keras, which is told what to do."""
    if not isinstance(model, ImageModel):
        raise ValueError(
            f"the file holds a {type(model).__name__} of Keras, not a model of "
            "keras_vit; put its layers up to the features into "
            "keras_vit.ImageClassifier(backbone=..., classes=..., class_names=...), "
            "train and save that"
        )


def check_model(model: object) -> None:
    """Raise TypeError unless the model is a VisionTransformer or a ResNet."""
    if not isinstance(model, ImageModel) or hasattr(model, "backbone"):
        raise TypeError(
            "`model` must be a VisionTransformer or a ResNet of keras_vit, such as the "
            f"`backbone` of an ImageClassifier. Received: model={model!r}"
        )


def classifier(x: Tensor, model: ImageModel) -> Tensor:
    """Linear classifier on features [B, D], in float32; `x` for a model without."""
    if model.classes is None:
        return x
    return _linear(x, model, "head", model.classifier_activation)


def second_classifier(x: Tensor, distilled: Tensor, model: ImageModel) -> Tensor:
    """Mean of the scores of two classifiers, each of its own features [B, D].

    DeiT's (arXiv:2012.12877, section 4); an activation follows the mean.
    """
    scores = [_linear(x, model, "head"), _linear(distilled, model, "head_dist")]
    mean = keras.layers.Average(dtype="float32", name="mean_scores")(scores)
    return keras.layers.Activation(
        model.classifier_activation, dtype="float32", name="scores"
    )(mean)


def _linear(
    x: Tensor, model: ImageModel, name: str, activation: str | None = None
) -> Tensor:
    return keras.layers.Dense(
        model.classes,
        activation=activation,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(model.head_bias_init),
        dtype="float32",
        name=name,
    )(x)
