"""The base classes of Keras's layers and models, with types for what users call.

Keras has none of its own: mypy takes what is not declared here for `Any`, and pyright,
which reads Keras's source, calls it unknown. At run time they are Keras's classes.
"""

# ruff: noqa: D102  Keras's own docstrings say what they do

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import keras

from keras_vit.typing import Array, Config, Shape, StrPath, Tensor, TensorLike


class History(Protocol):
    """What `fit` returns, a `keras.callbacks.History`."""

    history: dict[str, list[float]]  # by metric, a value for each epoch
    epoch: list[int]


if TYPE_CHECKING:

    class Variable(keras.Variable):
        """`keras.Variable`."""

        name: str
        path: str
        dtype: str
        trainable: bool
        shape: tuple[int, ...]

        def numpy(self) -> Array: ...
        def assign(self, value: TensorLike) -> Tensor: ...

    class Layer(keras.layers.Layer):
        """`keras.layers.Layer`."""

        name: str
        built: bool
        trainable: bool
        dtype_policy: keras.DTypePolicy
        compute_dtype: str

        @property
        def weights(self) -> list[Variable]: ...
        @property
        def trainable_weights(self) -> list[Variable]: ...
        @property
        def non_trainable_weights(self) -> list[Variable]: ...
        @property
        def path(self) -> str: ...
        def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Tensor: ...
        def get_config(self) -> Config: ...
        def get_weights(self) -> list[Array]: ...
        def set_weights(self, weights: Sequence[Array]) -> None: ...
        def count_params(self) -> int: ...

    class Model(Layer, keras.Model):
        """`keras.Model`."""

        stop_training: bool

        @property
        def layers(self) -> list[keras.layers.Layer]: ...
        @property
        def input(self) -> Any: ...
        @property
        def output(self) -> Any: ...
        @property
        def inputs(self) -> list[keras.KerasTensor]: ...
        @property
        def outputs(self) -> list[keras.KerasTensor]: ...
        @property
        def input_shape(self) -> Shape: ...
        @property
        def output_shape(self) -> Any: ...
        def compile(
            self,
            optimizer: Any = "rmsprop",
            loss: Any = None,
            loss_weights: Any = None,
            metrics: Any = None,
            **kwargs: Any,
        ) -> None: ...
        def fit(
            self,
            x: Any = None,
            y: Any = None,
            batch_size: int | None = None,
            epochs: int = 1,
            verbose: str | int = "auto",
            callbacks: Any = None,
            validation_split: float = 0.0,
            validation_data: Any = None,
            **kwargs: Any,
        ) -> History: ...
        def evaluate(
            self,
            x: Any = None,
            y: Any = None,
            batch_size: int | None = None,
            verbose: str | int = "auto",
            **kwargs: Any,
        ) -> Any: ...
        def predict(
            self,
            x: Any,
            batch_size: int | None = None,
            verbose: str | int = "auto",
            **kwargs: Any,
        ) -> Any: ...
        def train_on_batch(self, x: Any, y: Any = None, **kwargs: Any) -> Any: ...
        def test_on_batch(self, x: Any, y: Any = None, **kwargs: Any) -> Any: ...
        def predict_on_batch(self, x: TensorLike) -> Any: ...
        def get_layer(
            self, name: str | None = None, index: int | None = None
        ) -> keras.layers.Layer: ...
        def summary(
            self,
            *args: Any,
            print_fn: Callable[..., None] | None = None,
            **kwargs: Any,
        ) -> None: ...
        def save(self, filepath: StrPath, *args: Any, **kwargs: Any) -> None: ...
        def save_weights(self, filepath: StrPath, **kwargs: Any) -> None: ...
        def load_weights(self, filepath: StrPath, **kwargs: Any) -> None: ...
        def quantize(self, mode: str | None = None, **kwargs: Any) -> None: ...

else:
    Variable = keras.Variable
    Layer = keras.layers.Layer
    Model = keras.Model
