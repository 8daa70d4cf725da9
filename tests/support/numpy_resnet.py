"""The hybrids' stem and BiT in NumPy float64, written from the papers' formulas.

Weight Standardization: arXiv:1903.10520; GroupNorm: arXiv:1803.08494; the units:
arXiv:1603.05027, figure 4 (a) and (e), as bottlenecks. Only the weights are taken from
the model under test. `w` holds them by path below the unit or model.
"""

import numpy as np
from numpy_vit import weights_of


def standardized(kernel, convention):
    columns = kernel.reshape(-1, kernel.shape[-1])
    result = np.empty_like(columns)
    for channel in range(columns.shape[1]):
        column = columns[:, channel]
        if convention == "vit":
            divisor = column.std() + 1e-5
        else:
            divisor = np.sqrt(column.var() + 1e-10)
        result[:, channel] = (column - column.mean()) / divisor
    return result.reshape(kernel.shape)


def padding(side, size, strides, convention):
    """(before, after): TensorFlow's SAME, or half a window on both sides."""
    if convention == "bit":
        return size // 2, size // 2
    outputs = -(-side // strides)
    total = max((outputs - 1) * strides + size - side, 0)
    return total // 2, total - total // 2


def windows(x, size, strides, convention, fill):
    """Every window of a padded map, as [B, rows, columns, size * size, C]."""
    pads = [padding(side, size, strides, convention) for side in x.shape[1:3]]
    x = np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=fill)
    rows = range(0, x.shape[1] - size + 1, strides)
    columns = range(0, x.shape[2] - size + 1, strides)
    cut = [[x[:, r : r + size, c : c + size] for c in columns] for r in rows]
    return np.moveaxis(np.array(cut), 2, 0).reshape(
        len(x), len(rows), len(columns), size * size, x.shape[-1]
    )


def convolution(x, kernel, strides, convention):
    cut = windows(x, len(kernel), strides, convention, 0.0)
    kernel = standardized(kernel, convention)
    flat = cut.reshape(*cut.shape[:3], -1)
    return flat @ kernel.reshape(-1, kernel.shape[-1])


def max_pool(x, convention):
    """SAME ignores what is outside the map; BiT sees zeros there."""
    fill = -np.inf if convention == "vit" else 0.0
    return windows(x, 3, 2, convention, fill).max(3)


def group_norm(x, w, name, convention):
    epsilon = {"vit": 1e-6, "bit": 1e-5}[convention]
    size = x.shape[-1] // 32
    result = np.empty_like(x)
    for image in range(len(x)):
        for group in range(32):
            part = slice(group * size, (group + 1) * size)
            values = x[image, :, :, part]
            deviation = np.sqrt(values.var() + epsilon)
            result[image, :, :, part] = (values - values.mean()) / deviation
    return result * w[f"{name}/gamma"] + w[f"{name}/beta"]


def relu(x):
    return np.maximum(x, 0)


def residual_unit(x, w, strides):
    """ResNet V1."""
    shortcut = x
    if "conv_proj/kernel" in w:
        shortcut = convolution(x, w["conv_proj/kernel"], strides, "vit")
        shortcut = group_norm(shortcut, w, "norm_proj", "vit")
    for number, step in ((1, 1), (2, strides), (3, 1)):
        x = convolution(x, w[f"conv{number}/kernel"], step, "vit")
        x = group_norm(x, w, f"norm{number}", "vit")
        if number < 3:
            x = relu(x)
    return relu(shortcut + x)


def pre_activation_unit(x, w, strides):
    """ResNet V2."""
    shortcut = x
    for number, step in ((1, 1), (2, strides), (3, 1)):
        x = relu(group_norm(x, w, f"norm{number}", "bit"))
        if number == 1 and "conv_proj/kernel" in w:
            shortcut = convolution(x, w["conv_proj/kernel"], strides, "bit")
        x = convolution(x, w[f"conv{number}/kernel"], step, "bit")
    return shortcut + x


def below(weights, prefix):
    """The weights whose path begins with a prefix, by the rest of it."""
    return {
        path[len(prefix) :]: weight
        for path, weight in weights.items()
        if path.startswith(prefix)
    }


def stages(x, w, blocks, unit):
    for stage, units in enumerate(blocks, 1):
        for number in range(1, units + 1):
            strides = 2 if number == 1 and stage > 1 else 1
            x = unit(x, below(w, f"stage{stage}_unit{number}/"), strides)
    return x


def stem(model, images, blocks):
    """The feature map of a hybrid."""
    w = weights_of(model)
    x = convolution(np.asarray(images, "float64"), w["stem_conv/kernel"], 2, "vit")
    x = max_pool(relu(group_norm(x, w, "stem_norm", "vit")), "vit")
    return stages(x, w, blocks, residual_unit)


def bit(model, images):
    """BiT's logits."""
    w = weights_of(model)
    x = convolution(np.asarray(images, "float64"), w["stem_conv/kernel"], 2, "bit")
    x = stages(max_pool(x, "bit"), w, model.blocks, pre_activation_unit)
    x = relu(group_norm(x, w, "final_norm", "bit")).mean((1, 2))
    return x @ w["head/kernel"] + w["head/bias"]
