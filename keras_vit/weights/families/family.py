"""What a family of checkpoints says of itself, and how our models are written as it.

`keras_vit.weights` compares what a family's documents state with what its arrays show;
nothing outside of this folder knows a project's names. Files are opened without Keras,
which is imported only where a model is written or its preprocessing compared.
"""

import abc
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from keras_vit.errors import WeightsFileError
from keras_vit.weights.families.layouts import ArrayRow
from keras_vit.weights.reading import ArrayFile

if TYPE_CHECKING:
    from keras_vit.base import ImageModel
    from keras_vit.preprocessing import ImagePreprocessing


class Family(abc.ABC):
    """One kind of checkpoints of one project.

    Attributes:
        project: Name of the project, which may have several families.
        title: Name in messages.
        mark: An array that every file of the family has, and no other file.
        rows: The table of its arrays and our weights.
        model: `"vit"` or `"resnet"`.
        defaults: Options of its models that differ from ours and that no array shows,
            unless a document says otherwise.
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
    title: ClassVar[str]
    mark: ClassVar[str]
    rows: ClassVar[tuple[ArrayRow, ...]]
    model: ClassVar[str] = "vit"
    defaults: ClassVar[Mapping[str, Any]] = {"gelu": "exact"}
    holds: ClassVar[frozenset[str]] = frozenset()
    configured: ClassVar[tuple[str, ...]] = ()
    poolings: ClassVar[Mapping[str, str | None]] = {}
    second_classifiers: ClassVar[tuple[str, ...]] = ()
    second_classifier: ClassVar[str] = "second classifier, of the distillation token,"
    hybrid_note: ClassVar[str | None] = None

    @abc.abstractmethod
    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the model -> names in the file, for the model's arrays alone."""

    def fixed_positions(self) -> str:
        """Our `position_embedding` where there is no array of positions."""
        return "none"

    def prefix_positions(self, prefix: int) -> tuple[int, ...]:
        """How many of the prefix tokens may have positions, the usual number first."""
        return (prefix,)

    def stated(self, file: ArrayFile, swiglu: bool) -> dict[str, Any]:
        """Options that the documents beside the arrays state, in our terms.

        What the arrays show as well must be the same there.

        Args:
            file: The open file.
            swiglu: Whether its MLPs are SwiGLUs, as the arrays show.

        Raises:
            WeightsFileError: They state what no model of ours computes.
            LookupError, TypeError, AttributeError: They are malformed.
        """
        return {}

    def image_size(self, file: ArrayFile) -> Any:
        """Side, or sides, of the model's images, if a document states them."""
        return None

    def pooling(self, file: ArrayFile) -> tuple[str | None, bool]:
        """Pooling by its name, and whether it covers all tokens or the patches."""
        return None, True

    def class_names(self, file: ArrayFile, classes: int) -> list[str] | None:
        """Names of the classes, if the documents give them."""
        return None

    def preprocessing_config(self, file: ArrayFile) -> tuple[str, Any]:
        """Name and content of the document about preprocessing; None for none."""
        return "", None

    def preprocessing(
        self, config: dict[str, Any], model: dict[str, Any]
    ) -> dict[str, Any]:
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

    def preprocessing_differences(self, policy: dict[str, Any]) -> list[str]:
        """What the layer computes in another way than the project, in words."""
        return []


class WritableFamily(Family):
    """A family as which our models can be saved.

    Attributes:
        suffix: Of its one file; None where a folder holds the arrays and `documents`.
    """

    suffix: ClassVar[str | None] = None

    def refusals(self, model: "ImageModel") -> list[str]:
        """More reasons why the project's code would compute something else."""
        return []

    def file_name(self, name: str, model: "ImageModel") -> str:
        """Name of an array in the file, from that inside the bare model."""
        return name

    def documents(self, model: "ImageModel") -> dict[str, Any]:
        """JSON documents beside the arrays by file name; not asked of a single file."""
        return {}

    @abc.abstractmethod
    def lost_preprocessing(self, layer: "ImagePreprocessing") -> list[str]:
        """Settings of a model's preprocessing that the documents cannot state."""


def refuse_config(file: ArrayFile, rule: str, received: Any) -> NoReturn:
    """Raise WeightsFileError for what a config states."""
    raise WeightsFileError(
        f"{rule}. Received: {received!r} in the config of {str(file.path)!r}"
    )


_GELUS = {
    "gelu": "exact",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_tanh": "tanh",
}
_SILUS = ("silu", "swish")


def gelu_of(file: ArrayFile, name: str | None, swiglu: bool) -> dict[str, str]:
    """Our `gelu` by the name of an activation in PyTorch's libraries.

    Raises:
        WeightsFileError: No MLP of ours has this activation.
    """
    known = _SILUS if swiglu else tuple(_GELUS)
    if name is not None and name not in known:
        rule = f"The activation must be one of {', '.join(known)}"
        refuse_config(file, rule, name)
    return {"gelu": _GELUS[name]} if name in _GELUS else {}


def renamed(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Our options of a config, by their names in it."""
    return {ours: config[theirs] for theirs, ours in names.items() if theirs in config}


# What one argument of a project states.
QKV_BIASES = ("query_bias", "key_bias", "value_bias")


def qkv_biases(
    config: Mapping[str, object], name: str = "qkv_bias"
) -> dict[str, object]:
    """Our options of a config's one boolean for three projections, if it has that."""
    return dict.fromkeys(QKV_BIASES, config[name]) if name in config else {}


def other_than_qkv_bias(model: "ImageModel") -> list[str]:
    """Why such a boolean cannot state a model's biases."""
    values = {getattr(model, name) for name in QKV_BIASES}
    return [f"{', '.join(QKV_BIASES)} must be equal"] if len(values) > 1 else []


def known(config: dict[str, Any], key: str, names: Mapping[Any, str]) -> str:
    """Our name of a value."""
    check_supported(config, key, config[key] in names)
    return names[config[key]]


def check_supported(config: dict[str, Any], key: str, supported: bool) -> None:
    """Raise ValueError with the value of a key that is not supported."""
    if not supported:
        raise ValueError(f"{key}={config[key]!r}")


def scaled(values: Any, factor: float) -> Any:
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
