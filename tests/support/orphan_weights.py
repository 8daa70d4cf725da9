"""A model's weights as the files of archived TensorFlow projects have them, by hand.

Written from the projects' own files (orphans.py), without the tables of
`keras_vit.weights`; `make orphans` holds the two equal.
"""

import json

import h5py
from foreign_files import arrays_of, write_hdf5
from foreign_weights import depth


def renamed(w, layers, place):
    """Arrays of layers, or of weights alone, without those that the model lacks."""
    arrays = {}
    for ours, theirs in layers:
        for path, value in w.items():
            if path == ours or path.rpartition("/")[0] == ours:
                arrays[place(theirs + path.removeprefix(ours))] = value
    return arrays


def in_blocks(w, theirs, layers):
    """The same layers of each block."""
    return [
        (f"encoder_block_{i}/{ours}", f"{theirs.format(i=i)}/{name}")
        for i in range(depth(w))
        for ours, name in layers.items()
    ]


def hugging_face_tf(w, layer="vit", kind="vi_t"):
    """tf_model.h5 of TFViTModel, TFViTForImageClassification and their relatives."""
    table = "relative_position_bias/relative_position_bias_table"
    head = "for_image_classification" if "head/kernel" in w else "model"
    layers = [
        ("embedding", "embeddings/patch_embeddings/projection"),
        ("class_token/token", "embeddings/cls_token"),
        ("register_tokens/tokens", "embeddings/distillation_token"),
        ("position_embedding/embedding", "embeddings/position_embeddings"),
        *in_blocks(
            w,
            "encoder/layer_._{i}",
            {
                "attention/query": "attention/attention/query",
                "attention/key": "attention/attention/key",
                "attention/value": "attention/attention/value",
                "attention/out": "attention/output/dense",
                "attention/relative_bias": f"attention/attention/{table}",
                "layer_scale1/gamma": "lambda_1",
                "layer_scale2/gamma": "lambda_2",
                "norm1": "layernorm_before",
                "norm2": "layernorm_after",
                "mlp/Dense_0": "intermediate/dense",
                "mlp/Dense_1": "output/dense",
            },
        ),
        ("relative_bias/table", f"encoder/{table}"),
        ("encoder_norm", "layernorm"),
        ("fc_norm", "pooler/layernorm"),
        ("pre_logits", "pooler/dense"),
    ]
    model = f"tf_{kind}_{head}"
    arrays = renamed(w, layers, lambda name: f"{layer}/{model}/{layer}/{name}:0")
    place = f"classifier/{model}/{{}}:0".format
    return arrays | renamed(w, [("head", "classifier")], place)


def deit_tf(w):
    return hugging_face_tf(w, "deit", "dei_t")


def data2vec_tf(w):
    return hugging_face_tf(w, "data2vec_vision", "data2_vec_vision")


def clip_tf(w):
    """The image tower's arrays in tf_model.h5 of TFCLIPModel, or TFCLIPVisionModel."""
    layers = [
        ("embedding", "embeddings/patch_embedding"),
        ("embedding_norm", "pre_layrnorm"),
        *in_blocks(
            w,
            "encoder/layers_._{i}",
            {
                "attention/query": "self_attn/q_proj",
                "attention/key": "self_attn/k_proj",
                "attention/value": "self_attn/v_proj",
                "attention/out": "self_attn/out_proj",
                "norm1": "layer_norm1",
                "norm2": "layer_norm2",
                "mlp/Dense_0": "mlp/fc1",
                "mlp/Dense_1": "mlp/fc2",
            },
        ),
        ("encoder_norm", "post_layernorm"),
    ]
    model = "tfclip_model" if "projection/kernel" in w else "tfclip_vision_model"
    tower = f"clip/{model}/clip/vision_model/{{}}:0".format
    position = w["position_embedding/embedding"][0]
    return {
        tower("embeddings/class_embedding"): w["class_token/token"][0, 0],
        tower("embeddings/position_embedding/embeddings"): position,
        **renamed(w, layers, tower),
        **renamed(
            w,
            [("projection", "visual_projection")],
            f"clip/{model}/clip/{{}}:0".format,
        ),
    }


def vit_keras(w, release=2, inside="", layer="{}"):
    """vit-keras's weights by the names of layers, as Keras 2 or Keras 3 writes them.

    Args:
        w: Weights by our paths.
        release: Of Keras.
        inside: Group in front of every name.
        layer: Name of the outermost layer, by that of the model's own.
    """
    attention, mlp = "MultiHeadDotProductAttention_1", ""
    transformer, suffix = "Transformer/", ":0"
    if release == 3:
        transformer, suffix = "Transformer_", ""
        mlp = "MlpBlock_3/Transformer_encoderblock_{i}_"
    groups = {
        "embedding": [("embedding", "")],
        "class_token": [("class_token/token", "/cls")],
        f"{transformer}posembed_input": [
            ("position_embedding/embedding", "/pos_embedding")
        ],
        f"{transformer}encoder_norm": [("encoder_norm", "")],
        "pre_logits": [("pre_logits", "")],
        "head": [("head", "")],
    }
    for i in range(depth(w)):
        groups[f"{transformer}encoderblock_{i}"] = [
            (f"encoder_block_{i}/norm1", "/LayerNorm_0"),
            (f"encoder_block_{i}/norm2", "/LayerNorm_2"),
            *(
                (f"encoder_block_{i}/mlp/{name}", f"/{mlp.format(i=i)}{name}")
                for name in ("Dense_0", "Dense_1")
            ),
            *(
                (f"encoder_block_{i}/attention/{name}", f"/{attention}/{name}")
                for name in ("query", "key", "value", "out")
            ),
        ]
    arrays = {}
    for group, layers in groups.items():
        outer = f"{inside}{layer.format(group)}/{group}"
        place = f"{outer}{{}}{suffix}".format
        arrays |= renamed(w, layers, place)
    return arrays


