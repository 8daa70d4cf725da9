"""A model's weights as the files of other projects have them, written by hand.

Each family is a function from weights by our path to arrays by the family's name. It is
written from descriptions of the files, without the tables of `keras_vit.weights`.
"""

import re

import numpy as np

Q, K, V = "query", "key", "value"


def depth(w) -> int:
    return 1 + max(int(m[1]) for p in w if (m := re.match(r"encoder_block_(\d+)/", p)))


def put(arrays, names, values):
    """Arrays under their names; those that the model lacks are left out."""
    for name, value in zip(names, values, strict=True):
        if value is not None:
            arrays[name] = value


def flax_attention(arrays, w, ours, theirs, heads):
    for part in (Q, K, V):
        kernel, bias = w[f"{ours}/{part}/kernel"], w.get(f"{ours}/{part}/bias")
        arrays[f"{theirs}/{part}/kernel"] = kernel.reshape(len(kernel), heads, -1)
        if bias is not None:
            arrays[f"{theirs}/{part}/bias"] = bias.reshape(heads, -1)
    kernel = w[f"{ours}/out/kernel"]
    arrays[f"{theirs}/out/kernel"] = kernel.reshape(heads, -1, kernel.shape[1])
    put(arrays, [f"{theirs}/out/bias"], [w.get(f"{ours}/out/bias")])


def flax_norm(arrays, w, ours, theirs):
    arrays[f"{theirs}/scale"] = w[f"{ours}/gamma"]
    arrays[f"{theirs}/bias"] = w[f"{ours}/beta"]


def flax_mlp(arrays, w, ours, theirs):
    for layer in ("Dense_0", "Dense_1"):
        for part in ("kernel", "bias"):
            arrays[f"{theirs}/{layer}/{part}"] = w[f"{ours}/{layer}/{part}"]


def flax(w, heads, attention, norm, mlp):
    """What the paper's files and big_vision's share."""
    arrays = {}
    for i in range(depth(w)):
        ours, theirs = f"encoder_block_{i}", f"Transformer/encoderblock_{i}"
        flax_norm(arrays, w, f"{ours}/norm1", f"{theirs}/LayerNorm_0")
        name = f"{theirs}/MultiHeadDotProductAttention_{attention}"
        flax_attention(arrays, w, f"{ours}/attention", name, heads)
        flax_norm(arrays, w, f"{ours}/norm2", f"{theirs}/LayerNorm_{norm}")
        flax_mlp(arrays, w, f"{ours}/mlp", f"{theirs}/MlpBlock_{mlp}")
    flax_norm(arrays, w, "encoder_norm", "Transformer/encoder_norm")
    for layer in ("embedding", "pre_logits", "head"):
        names = [f"{layer}/kernel", f"{layer}/bias"]
        put(arrays, names, [w.get(name) for name in names])
    put(arrays, ["cls"], [w.get("class_token/token")])
    return arrays


def google(w, heads):
    """The paper's, AugReg's and SAM's files, and the hybrids'."""
    arrays = flax(w, heads, 1, 2, 3)
    name = "Transformer/posembed_input/pos_embedding"
    arrays[name] = w["position_embedding/embedding"]
    for path, value in w.items():
        if match := re.fullmatch(r"stage(\d)_unit(\d)/(\w+?)(\d|_proj)/(\w+)", path):
            stage, unit, kind, number, part = match.groups()
            theirs = f"block{stage}/unit{unit}"
        elif match := re.fullmatch(r"stem_(conv|norm)/(\w+)", path):
            kind, number, part, theirs = match[1], "_root", match[2], ""
        else:
            continue
        if kind == "conv":
            arrays[f"{theirs}/conv{number}/kernel".lstrip("/")] = value
        else:
            part = {"gamma": "scale", "beta": "bias"}[part]
            arrays[f"{theirs}/gn{number}/{part}".lstrip("/")] = value[None, None, None]
    return arrays


