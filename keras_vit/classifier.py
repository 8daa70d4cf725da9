"""Image classifier around any Keras backbone."""

import dataclasses
from typing import Annotated, Any, Self

import keras

from keras_vit import option_rows, options
from keras_vit.base import ImageModel, classifier
from keras_vit.nested_layers import all_layers
from keras_vit.preprocessing import ImagePreprocessing
from keras_vit.typing import Config


@option_rows.options
class ImageClassifierOptions(options.ClassifierOptions):
    """Options of an `ImageClassifier`."""

    backbone: Annotated[
        keras.Model,
        "Any functional `keras.Model`, a built `Sequential` included, from images [B, "
        "H, W, C] of one size to features [B, D], or to maps [B, h, w, D], which are "
        "averaged over h and w.",
    ]
    classes: Annotated[options.Count, "Number of classes."] = dataclasses.field()
    preprocessing: Annotated[
        ImagePreprocessing | None,
        "An `ImagePreprocessing` layer to put in front, or `None`. Its `mean=0, std=1` "
        "is for a backbone that reads 0 to 255 and normalizes them in operations; one "
        "with a `Rescaling` or `Normalization` layer needs none.",
    ] = None
    dtype: Annotated[
        Any,
        "The dtype policy that the backbone was built with; the global policy when "
        "absent. The classifier computes in float32 in any.",
    ] = None


@keras.saving.register_keras_serializable(package="keras_vit")
@option_rows.documented
class ImageClassifier(ImageModel):
    """Preprocessing, a backbone, and a linear classifier with named classes.

    It gives other networks, such as those of `keras.applications`, what the models of
    this library have: raw pixels in, logits out, and a `.keras` file that says how
    images are prepared and what the classes are called.

    The input is a batch [B, H, W, C] of what the backbone reads, or of pixels from 0 to
    255 where `preprocessing` is given. The output is float32 logits [B, classes] (or
    their activation).

    Args:
    {options}

    Raises:
        ValueError: An argument that does not fit.
    """

    _reads_normalized = False  # the backbone may normalize by itself

    options_class = ImageClassifierOptions

    @option_rows.built_from(ImageClassifierOptions)
    def __init__(self, made: ImageClassifierOptions) -> None:
        _check_backbone(made.backbone)
        self.keep_options(made)
        _, height, width, self.channels = made.backbone.input_shape
        self.image_size = height, width
        made.check_preprocessing(self.image_size, self.channels)
        images = self.images_input()
        features = self.backbone(self._prepared(images))
        if len(features.shape) == 4:
            features = keras.layers.GlobalAveragePooling2D(
                data_format="channels_last", dtype="float32", name="pooling"
            )(features)
        super().__init__(images, classifier(features, self), name=made.name)

    @property
    def pixels(self) -> str | None:
        """The inputs' range: `"raw"` (0 to 255), `"normalized"`, `None` if unknown."""
        if self.preprocessing is not None:
            return "raw"
        if isinstance(self.backbone, ImageModel):
            return self.backbone.pixels
        own = (keras.layers.Rescaling, keras.layers.Normalization)
        layers = all_layers(self.backbone)
        return "raw" if any(isinstance(layer, own) for layer in layers) else None

    def get_config(self) -> Config:
        """The constructor's arguments, serialized."""
        backbone = keras.saving.serialize_keras_object(self.backbone)
        return {**super().get_config(), "backbone": backbone}

    @classmethod
    def from_config(
        cls, config: Config, custom_objects: dict[str, object] | None = None
    ) -> Self:
        """Rebuilds the model from `get_config()`."""
        backbone = keras.saving.deserialize_keras_object(
            config["backbone"], custom_objects=custom_objects
        )
        return super().from_config({**config, "backbone": backbone}, custom_objects)


def _check_backbone(backbone: object) -> None:
    """Raise ValueError unless it maps images of one size to vectors or maps."""
    inputs = [x.shape for x in getattr(backbone, "inputs", None) or ()]
    outputs = [x.shape for x in getattr(backbone, "outputs", None) or ()]
    fits = (
        [len(shape) for shape in inputs] == [4]
        and None not in inputs[0][1:]
        and [len(shape) for shape in outputs] in ([2], [4])
    )
    if not fits:
        raise ValueError(
            "`backbone` must be a functional model from images [B, H, W, C] of one "
            "size to features [B, D] or maps [B, h, w, D], such as one of "
            "keras.applications with include_top=False and an input_shape. "
            f"Received: {backbone!r} from {inputs} to {outputs}"
        )
