"""Published models: `from_variant`, `from_preset`, and constructors like Keras's own.

The constructors that `application` makes take what those of `keras.applications` take.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from keras_vit.base import ImageModel
from keras_vit.checks import check_choice
from keras_vit.specs import image_size_pair
from keras_vit.typing import Config, StrPath
from keras_vit.weights.building import build_preset

Published = TypeVar("Published", bound="PublishedModel")


class PublishedModel(ImageModel):
    """An `ImageModel` with published sizes and weights."""

    # "vit" or "resnet": which families of checkpoints fit
    architecture: str

    @classmethod
    def variant_arguments(cls, variant: str) -> Config:
        """Arguments that make a published size; ValueError for an unknown one."""
        raise NotImplementedError

    @classmethod
    def from_variant(cls, variant: str, **arguments: Any) -> Self:
        """Build a published size with random weights.

        Args:
            variant: Its name, such as `"B/16"`, `"R50+B/16"` or `"R50x1"`.
            **arguments: The other arguments of the class.

        Raises:
            ValueError: An unknown size, or an argument that does not fit.
        """
        return cls(**{**cls.variant_arguments(variant), **arguments})

    @classmethod
    def from_preset(
        cls,
        preset: StrPath,
        *,
        resample: str = "google",
        grid: tuple[int, int] | None = None,
        **overrides: Any,
    ) -> Self:
        """Build a model with weights, some of its arguments replaced.

        The classifier is the file's unless `classes` or `pooling` ask for another one;
        then it is newly initialized, and the layer before it (`pre_logits`) omitted.

        Preprocessing that a config beside the weights describes is kept with the model
        (`model.preprocessing`), but is no part of it unless
        `include_preprocessing=True`: the model reads normalized pixels, as in the
        project that it comes from.

        Args:
            preset: Published weights, `"B/16:augreg_in21k"` (see
                `keras_vit.list_weights`); a repository, `"hf://owner/name"`; or the
                path of a checkpoint of any family, or of a `.keras` file.
            resample: How positions are resampled to another grid; see
                `load_checkpoint`.
            grid: (h, w) of the file's positions; see `load_checkpoint`.
            **overrides: Arguments of the model that replace the file's, such as
                `classes`, `image_size`, or `heads`, which files of PyTorch do not
                always give.

        Returns:
            The model. What was adapted is logged.

        Raises:
            WeightsFileError: The file is missing, damaged or of an unknown family.
            ValueError: It does not say enough, or an argument does not fit.
        """
        return build_preset(cls, preset, overrides, resample, grid)


def application(
    model_class: type[Published],
    variant: str,
    name: str,
    poolings: tuple[str | None, ...],
) -> Callable[..., Published]:
    """Make a constructor for one size, with the signature of `keras.applications`.

    Args:
        poolings: The values of `pooling`, the default under a classifier first.
    """

    def build(
        include_top: bool = True,
        weights: StrPath | None = None,
        input_shape: tuple[int, int, int] | None = None,
        pooling: str | None = None,
        classes: int | None = None,
        classifier_activation: str | None = "softmax",
        name: str | None = None,
        **kwargs: Any,
    ) -> Published:
        check_choice("pooling", pooling, poolings)
        arguments = {"name": name, **kwargs}
        if input_shape is not None:
            if again := sorted({"image_size", "channels"} & kwargs.keys()):
                raise ValueError(
                    "`input_shape` must not be given with `image_size` or `channels`. "
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
            arguments |= {"pooling": pooling, "classes": None}
        else:
            arguments["classifier_activation"] = classifier_activation
            if classes is not None:
                arguments["classes"] = classes
            if pooling is not None:
                arguments["pooling"] = pooling
            elif weights is None:
                arguments["pooling"] = poolings[0]
        if weights is None:
            model = model_class.from_variant(variant, **arguments)
        else:
            loading = {
                name: arguments.pop(name)
                for name in ("resample", "grid")
                if name in arguments
            }
            model = build_preset(
                model_class, weights, arguments, variant=variant, **loading
            )
        if include_top and model.classes is None:
            raise ValueError(
                "`classes` must be given, or include_top=False: these weights have no "
                f"classifier. Received: weights={weights!r}"
            )
        return model

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"""Build {variant}, with the arguments of `keras.applications`.

    Args:
        include_top: Whether the classifier is on top.
        weights: A name of `keras_vit.list_weights("{variant}")`, `"hf://owner/name"`,
            the path of a checkpoint of any family or of a `.weights.h5` file, or
            `None` for random weights.
        input_shape: (H, W, C); that of the weights when absent, or (224, 224, 3).
        pooling: One of {", ".join(map(repr, poolings))}. `None` is the default of the
            weights, or {poolings[0]!r}, under a classifier; without the top it gives
            all of the last layer's features instead of one vector [B, D].
        classes: Number of classes: that of the weights when absent, or 1,000. Another
            one than theirs gives a new classifier.
        classifier_activation: Activation of the scores, or `None` for logits.
        name: Name of the model.
        **kwargs: Other arguments of `{model_class.__name__}`; `resample` and
            `grid` as in `from_preset`.

    Returns:
        A `{model_class.__name__}` that reads pixels in [-1, 1] (`preprocess_input`), or
        pixels from 0 to 255 where `preprocessing` is given.

    Raises:
        ValueError: An argument or weights that do not fit.
    """
    return build