def big_vision(w, heads):
    arrays = flax(w, heads, 0, 1, 0)
    put(arrays, ["pos_embedding"], [w.get("position_embedding/embedding")])
    if "attention_pooling/probe" in w:
        ours, theirs = "attention_pooling", "MAPHead_0"
        arrays[f"{theirs}/probe"] = w[f"{ours}/probe"]
        name = f"{theirs}/MultiHeadDotProductAttention_0"
        flax_attention(arrays, w, f"{ours}/attention", name, heads)
        flax_norm(arrays, w, f"{ours}/norm", f"{theirs}/LayerNorm_0")
        flax_mlp(arrays, w, f"{ours}/mlp", f"{theirs}/MlpBlock_0")
    return arrays


def bit(w):
    arrays = {
        "resnet/root_block/standardized_conv2d/kernel": w["stem_conv/kernel"],
        "resnet/group_norm/gamma": w["final_norm/gamma"],
        "resnet/group_norm/beta": w["final_norm/beta"],
        "resnet/head/conv2d/kernel": w["head/kernel"][None, None],
        "resnet/head/conv2d/bias": w["head/bias"],
    }
    for path, value in w.items():
        match = re.fullmatch(r"stage(\d)_unit(\d)/(conv|norm)(\d|_proj)/(\w+)", path)
        if match is None:
            continue
        stage, unit, kind, number, part = match.groups()
        letter = {"1": "a", "2": "b", "3": "c", "_proj": "a/proj"}[number]
        theirs = f"resnet/block{stage}/unit0{unit}/{letter}"
        if kind == "conv":
            arrays[f"{theirs}/standardized_conv2d/kernel"] = value
        else:
            arrays[f"{theirs}/group_norm/{part}"] = value
    return arrays


def torch_linear(arrays, w, ours, theirs):
    if f"{ours}/kernel" in w:
        arrays[f"{theirs}.weight"] = w[f"{ours}/kernel"].T
        arrays[f"{theirs}.bias"] = w[f"{ours}/bias"]


def torch_norm(arrays, w, ours, theirs):
    if f"{ours}/gamma" in w:
        arrays[f"{theirs}.weight"] = w[f"{ours}/gamma"]
        arrays[f"{theirs}.bias"] = w[f"{ours}/beta"]


def torch_convolution(arrays, w, ours, theirs):
    arrays[f"{theirs}.weight"] = w[f"{ours}/kernel"].transpose(3, 2, 0, 1)
    arrays[f"{theirs}.bias"] = w[f"{ours}/bias"]


def together(arrays, w, ours, parts, theirs):
    """Several linear layers as one with all their outputs."""
    kernels = [w[f"{ours}/{part}/kernel"].T for part in parts]
    arrays[f"{theirs}.weight"] = np.concatenate(kernels, axis=0)
    biases = [w[f"{ours}/{part}/bias"] for part in parts]
    arrays[f"{theirs}.bias"] = np.concatenate(biases)


