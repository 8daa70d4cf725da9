"""What a family of checkpoints says of itself, and how our models are written as it.

`keras_vit.weights` compares what a family's documents state with what its arrays show;
nothing outside of this folder knows a project's names. Files are opened without Keras,
which is imported only where a model is written or its preprocessing compared.
"""

import abc
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from keras_vit.specs import SPECS
from keras_vit.typing import JSON, Arrays
from keras_vit.weights.families.config_keys import Config, Stated
from keras_vit.weights.families.layouts import ArrayRow
from keras_vit.weights.reading import ArrayFile

if TYPE_CHECKING:
    from keras_vit.base import ImageModel
    from keras_vit.preprocessing import ImagePreprocessing


class Family(abc.ABC):
    """One kind of checkpoints of one project.

    Attributes:
        project: Name of the project, which may have several families.
        library: That name in messages.
        title: Name in messages.
        mark: An array that every file of the family has, and no other file.
        rows: The table of its arrays and our weights.
        ignored: Regular expression of the names of arrays that no output depends on.
        model: `"vit"` or `"resnet"`.
        always: Options that all of its models have.
        assumed: Options that its models have where no document says otherwise.
        holds: Options, of those that the weights depend on, that its files can state
            or show. Others have their defaults: a weight that is then missing is an
            error, and a model with another value cannot be written.
        configured: Options that only `config.json` states; they are assumed without.
        poolings: Our `pooling` by its name.
        second_classifiers: Name prefixes of classifiers that our models do not have.
        second_classifier: What such a one is, in messages.
        hybrid_note: How outputs of a hybrid may differ from the project's own.
    """

    project: ClassVar[str]
    library: ClassVar[str]
    title: ClassVar[str]
    mark: ClassVar[str]
    rows: ClassVar[tuple[ArrayRow, ...]]
    ignored: ClassVar[str] = "(?!)"
    model: ClassVar[str] = "vit"
    always: ClassVar[Mapping[str, JSON]] = {}
    assumed: ClassVar[Mapping[str, JSON]] = {}
    holds: ClassVar[frozenset[str]] = frozenset()
    configured: ClassVar[tuple[str, ...]] = ()
    poolings: ClassVar[Mapping[str, str | None]] = {}
    second_classifiers: ClassVar[tuple[str, ...]] = ()
    second_classifier: ClassVar[str] = ""
    hybrid_note: ClassVar[str | None] = None

    @abc.abstractmethod
    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the model -> names in the file, for the model's arrays alone."""

    def prefix_positions(self, prefix: int) -> tuple[int, ...]:
        """How many of the prefix tokens may have positions, the usual number first."""
        return (prefix,)

    def described(self, config: Config) -> str | None:
        """Name of the model that a config of this project is of; None for another's."""
        return None

    def opens(self, name: str) -> bool:
        """Whether this family reads the model of a name that `described` gives."""
        return True

    def explained(self, name: str) -> str:
        """A model of such a name that this project has, in messages."""
        return f"{name!r} of {self.library}"

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """Options that the documents beside the arrays state, in our terms.

        Raises:
            WeightsFileError: They state what no model of ours computes.
            LookupError, TypeError, AttributeError: They are malformed.
        """
        return {}

    def guessed(self, file: ArrayFile, shown: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Options that are assumed where no document states and no array shows them.

        Args:
            file: The open file.
            shown: The options that its arrays show.

        Raises:
            WeightsFileError: Nothing can be assumed without a document.
        """
        size = tuple(shown.get(key) for key in ("width", "depth", "mlp_dim"))
        known = {(s.width, s.depth, s.mlp_dim): s.heads for s in SPECS.values()}
        heads = {"heads": known[size]} if size in known else {}
        return {**heads, **self.assumed}

    def notes(self, file: ArrayFile) -> list[str]:
        """What a report says of a file beside its arrays."""
        return []

    def image_size(self, file: ArrayFile) -> JSON:
        """Side, or sides, of the model's images, if a document states them."""
        return None

    def pooling(self, file: ArrayFile) -> tuple[str | None, bool]:
        """Pooling by its name, and whether it covers all tokens or the patches."""
        return None, True

    def class_names(self, file: ArrayFile, classes: int) -> list[str] | None:
        """Names of the classes, if the documents give them."""
        return None

    def preprocessing_config(self, file: ArrayFile) -> tuple[str, JSON]:
        """Name and content of the document about preprocessing; None for none."""
        return "", None

    def preprocessing(
        self, config: dict[str, JSON], model: dict[str, JSON]
    ) -> dict[str, JSON]:
        """Arguments of `ImagePreprocessing` that a document states.

        Args:
            config: From `preprocessing_config`.
            model: The model's own `config.json`.

        Returns:
            The arguments; `image_size` may be absent, and may differ from the model's.

        Raises:
            ValueError, TypeError, LookupError, AttributeError, ArithmeticError: It
                states what the layer does not compute.
        """
        raise NotImplementedError

    def preprocessing_differences(self, policy: dict[str, JSON]) -> list[str]:
        """What the layer computes in another way than the project, in words."""
        return []


class WritableFamily(Family):
    """A family as which our models can be saved.

    Attributes:
        suffix: Of its one file; None where a folder holds the arrays and `documents`.
        files: Of the folder: names of arrays in it, as a regular expression, by the
            name of the file that holds them; an array is in the first that matches.
        optional: Documents that not every model has.
        names_classes: Whether the documents have names of classes.
    """

    suffix: ClassVar[str | None] = None
    files: ClassVar[Mapping[str, str]] = {"model.safetensors": ".*"}
    optional: ClassVar[tuple[str, ...]] = ()
    names_classes: ClassVar[bool] = True

    def refusals(self, model: "ImageModel") -> list[str]:
        """Reasons beside its options why their code would compute something else."""
        return []

    def written_rows(self, model: "ImageModel") -> tuple[ArrayRow, ...]:
        """Those of `rows` by which a model is written."""
        return self.rows

    def file_name(self, name: str, model: "ImageModel") -> str:
        """Name of an array in the file, from that inside the bare model."""
        return name

    def further_arrays(self, arrays: Arrays, model: "ImageModel") -> Arrays:
        """Arrays that its files have beside those of our weights.

        Args:
            arrays: Those of the weights, by their names inside the bare model.
            model: The model that is written.
        """
        return {}

    def documents(self, model: "ImageModel") -> dict[str, JSON]:
        """JSON documents beside the arrays by file name; not asked of a single file."""
        return {}

    @abc.abstractmethod
    def lost_preprocessing(self, layer: "ImagePreprocessing") -> list[str]:
        """Settings of a model's preprocessing that the documents cannot state."""


# Our `gelu` by the names that PyTorch's libraries have for it.
GELUS = {
    "gelu": "exact",
    "gelu_pytorch_tanh": "tanh",
    "gelu_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "quick_gelu": "quick",
    "quickgelu": "quick",
    "silu": "silu",
    "swish": "silu",
}
SILUS = ("silu", "swish")


# What one argument of a project states.
QKV_BIASES = ("query_bias", "key_bias", "value_bias")


def known(config: dict[str, JSON], key: str, names: Mapping[JSON, str]) -> str:
    """Our name of a value."""
    check_supported(config, key, config[key] in names)
    return names[config[key]]


def check_supported(config: dict[str, JSON], key: str, supported: bool) -> None:
    """Raise ValueError with the value of a key that is not supported."""
    if not supported:
        raise ValueError(f"{key}={config[key]!r}")


def scaled(values: JSON, factor: float) -> JSON:
    """Numbers of all channels, or of each, times a factor."""
    values = values if isinstance(values, (list, tuple)) else [values]
    return one_or_all([value * factor for value in values])


def one_or_all(values: list[float]) -> float | tuple[float, ...]:
    """One number if all channels have the same, without rounding errors."""
    rounded = tuple(round(value, 9) for value in values)
    return rounded if len(set(rounded)) > 1 else rounded[0]


def pixels_of(
    model: "ImageModel",
) -> tuple["ImagePreprocessing", list[float], list[float]]:
    """The preprocessing of a model, and its mean and deviation of pixels from 0 to 1.

    It is that of Google's models where the model has none.
    """
    from keras_vit.preprocessing import ImagePreprocessing

    layer = model.preprocessing or ImagePreprocessing(model.image_size)
    mean, std = (
        value if isinstance(value, tuple) else (value,) * model.channels
        for value in (layer.mean, layer.std)
    )
    return layer, [round(v / 255, 12) for v in mean], [round(v / 255, 12) for v in std]


def lost_to_pillow(layer: "ImagePreprocessing", project: str) -> list[str]:
    """Settings that no project has that resizes by Pillow."""
    found = []
    if layer.interpolation == "lanczos5":
        found.append("interpolation='lanczos5'")
    if not layer.antialias and layer.interpolation != "nearest":
        found.append("antialias=False")
    if layer.convention != project:
        found.append(f"convention={layer.convention!r}")
    return found
