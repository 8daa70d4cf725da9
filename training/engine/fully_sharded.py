"""Fully sharded training on JAX: each device keeps a part of every large weight.

As in ZeRO's third stage (arXiv:1910.02054), the weights, their gradients and the
optimizer's slots are divided among the devices that divide the batch; a layer's weights
are put together where they are used.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras.distribution import DeviceMesh, LayoutMap, TensorLayout

from ..errors import RecipeError

DEVICES = "batch"  # Keras's name of the axis that divides the images

# Which axis of a weight is divided, by the end of its name: D, so that one number has
# to be a multiple of the devices. Biases, norms and convolutions of a stem stay whole.
WEIGHTS = {
    r"(.*/)?embedding/kernel": (None, None, None, DEVICES),  # [P, P, C, D]
    r"(.*/)?position_embedding/embedding": (None, None, DEVICES),  # [1, N, D]
    r".*/(query|key|value)/kernel": (DEVICES, None),  # [D, D]
    r".*/out/kernel": (None, DEVICES),  # [D, D]
    r".*/Dense_0/kernel": (DEVICES, None),  # [D, M]
    r".*/Dense_1/kernel": (None, DEVICES),  # [M, D]
    r"(.*/)?(head|head_dist)/kernel": (DEVICES, None),  # [D, classes]
    r"(.*/)?projection/kernel": (DEVICES, None),
}
# So that XLA puts weights together, and does not exchange activations instead.
OUTPUTS = {r".*encoder_block_\d+(/.*)?/output": (DEVICES,)}


class FullySharded(keras.distribution.ModelParallel):
    """The distribution of `--strategy fsdp`, by default of all processes' devices."""

    def __init__(self, devices: Sequence[Any] | None = None) -> None:
        devices = devices or keras.distribution.list_devices()
        layouts = LayoutMap(DeviceMesh((len(devices),), [DEVICES], devices))
        for name, axes in (WEIGHTS | OUTPUTS).items():
            layouts[name] = axes
        super().__init__(
            layout_map=layouts, batch_dim_name=DEVICES, auto_shard_dataset=False
        )

    def get_variable_layout(self, variable: keras.Variable) -> TensorLayout:
        """The layout of a weight or of one of its slots.

        Raises:
            RecipeError: The devices cannot divide it evenly.
        """
        layout = super().get_variable_layout(variable)
        for size, axis in zip(variable.shape, layout.axes, strict=True):
            if axis is not None and size % self.num_model_replicas:
                raise RecipeError(
                    "`strategy` fsdp needs a model whose width is a multiple of the "
                    f"number of devices. Received: {variable.path} of shape "
                    f"{tuple(variable.shape)}, {self.num_model_replicas} devices"
                )
        return layout