def timm(w):
    """timm's ViT; query, key and value are one."""
    arrays = {}
    torch_convolution(arrays, w, "embedding", "patch_embed.proj")
    names = ["cls_token", "reg_token", "pos_embed"]
    paths = [
        "class_token/token",
        "register_tokens/tokens",
        "position_embedding/embedding",
    ]
    put(arrays, names, [w.get(path) for path in paths])
    for i in range(depth(w)):
        ours, theirs = f"encoder_block_{i}", f"blocks.{i}"
        torch_norm(arrays, w, f"{ours}/norm1", f"{theirs}.norm1")
        together(arrays, w, f"{ours}/attention", (Q, K, V), f"{theirs}.attn.qkv")
        torch_norm(arrays, w, f"{ours}/attention/query_norm", f"{theirs}.attn.q_norm")
        torch_norm(arrays, w, f"{ours}/attention/key_norm", f"{theirs}.attn.k_norm")
        torch_linear(arrays, w, f"{ours}/attention/out", f"{theirs}.attn.proj")
        torch_norm(arrays, w, f"{ours}/norm2", f"{theirs}.norm2")
        torch_linear(arrays, w, f"{ours}/mlp/Dense_0", f"{theirs}.mlp.fc1")
        torch_linear(arrays, w, f"{ours}/mlp/Dense_1", f"{theirs}.mlp.fc2")
        names = [f"{theirs}.ls1.gamma", f"{theirs}.ls2.gamma"]
        paths = [f"{ours}/layer_scale1/gamma", f"{ours}/layer_scale2/gamma"]
        put(arrays, names, [w.get(path) for path in paths])
    torch_norm(arrays, w, "encoder_norm", "norm")
    torch_norm(arrays, w, "fc_norm", "fc_norm")
    torch_linear(arrays, w, "head", "head")
    if "attention_pooling/probe" in w:
        ours = "attention_pooling"
        arrays["attn_pool.latent"] = w[f"{ours}/probe"]
        torch_linear(arrays, w, f"{ours}/attention/query", "attn_pool.q")
        together(arrays, w, f"{ours}/attention", (K, V), "attn_pool.kv")
        torch_linear(arrays, w, f"{ours}/attention/out", "attn_pool.proj")
        torch_norm(arrays, w, f"{ours}/norm", "attn_pool.norm")
        torch_linear(arrays, w, f"{ours}/mlp/Dense_0", "attn_pool.mlp.fc1")
        torch_linear(arrays, w, f"{ours}/mlp/Dense_1", "attn_pool.mlp.fc2")
    return arrays


def hugging_face_attention(arrays, w, ours, theirs, release):
    names = {
        4: ("attention.query", "attention.key", "attention.value", "output.dense"),
        5: ("q_proj", "k_proj", "v_proj", "o_proj"),
    }
    for part, name in zip((Q, K, V, "out"), names[release], strict=True):
        name = f"{theirs}.attention.{name}"
        torch_linear(arrays, w, f"{ours}/attention/{part}", name)


def hugging_face(w, release=4):
    """A bare model, or with a classifier the model under `vit.`, as on disk.

    Release 5 has other names in memory, and files of state dicts may have them.
    """
    arrays = {}
    torch_convolution(arrays, w, "embedding", "embeddings.patch_embeddings.projection")
    names = ["embeddings.cls_token", "embeddings.position_embeddings"]
    paths = ["class_token/token", "position_embedding/embedding"]
    put(arrays, names, [w[path] for path in paths])
    if release == 4:
        layers, fc1, fc2 = "encoder.layer", "intermediate.dense", "output.dense"
    else:
        layers, fc1, fc2 = "layers", "mlp.fc1", "mlp.fc2"
    for i in range(depth(w)):
        ours, theirs = f"encoder_block_{i}", f"{layers}.{i}"
        torch_norm(arrays, w, f"{ours}/norm1", f"{theirs}.layernorm_before")
        hugging_face_attention(arrays, w, ours, theirs, release)
        torch_norm(arrays, w, f"{ours}/norm2", f"{theirs}.layernorm_after")
        torch_linear(arrays, w, f"{ours}/mlp/Dense_0", f"{theirs}.{fc1}")
        torch_linear(arrays, w, f"{ours}/mlp/Dense_1", f"{theirs}.{fc2}")
    torch_norm(arrays, w, "encoder_norm", "layernorm")
    torch_linear(arrays, w, "pre_logits", "pooler.dense")
    if "head/kernel" in w:
        arrays = {f"vit.{name}": array for name, array in arrays.items()}
        torch_linear(arrays, w, "head", "classifier")
    return arrays


