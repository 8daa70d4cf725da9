"""The Vision Transformer in NumPy float64, written from the paper's equations.

Dosovitskiy et al., arXiv:2010.11929: section 3.1, equations (1) to (4), appendix A,
equations (5) to (8), appendix D.4 and D.6; options that came later from their papers.
Only the weights are taken from the model under test, and its arguments.
"""

import math

import numpy as np
from tiny_model import numpy


def weights_of(model) -> dict[str, np.ndarray]:
    """The model's weights in float64, by their path."""
    return {w.path: np.asarray(w.numpy(), "float64") for w in model.weights}


def layer_norm(x, weights, name, epsilon=1e-6):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    normalized = (x - mean) / np.sqrt(variance + epsilon)
    return normalized * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def rms_norm(x, weights, name, epsilon):
    """arXiv:1910.07467, equation (4)."""
    mean_square = (x**2).mean(-1, keepdims=True)
    return x / np.sqrt(mean_square + epsilon) * weights[f"{name}/gamma"]


def norm(x, weights, name, model):
    """The model's kind of norm."""
    kind = {"layer": layer_norm, "rms": rms_norm}[model.norm]
    return kind(x, weights, name, model.norm_epsilon)


def dense(x, weights, name):
    return x @ weights[f"{name}/kernel"] + weights.get(f"{name}/bias", 0)


def gelu(x, kind):
    if kind == "exact":
        erf = np.vectorize(math.erf)
        return x * 0.5 * (1 + erf(x / math.sqrt(2)))
    if kind in ("quick", "silu"):
        return x / (1 + np.exp(-x * {"quick": 1.702, "silu": 1}[kind]))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention_weights(z, weights, name, model, queries=None):
    """Equation (6), one head after the other: [B, A, Q, N]."""
    queries = z if queries is None else queries
    q = queries
    if f"{name}/query/kernel" in weights:
        q = dense(queries, weights, f"{name}/query")
    k = dense(z, weights, f"{name}/key")
    count = heads_of(model, name)
    width = q.shape[-1] // count
    angles = rotation_angles(model, weights, name)
    table = weights.get(f"{name}/relative_embedding")
    if name.startswith("encoder_block"):
        table = weights.get("relative_position/embedding", table)
    heads = []
    for head in range(count):
        part = slice(head * width, (head + 1) * width)
        query, key = q[..., part], k[..., part]
        if f"{name}/query_norm/gamma" in weights:
            query = norm(query, weights, f"{name}/query_norm", model)
            key = norm(key, weights, f"{name}/key_norm", model)
        if angles is not None:
            query, key = (rotate(x, angles[:, head], model) for x in (query, key))
        scores = query @ key.swapaxes(-1, -2)
        if table is not None:
            scores = scores + relative_scores(query, table)
        scores = scores / math.sqrt(width)
        if model.relative_bias is not None and name.startswith("encoder_block"):
            bias = weights.get(f"{name}/relative_bias")
            bias = weights["relative_bias/table"] if bias is None else bias
            scores = scores + relative_bias(bias[:, head], *model.grid)
        heads.append(softmax(scores))
    return np.stack(heads, 1)


def heads_of(model, name):
    """Number of heads of the blocks, or of attention pooling."""
    in_block = name.startswith("encoder_block")
    return model.heads if in_block else model.pool_heads or model.heads


def relative_bias(table, rows, columns):
    """arXiv:2106.08254, section 2.3: a number for each query and key, [N, N]."""
    differences = table[:-3].reshape(2 * rows - 1, 2 * columns - 1)
    places = [(y, x) for y in range(rows) for x in range(columns)]
    result = np.zeros((1 + len(places), 1 + len(places)))
    result[0], result[:, 0], result[0, 0] = table[-3:]
    for query, (y, x) in enumerate(places):
        for key, (v, u) in enumerate(places):
            of_pair = differences[y - v + rows - 1, x - u + columns - 1]
            result[1 + query, 1 + key] = of_pair
    return result


