"""The Vision Transformer in NumPy float64, written from the paper's equations.

Dosovitskiy et al., arXiv:2010.11929: section 3.1, equations (1) to (4), appendix A,
equations (5) to (8). Only the weights are taken from the model under test.
"""

import math

import numpy as np


def weights_of(model) -> dict[str, np.ndarray]:
    """The model's weights in float64, by their path."""
    return {w.path: np.asarray(w.numpy(), "float64") for w in model.weights}


def layer_norm(x, weights, name):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    normalised = (x - mean) / np.sqrt(variance + 1e-6)
    return normalised * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def dense(x, weights, name):
    return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def gelu(x, kind):
    if kind == "exact":
        erf = np.vectorize(math.erf)
        return x * 0.5 * (1 + erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(z, weights, name, heads, queries=None):
    """MSA: one head after the other, as in equations (5) to (8)."""
    queries = z if queries is None else queries
    q = dense(queries, weights, f"{name}/query")
    k = dense(z, weights, f"{name}/key")
    v = dense(z, weights, f"{name}/value")
    width = q.shape[-1] // heads
    outputs = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        scores = q[..., part] @ k[..., part].swapaxes(-1, -2) / math.sqrt(width)
        outputs.append(softmax(scores) @ v[..., part])
    return dense(np.concatenate(outputs, -1), weights, f"{name}/out")


def mlp(z, weights, name, kind):
    hidden = gelu(dense(z, weights, f"{name}/Dense_0"), kind)
    return dense(hidden, weights, f"{name}/Dense_1")


def patches(images, size):
    """Flattened patches [B, N, P * P * C], row by row."""
    rows = []
    for top in range(0, images.shape[1], size):
        for left in range(0, images.shape[2], size):
            patch = images[:, top : top + size, left : left + size]
            rows.append(patch.reshape(len(images), -1))
    return np.stack(rows, 1)


def forward(model, images):
    """The model's output for pixels in [-1, 1]."""
    w = weights_of(model)
    x = np.asarray(images, "float64")
    kernel = w["embedding/kernel"].reshape(-1, model.width)
    z = patches(x, model.patch_size) @ kernel + w["embedding/bias"]
    if model.class_token:
        token = np.broadcast_to(w["class_token/token"], (len(z), 1, model.width))
        z = np.concatenate([token, z], 1)
    z = z + w["position_embedding/embedding"]  # (1)
    for index in range(model.depth):
        block = f"encoder_block_{index}"
        norm = layer_norm(z, w, f"{block}/norm1")
        z = z + attention(norm, w, f"{block}/attention", model.heads)  # (2)
        norm = layer_norm(z, w, f"{block}/norm2")
        z = z + mlp(norm, w, f"{block}/mlp", model.gelu)  # (3)
    z = layer_norm(z, w, "encoder_norm")
    if model.head == "none":
        return z
    y = pool(z, w, model)  # (4)
    if model.representation_size is not None:
        y = np.tanh(dense(y, w, "pre_logits"))
    return y if model.classes is None else dense(y, w, "head")


def pool(z, w, model):
    """One vector for each image, by the model's head."""
    if model.head == "token":
        return z[:, 0]
    if model.head == "gap":
        return z[:, 1 if model.class_token else 0 :].mean(1)
    probe = np.broadcast_to(w["attention_pooling/probe"], (len(z), 1, z.shape[-1]))
    y = attention(z, w, "attention_pooling/attention", model.heads, probe)
    norm = layer_norm(y, w, "attention_pooling/norm")
    return (y + mlp(norm, w, "attention_pooling/mlp", model.gelu))[:, 0]