def hugging_face_dinov2(w, release=4):
    """A bare DINOv2, as on disk, or with release 5's names in memory.

    Registers have no position, the class token has: half of ours is its position here
    where our model keeps it in the token.
    """
    arrays = {"embeddings.mask_token": np.full_like(w["embedding/bias"][None], 9)}
    torch_convolution(arrays, w, "embedding", "embeddings.patch_embeddings.projection")
    token, positions = w["class_token/token"], w["position_embedding/embedding"]
    if "register_tokens/tokens" in w:
        arrays["embeddings.register_tokens"] = w["register_tokens/tokens"]
        token = token / 2
        positions = np.concatenate([token, positions], axis=1)
    arrays["embeddings.cls_token"] = token
    arrays["embeddings.position_embeddings"] = positions
    for i in range(depth(w)):
        ours, theirs = f"encoder_block_{i}", f"encoder.layer.{i}"
        hugging_face_attention(arrays, w, ours, theirs, release)
        for number in (1, 2):
            torch_norm(arrays, w, f"{ours}/norm{number}", f"{theirs}.norm{number}")
            scale = w[f"{ours}/layer_scale{number}/gamma"]
            arrays[f"{theirs}.layer_scale{number}.lambda1"] = scale
        hidden, inputs = (
            w[f"{ours}/mlp/Dense_0/kernel"],
            w[f"{ours}/mlp/Dense_1/kernel"],
        )
        gated = hidden.shape[1] == 2 * inputs.shape[0]
        names = ("weights_in", "weights_out") if gated else ("fc1", "fc2")
        torch_linear(arrays, w, f"{ours}/mlp/Dense_0", f"{theirs}.mlp.{names[0]}")
        torch_linear(arrays, w, f"{ours}/mlp/Dense_1", f"{theirs}.mlp.{names[1]}")
    torch_norm(arrays, w, "encoder_norm", "layernorm")
    return arrays


def meta_block(arrays, w, i):
    """What Meta's blocks of DINOv2 and DINOv3 have in common, but for their biases."""
    ours, theirs = f"encoder_block_{i}", f"blocks.{i}"
    for number in (1, 2):
        torch_norm(arrays, w, f"{ours}/norm{number}", f"{theirs}.norm{number}")
        scale = w[f"{ours}/layer_scale{number}/gamma"]
        arrays[f"{theirs}.ls{number}.gamma"] = scale
    kernels = [w[f"{ours}/attention/{part}/kernel"].T for part in (Q, K, V)]
    arrays[f"{theirs}.attn.qkv.weight"] = np.concatenate(kernels)
    torch_linear(arrays, w, f"{ours}/attention/out", f"{theirs}.attn.proj")
    hidden, bias = (w[f"{ours}/mlp/Dense_0/{part}"] for part in ("kernel", "bias"))
    gated = hidden.shape[1] == 2 * w[f"{ours}/mlp/Dense_1/kernel"].shape[0]
    last = "mlp.w3" if gated else "mlp.fc2"
    torch_linear(arrays, w, f"{ours}/mlp/Dense_1", f"{theirs}.{last}")
    return f"{theirs}.", hidden.T, bias, gated


def meta_dinov2(w):
    """Meta's DINOv2: as Hugging Face's, the class token has a position."""
    arrays = {"mask_token": np.full_like(w["embedding/bias"][None], 9)}
    torch_convolution(arrays, w, "embedding", "patch_embed.proj")
    flat = hugging_face_dinov2(w)
    names = ("cls_token", "register_tokens", "position_embeddings")
    values = [flat.get(f"embeddings.{name}") for name in names]
    put(arrays, ["cls_token", "register_tokens", "pos_embed"], values)
    for i in range(depth(w)):
        theirs, hidden, bias, gated = meta_block(arrays, w, i)
        first = "mlp.w12" if gated else "mlp.fc1"
        put(
            arrays, [f"{theirs}{first}.weight", f"{theirs}{first}.bias"], [hidden, bias]
        )
        biases = [w[f"encoder_block_{i}/attention/{part}/bias"] for part in (Q, K, V)]
        arrays[f"{theirs}attn.qkv.bias"] = np.concatenate(biases)
    torch_norm(arrays, w, "encoder_norm", "norm")
    return arrays