def rotation_angles(model, weights, name):
    """arXiv:2508.10104, arXiv:2303.11331, arXiv:2403.13298: [N, A, K / 2], or None."""
    if model.rotary is None or not name.startswith("encoder_block"):
        return None
    (rows, columns), waves = model.grid, model.width // model.heads // 4
    reference = model.rotary_reference_grid or model.grid
    angles = np.zeros((model.prefix_tokens + rows * columns, model.heads, 2 * waves))
    for row in range(rows):
        for column in range(columns):
            if model.rotary == "centered":
                place = (2 * (row + 0.5) / rows - 1, 2 * (column + 0.5) / columns - 1)
            else:
                place = (
                    (row + model.rotary_offset) * reference[0] / rows,
                    (column + model.rotary_offset) * reference[1] / columns,
                )
            if model.rotary_axes == "xy":
                place = place[::-1]
            here = angles[model.prefix_tokens + row * columns + column]
            if model.rotary == "mixed":
                block = int(name.split("/")[0].removeprefix("encoder_block_"))
                frequencies = weights["rotary/frequencies"][:, block]
                here += place[0] * frequencies[0] + place[1] * frequencies[1]
                continue
            turn = 2 * math.pi if model.rotary == "centered" else 1
            for wave in range(waves):
                period = model.rotary_temperature ** (wave / waves)
                here[:, wave] = turn * place[0] / period
                here[:, waves + wave] = turn * place[1] / period
    return angles


def rotate(x, angles, model):
    """Pairs of elements as complex numbers, times exp(i angle)."""
    half = x.shape[-1] // 2
    if model.rotary_pairing == "halves":
        pairs = x[..., :half] + 1j * x[..., half:]
    else:
        pairs = x[..., ::2] + 1j * x[..., 1::2]
    turned = pairs * np.exp(1j * angles)[-x.shape[-2] :]
    return np.concatenate([turned.real, turned.imag], -1)


def relative_scores(query, table):
    """Appendix D.4: every pair of tokens has the vector of p_q - p_k, from N - 1 on."""
    offsets = np.subtract.outer(np.arange(query.shape[-2]), np.arange(query.shape[-2]))
    return np.einsum("...qd,qkd->...qk", query, table[offsets.max() - offsets])


def attention(z, weights, name, model, queries=None):
    """MSA: equations (5) to (8)."""
    shares = attention_weights(z, weights, name, model, queries)
    values = dense(z, weights, f"{name}/value")
    values = np.split(values, heads_of(model, name), axis=-1)
    heads = [shares[:, head] @ value for head, value in enumerate(values)]
    merged = np.concatenate(heads, -1)
    if model.attention_norm and name.startswith("encoder_block"):
        merged = norm(merged, weights, f"{name}/norm", model)
    return dense(merged, weights, f"{name}/out")


def block_mlp(z, weights, name, model):
    """The MLP of a block."""
    if model.swiglu:
        hidden = swiglu(z, weights, name)
    else:
        hidden = gelu(dense(z, weights, f"{name}/Dense_0"), model.gelu)
    if model.mlp_norm:
        hidden = norm(hidden, weights, f"{name}/norm", model)
    return dense(hidden, weights, f"{name}/Dense_1")


def mlp(z, weights, name, kind):
    hidden = gelu(dense(z, weights, f"{name}/Dense_0"), kind)
    return dense(hidden, weights, f"{name}/Dense_1")


def swiglu(z, weights, name):
    """Hidden layer, arXiv:2002.05202, equation (6); W is the kernel's first half."""
    kernel = weights[f"{name}/Dense_0/kernel"]
    bias = weights.get(f"{name}/Dense_0/bias", np.zeros(kernel.shape[1]))
    width = len(bias) // 2
    gate = z @ kernel[:, :width] + bias[:width]
    values = z @ kernel[:, width:] + bias[width:]
    return gate / (1 + np.exp(-gate)) * values


def patches(images, size):
    """Flattened patches [B, N, P * P * C], row by row."""
    rows = []
    for top in range(0, images.shape[1], size):
        for left in range(0, images.shape[2], size):
            patch = images[:, top : top + size, left : left + size]
            rows.append(patch.reshape(len(images), -1))
    return np.stack(rows, 1)


