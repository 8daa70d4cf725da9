"""Types of signatures: tensors, arrays, paths and configurations.

Keras has no types of its own, and a tensor is the backend's: a `tf.Tensor`, a
`jax.Array` or, while a model is built, a `keras.KerasTensor`. Type checkers see `Any`,
readers see the shape. The letters are those of `keras_vit.layers`.
"""

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Tensor: TypeAlias = Any  # of any shape and backend
TensorLike: TypeAlias = Any  # a tensor, an array or numbers
Images: TypeAlias = Tensor  # [B, H, W, C]
Image: TypeAlias = Tensor  # [H, W, C]
Inputs: TypeAlias = Any  # images, or a dictionary of a model's inputs by name
FeatureMap: TypeAlias = Tensor  # [B, H', W', channels]
Tokens: TypeAlias = Tensor  # [B, N, D]
Heads: TypeAlias = Tensor  # [B, N, A, K]: queries, keys or values of each head
Weights: TypeAlias = Tensor  # [B, A, Q, N]: attention weights of each head
Vectors: TypeAlias = Tensor  # [B, D]
Logits: TypeAlias = Tensor  # [B, classes]

JSON: TypeAlias = Any  # a value of a JSON document
Option: TypeAlias = Any  # the value of a model's option, by its row

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Arrays: TypeAlias = dict[str, Array]  # by name
Shape: TypeAlias = tuple[int | None, ...]  # None: any size
InputShape: TypeAlias = tuple[*tuple[int | None, ...], int]  # the last size is known
SequenceShape: TypeAlias = tuple[*tuple[int | None, ...], int, int]  # [..., N, D]
TokensShape: TypeAlias = tuple[int | None, int, int]  # [B, N, D]
StrPath: TypeAlias = str | os.PathLike[str]
Config: TypeAlias = dict[str, Any]  # of a layer or a model, as JSON holds it
Initializer: TypeAlias = Any  # what Keras takes: a name, a config or an object
Activation: TypeAlias = Callable[[Tensor], Tensor]