def meta_dinov3(w, heads, base=100.0):
    """Meta's DINOv3: a mask takes the keys' bias away, which is 9 here."""
    width = len(w["embedding/bias"])
    periods = width // heads // 4
    arrays = {
        "cls_token": w["class_token/token"],
        "storage_tokens": w["register_tokens/tokens"],
        "mask_token": np.full((1, width), 9, "float32"),
        "rope_embed.periods": np.float32(base) ** (np.arange(periods) / periods),
    }
    torch_convolution(arrays, w, "embedding", "patch_embed.proj")
    for i in range(depth(w)):
        theirs, hidden, bias, gated = meta_block(arrays, w, i)
        parts = ("mlp.w1", "mlp.w2") if gated else ("mlp.fc1",)
        halves = zip(
            *(np.split(each, len(parts)) for each in (hidden, bias)), strict=True
        )
        for part, values in zip(parts, halves, strict=True):
            put(arrays, [f"{theirs}{part}.weight", f"{theirs}{part}.bias"], values)
        place = f"encoder_block_{i}/attention"
        if f"{place}/query/bias" in w:
            nine = np.full(width, 9, "float32")
            biases = [w.get(f"{place}/{part}/bias", nine) for part in (Q, K, V)]
            arrays[f"{theirs}attn.qkv.bias"] = np.concatenate(biases)
            mask = np.repeat(np.float32([1, f"{place}/key/bias" in w, 1]), width)
            arrays[f"{theirs}attn.qkv.bias_mask"] = mask
    torch_norm(arrays, w, "encoder_norm", "norm")
    return {name: np.asarray(value, "float32") for name, value in arrays.items()}


def keras_hub(w, heads):
    """(backbone, head) of a preset, as HDF5 names them."""
    flat = google(w, heads)
    theirs = "layers/vi_t_patching_and_embedding"
    arrays = {
        f"{theirs}/patch_embedding/vars/0": flat["embedding/kernel"],
        f"{theirs}/patch_embedding/vars/1": flat["embedding/bias"],
        f"{theirs}/position_embedding/vars/0": w["position_embedding/embedding"][0],
        f"{theirs}/vars/0": flat["cls"],
    }
    modules = {
        "LayerNorm_0/": "layer_norm_1/",
        "LayerNorm_2/": "layer_norm_2/",
        "MlpBlock_3/Dense_0/": "mlp/dense_1/",
        "MlpBlock_3/Dense_1/": "mlp/dense_2/",
        "MultiHeadDotProductAttention_1/query/": "mha/query_dense/",
        "MultiHeadDotProductAttention_1/key/": "mha/key_dense/",
        "MultiHeadDotProductAttention_1/value/": "mha/value_dense/",
        "MultiHeadDotProductAttention_1/out/": "mha/output_dense/",
    }
    encoder = "layers/vi_t_encoder"
    for i in range(depth(w)):
        number = "" if i == 0 else f"_{i}"
        for module, name in modules.items():
            block = f"{encoder}/encoder_layers/vi_t_encoder_block{number}/{name}"
            source = f"Transformer/encoderblock_{i}/{module}"
            norm = "LayerNorm" in module
            arrays[f"{block}vars/0"] = flat[source + ("scale" if norm else "kernel")]
            put(arrays, [f"{block}vars/1"], [flat.get(source + "bias")])
    arrays[f"{encoder}/layer_norm/vars/0"] = w["encoder_norm/gamma"]
    arrays[f"{encoder}/layer_norm/vars/1"] = w["encoder_norm/beta"]
    dense = [layer for layer in ("pre_logits", "head") if f"{layer}/kernel" in w]
    head = {"optimizer/vars/0": np.int64(5), "optimizer/vars/1": np.float32(0.1)}
    for number, layer in zip(("", "_1"), dense, strict=False):
        head[f"layers/dense{number}/vars/0"] = w[f"{layer}/kernel"]
        head[f"layers/dense{number}/vars/1"] = w[f"{layer}/bias"]
    return arrays, head