def waves(model, position):
    """Half of a fixed position: sines, then cosines, of one coordinate."""
    count = model.width // 4
    steps = {"sincos2d": count - 1, "sincos2d_mae": count}[model.position_embedding]
    angles = [position / 10000 ** (j / steps) for j in range(count)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


def positions(model, w, name):
    """What is added to each token, [N, D]; zeros where nothing is."""
    rows, columns = model.grid
    prefix = model.prefix_tokens
    result = np.zeros((prefix + rows * columns, model.width))
    kind = model.position_embedding
    if kind == "learned_1d":
        embedding = w[f"{name}/embedding"][0]
        result[len(result) - len(embedding) :] = embedding
    elif kind not in ("none", "relative"):
        for y in range(rows):
            for x in range(columns):
                if kind == "learned_2d":
                    halves = w[f"{name}/columns"][0, 0, x], w[f"{name}/rows"][0, y, 0]
                else:
                    halves = waves(model, x), waves(model, y)
                result[prefix + y * columns + x] = np.concatenate(halves)
        if f"{name}/prefix" in w:
            result[:prefix] = w[f"{name}/prefix"][0]
    return result


def tokens(model, w, images):
    """Class token, registers and patches [B, N, D], without positions."""
    x = np.asarray(images, "float64")
    if model.resnet_blocks is not None:
        from numpy_resnet import stem

        x = stem(model, x, model.resnet_blocks)
    kernel = w["embedding/kernel"].reshape(-1, model.width)
    z = patches(x, model.patch_size) @ kernel + w.get("embedding/bias", 0)
    if model.patch_norm:
        z = norm(z, w, "patch_norm", model)
    for name in ("register_tokens/tokens", "class_token/token"):
        if name in w:
            token = np.broadcast_to(w[name], (len(z), *w[name].shape[1:]))
            z = np.concatenate([token, z], 1)
    return z


def encoder_block(z, w, block, model):
    """Equations (2) and (3)."""
    if model.branches > 1:
        return branched_block(z, w, block, model)
    scale = [w.get(f"{block}/layer_scale{i}/gamma", 1.0) for i in (1, 2)]
    if model.post_norm:  # arXiv:2111.09883, figure 1
        branch = attention(z, w, f"{block}/attention", model)
        z = z + scale[0] * norm(branch, w, f"{block}/norm1", model)
        branch = block_mlp(z, w, f"{block}/mlp", model)
        return z + scale[1] * norm(branch, w, f"{block}/norm2", model)
    normalized = norm(z, w, f"{block}/norm1", model)
    if model.parallel:  # arXiv:2302.05442, section 2
        branch = attention(normalized, w, f"{block}/attention", model)
        branch = branch + block_mlp(normalized, w, f"{block}/mlp", model)
        return z + scale[0] * branch
    z = z + scale[0] * attention(normalized, w, f"{block}/attention", model)
    normalized = norm(z, w, f"{block}/norm2", model)
    return z + scale[1] * block_mlp(normalized, w, f"{block}/mlp", model)


def branched_block(z, w, block, model):
    """arXiv:2203.09795, equation (2)."""
    names = [block, *(f"{block}/branch_{n}" for n in range(1, model.branches))]
    for norm_name, part, scale, function in (
        ("norm1", "attention", "layer_scale1", attention),
        ("norm2", "mlp", "layer_scale2", block_mlp),
    ):
        z = z + sum(
            w.get(f"{name}/{scale}/gamma", 1.0)
            * function(
                norm(z, w, f"{name}/{norm_name}", model), w, f"{name}/{part}", model
            )
            for name in names
        )
    return z


def axial_block(z, w, block, model):
    """Appendix D.6: one row after the other, then one column after the other."""
    z = z.reshape(len(z), *model.grid, -1).copy()
    for y in range(model.grid[0]):
        z[:, y] = encoder_block(z[:, y], w, f"{block}/rows", model)
    for x in range(model.grid[1]):
        z[:, :, x] = encoder_block(z[:, :, x], w, f"{block}/columns", model)
    return z.reshape(len(z), -1, model.width)


def encoder(model, images):
    """What each block is given and what it gives."""
    w = weights_of(model)
    block = axial_block if model.attention == "axial" else encoder_block
    z, states = tokens(model, w, images), []
    if model.position_placement == "stem":
        z = z + positions(model, w, "position_embedding")  # (1)
    if model.embedding_norm:
        z = norm(z, w, "embedding_norm", model)
    for index in range(model.depth):
        if model.position_placement == "every_layer":
            z = z + positions(model, w, f"position_embedding_{index}")
        elif model.position_placement == "shared":
            z = z + positions(model, w, "position_embedding")
        states.append((z, block(z, w, f"encoder_block_{index}", model)))
        z = states[-1][1]
    return states


def normalized_tokens(model, images, w):
    """The last block's output, normalized where the final norm precedes the pooling."""
    z = encoder(model, images)[-1][1]
    if model.final_norm and not model.fc_norm:
        z = norm(z, w, "encoder_norm", model)
    return z


def forward(model, images):
    """The model's output for pixels in [-1, 1]."""
    w = weights_of(model)
    z = normalized_tokens(model, images, w)
    if model.pooling is None:
        return z
    if model.distilled:
        scores = [
            head(z[:, i], w, model, n) for i, n in enumerate(("head", "head_dist"))
        ]
        return sum(scores) / 2
    return head(pool(z, w, model), w, model, "head")  # (4)


def head(y, w, model, name):
    """From pooled features to the output."""
    if model.fc_norm:
        y = norm(y, w, "fc_norm", model)
    if model.projection is not None:
        y = dense(y, w, "projection")
    if model.representation_size is not None:
        y = np.tanh(dense(y, w, "pre_logits"))
    return y if model.classes is None else dense(y, w, name)


def pool(z, w, model):
    """One vector for each image, by the model's pooling; registers take no part."""
    class_token = z[:, : int(model.class_token)]
    patch_tokens = z[:, model.prefix_tokens :]
    if model.pooling == "token":
        return class_token[:, 0]
    if model.pooling == "avg":
        return patch_tokens.mean(1)
    z = np.concatenate([class_token, patch_tokens], 1)
    probe = np.broadcast_to(w["attention_pooling/probe"], (len(z), 1, z.shape[-1]))
    y = attention(z, w, "attention_pooling/attention", model, probe)
    if model.pooling == "query":
        return y[:, 0]
    normalized = layer_norm(y, w, "attention_pooling/norm", model.norm_epsilon)
    return (y + mlp(normalized, w, "attention_pooling/mlp", model.gelu))[:, 0]


def check_outputs(model, images, source=None, atol=1e-5):
    """The model computes the equations, with its weights or with those of another."""
    expected = forward(source or model, images)
    np.testing.assert_allclose(numpy(model(images)), expected, rtol=0, atol=atol)


def block_weights(model, images):
    """Attention weights [B, A, N, N] of each block."""
    w, found = weights_of(model), []
    for index, (z, _) in enumerate(encoder(model, images)):
        block = f"encoder_block_{index}"
        if not model.post_norm:
            z = norm(z, w, f"{block}/norm1", model)
        found.append(attention_weights(z, w, f"{block}/attention", model))
    return found


def pooling_weights(model, images):
    """Attention weights [B, A, 1, N] of the pooling for class token and patches."""
    w = weights_of(model)
    z = normalized_tokens(model, images, w)
    z = np.concatenate([z[:, : int(model.class_token)], z[:, model.prefix_tokens :]], 1)
    probe = np.broadcast_to(w["attention_pooling/probe"], (len(z), 1, z.shape[-1]))
    return attention_weights(z, w, "attention_pooling/attention", model, probe)


def rollout(model, images):
    """arXiv:2005.00928, equation 1, from the first block up: [B, H / P, W / P]."""
    prefix, patches = model.prefix_tokens, math.prod(model.grid)
    product = np.eye(prefix + patches)
    for weights in block_weights(model, images):
        mixed = weights.mean(1) + np.eye(weights.shape[-1])
        product = mixed / mixed.sum(-1, keepdims=True) @ product
    if model.pooling == "token":
        row = product[:, 0]
    elif model.pooling == "avg":
        row = product[:, prefix:].mean(1)
    else:
        read = [*range(model.class_token), *range(prefix, prefix + patches)]
        row = (pooling_weights(model, images).mean(1) @ product[:, read])[:, 0]
    shares = row[:, prefix:].reshape(-1, *model.grid)
    return shares / shares.sum((1, 2), keepdims=True)