def vit_keras_variables(w):
    """vit-keras's weights by the classes of layers, `.weights.h5` of Keras 2 and 3."""
    kinds = {"kernel": 0, "gamma": 0, "token": 0, "embedding": 0, "bias": 1, "beta": 1}
    dense = [layer for layer in ("pre_logits", "head") if f"{layer}/kernel" in w]
    layers = [
        ("embedding", "conv2d"),
        ("class_token", "class_token"),
        ("position_embedding", "add_position_embs"),
        ("encoder_norm", "layer_normalization"),
        *zip(dense, ("dense", "dense_1"), strict=False),
        *in_blocks(
            w,
            "transformer_block_{i}",
            {
                "attention/query": "att/query_dense",
                "attention/key": "att/key_dense",
                "attention/value": "att/value_dense",
                "attention/out": "att/combine_heads",
                "norm1": "layernorm1",
                "norm2": "layernorm2",
                "mlp/Dense_0": "mlpblock/layers/dense",
                "mlp/Dense_1": "mlpblock/layers/dense_1",
            },
        ),
    ]

    def place(name):
        layer, _, kind = name.rpartition("/")
        layer = layer.replace("transformer_block_0/", "transformer_block/")
        return f"layers/{layer}/vars/{kinds[kind]}"

    return renamed(w, layers, place)


def keras_cv(w, heads, made=0):
    """keras-cv's weights, where a program has made some such models before."""

    def numbered(name, number):
        return f"{name}_{number}" if number else name

    blocks = depth(w)
    patches = numbered("patching_and_embedding", made)
    norms, dense = made * (2 * blocks + 1), made * (2 * blocks + 1)
    layers = {
        "embedding": (patches, numbered("conv2d", made)),
        "encoder_norm": (numbered("layer_normalization", norms + 2 * blocks), ""),
        "head": (numbered("dense", dense + 2 * blocks), ""),
    }
    for i in range(blocks):
        ours, number = f"encoder_block_{i}", made * blocks + i
        theirs = numbered("transformer_encoder", number)
        attention = numbered("multi_head_attention", number)
        for j in (0, 1):
            norm = numbered("layer_normalization", norms + 2 * i + j)
            layers[f"{ours}/norm{j + 1}"] = theirs, norm
            layers[f"{ours}/mlp/Dense_{j}"] = (
                theirs,
                numbered("dense", dense + 2 * i + j),
            )
        for name in ("query", "key", "value", "out"):
            part = "attention_output" if name == "out" else name
            layers[f"{ours}/attention/{name}"] = theirs, f"{attention}/{part}"
    arrays = {
        f"{patches}/{patches}/class_token:0": w["class_token/token"],
        f"{patches}/{patches}/{numbered('embedding', made)}/embeddings:0": w[
            "position_embedding/embedding"
        ][0],
    }
    for path, value in w.items():
        layer, _, kind = path.rpartition("/")
        if layer not in layers:
            continue
        if layer.endswith("attention/out") and kind == "kernel":
            value = value.reshape(heads, -1, value.shape[-1])
        elif layer.endswith(("query", "key", "value")):
            value = value.reshape(*value.shape[:-1], heads, -1)
        outer, inner = layers[layer]
        arrays["/".join(filter(None, [outer, outer, inner, f"{kind}:0"]))] = value
    return arrays


def write_keras_cv(model, path, **changes):
    """A whole keras-cv model."""
    config = {
        "include_rescaling": True,
        "include_top": model.classes is not None,
        "name": "ViTB16",
        "input_shape": [*model.image_size, 3],
        "input_tensor": None,
        "pooling": None,
        "num_classes": model.classes,
        "patch_size": model.patch_size,
        "transformer_layer_num": model.depth,
        "num_heads": model.heads,
        "mlp_dropout": 0.1,
        "attention_dropout": 0.0,
        "activation": "gelu",
        "project_dim": model.width,
        "mlp_dim": model.mlp_dim,
        "classifier_activation": model.classifier_activation,
        "trainable": True,
        **changes,
    }
    arrays = keras_cv(arrays_of(model), model.heads)
    write_hdf5(path, {f"model_weights/{name}": a for name, a in arrays.items()})
    with h5py.File(path, "a") as file:
        whole = {"class_name": "ViT", "config": config}
        file.attrs["model_config"] = json.dumps(whole)
    return path


def write_vit_keras(model, path, release=2):
    """A whole vit-keras model, with those parts of its config that are read."""
    blocks = [
        {
            "class_name": "Custom>TransformerBlock",
            "config": {
                "name": f"Transformer/encoderblock_{i}",
                "num_heads": model.heads,
                "mlp_dim": model.mlp_dim,
            },
        }
        for i in range(model.depth)
    ]
    shape = [None, *model.image_size, 3]
    key = "batch_input_shape" if release == 2 else "batch_shape"
    head = {"name": "head", "activation": model.classifier_activation or "linear"}
    layers = [
        {"class_name": "InputLayer", "config": {"name": "input_1", key: shape}},
        {"class_name": "Custom>ClassToken", "config": {"name": "class_token"}},
        *blocks,
        {"class_name": "Dense", "config": head},
    ]
    config = {"class_name": "Functional", "config": {"name": "vit", "layers": layers}}
    write_hdf5(path, vit_keras(arrays_of(model), release, "model_weights/"))
    with h5py.File(path, "a") as file:
        file.attrs["model_config"] = json.dumps(config)
    return path
