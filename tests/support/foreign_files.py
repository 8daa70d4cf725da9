"""Writes a model of ours as files of other projects, by hand.

Each function that takes a model and a folder writes what a family's code would, and
returns the path to load.
"""

import importlib.util
import json
import struct

import foreign_weights as foreign
import h5py
import numpy as np
import pytest
from tiny_model import numpy

from keras_vit.weights.checkpoint import open_checkpoint
from keras_vit.weights.config import model_arguments
from keras_vit.weights.reading import open_arrays

SAFETENSORS_TYPES = {
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "int32": "I32",
}
# What a file's arrays show, or its config states.
TOLD = (
    *("patch_size", "width", "depth", "mlp_dim", "heads", "classes", "pooling", "gelu"),
    *("norm_epsilon", "register_tokens", "image_size", "qk_norm", "fc_norm", "swiglu"),
    *("resnet_blocks", "representation_size", "class_token", "prefix_positions"),
)


def needs(package):
    """The mark of a test that another project's package must be installed for."""
    found = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not found, reason=f"{package} is not installed")


def arrays_of(model):
    return {weight.path: numpy(weight) for weight in model.weights}


def check_unmoved(model, before):
    """Not one weight of the model has changed, bit by bit."""
    for path, weight in arrays_of(model).items():
        assert weight.tobytes() == before[path].tobytes(), path


def check_same_weights(model, source, *changed):
    """The weights are the source's, bit by bit, but for those at these paths."""
    expected = arrays_of(source)
    for path, weight in arrays_of(model).items():
        if path not in changed:
            assert weight.tobytes() == expected[path].tobytes(), path


def read_arrays(path):
    """Every array of a file, verified."""
    with open_arrays(path) as file:
        for stored in file.arrays.values():
            stored.verify()
        return {name: stored.read() for name, stored in file.arrays.items()}


def check_same_arrays(found, arrays):
    """The arrays have the same names, types, shapes and bits."""
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes(), name


def check_same_options(model, source):
    """The models have the same options, but for those that training alone reads."""
    for name in TOLD:
        assert getattr(model, name) == getattr(source, name), name


def arguments_of(path):
    """The arguments of the model that a file describes."""
    with open_checkpoint(path) as checkpoint:
        return model_arguments(checkpoint)


def edit(path, **changes):
    """Change values of a JSON document; a dictionary's one by one."""
    document = json.loads(path.read_text())
    for key, value in changes.items():
        if isinstance(value, dict):
            document.setdefault(key, {}).update(value)
        else:
            document[key] = value
    path.write_text(json.dumps(document))


def write_npz(path, arrays):
    np.savez(path, **arrays)
    return path


def google(model, folder):
    return write_npz(folder / "g.npz", foreign.google(arrays_of(model), model.heads))


def big_vision(model, folder):
    arrays = foreign.big_vision(arrays_of(model), model.heads)
    return write_npz(folder / "b.npz", arrays)


def timm(model, folder, **config):
    """`model_args` are the model's, and what the caller adds; None takes away."""
    hidden = model.mlp_dim * (1 + model.swiglu)
    mapped = model.pooling == "map"
    arguments = {
        "img_size": list(model.image_size),
        "patch_size": model.patch_size,
        "embed_dim": model.width,
        "depth": model.depth,
        "num_heads": model.heads,
        "mlp_ratio": (hidden + 0.5) / model.width,
        "class_token": model.class_token,
        "reg_tokens": model.register_tokens,
        "no_embed_class": not model.prefix_positions,
        "global_pool": model.pooling or "",
        "pool_include_prefix": (mapped and model.class_token) or None,
        "fc_norm": model.fc_norm,
        "qk_norm": model.qk_norm,
        "init_values": model.layer_scale or 0,
        "act_layer": "silu" if model.swiglu else None,
        "num_classes": model.classes or 0,
    }
    given = config.pop("model_args", {})
    gated = "vit_giant_patch14_dinov2"  # of which alone the config says SwiGLU
    plain = "vit_base_patch16_224"
    config.setdefault("architecture", gated if model.swiglu else plain)
    arguments = {**arguments, **given}
    config["model_args"] = {k: v for k, v in arguments.items() if v is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return write_safetensors(
        folder / "model.safetensors", foreign.timm(arrays_of(model))
    )


def transformers_config(model):
    """What the configs of transformers' ViTs have in common."""
    height, width = model.image_size
    config = {
        "image_size": height if height == width else [height, width],
        "patch_size": model.patch_size,
        "hidden_size": model.width,
        "num_hidden_layers": model.depth,
        "num_attention_heads": model.heads,
        "num_channels": model.channels,
        "layer_norm_eps": model.norm_epsilon,
    }
    if model.classes is not None:
        config["architectures"] = ["ViTForImageClassification"]
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(model.classes)}
    return config


def hugging_face(model, folder, release=4, **config):
    usual = {**transformers_config(model), "intermediate_size": model.mlp_dim}
    config = {**usual, "model_type": "vit", **config}
    (folder / "config.json").write_text(json.dumps(config))
    arrays = foreign.hugging_face(arrays_of(model), release)
    return write_safetensors(folder / "model.safetensors", arrays)


def hugging_face_dinov2(model, folder, release=4, **config):
    registers = model.register_tokens
    usual = {
        **transformers_config(model),
        "model_type": "dinov2_with_registers" if registers else "dinov2",
        "architectures": ["Dinov2Model"],
        "use_swiglu_ffn": model.swiglu,
        "mlp_ratio": _dinov2_ratio(model),
    }
    if registers:
        usual["num_register_tokens"] = registers
    (folder / "config.json").write_text(json.dumps({**usual, **config}))
    arrays = foreign.hugging_face_dinov2(arrays_of(model), release)
    return write_safetensors(folder / "model.safetensors", arrays)


def _dinov2_ratio(model):
    """The ratio for which DINOv2's class makes an MLP of the model's width."""
    if not model.swiglu:
        return (model.mlp_dim + 0.5) / model.width
    return (model.mlp_dim * 3 / 2 + 0.5) / model.width


def keras_hub(model, folder):
    backbone, head = foreign.keras_hub(arrays_of(model), model.heads)
    write_hdf5(folder / "model.weights.h5", backbone)
    write_hdf5(folder / "task.weights.h5", head)
    config = {
        "image_shape": [*model.image_size, 3],
        "patch_size": model.patch_size,
        "hidden_dim": model.width,
        "num_layers": model.depth,
        "num_heads": model.heads,
        "mlp_dim": model.mlp_dim,
        "use_mha_bias": model.query_bias,
    }
    backbone = {
        "registered_name": "keras_hub>ViTBackbone",
        "class_name": "ViTBackbone",
        "config": config,
    }
    (folder / "config.json").write_text(json.dumps(backbone))
    task = {
        "pooling": {"token": "token", "avg": "gap"}[model.pooling],
        "num_classes": model.classes,
    }
    (folder / "task.json").write_text(json.dumps({"config": task}))
    return folder


def write_safetensors(path, arrays):
    """The format by its specification."""
    header, offset = {}, 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": SAFETENSORS_TYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    data = [np.ascontiguousarray(array).tobytes() for array in arrays.values()]
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    return path


def write_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path
