"""The same weights give the same scores in timm, Hugging Face and keras-hub.

Needs `pip install "keras-vit[parity]"` (`make parity`); skipped without.
"""

import contextlib
import importlib.util

import numpy as np
import pytest

# PyTorch's libraries before TensorFlow's: the other order has crashed.
for name in ("torch", "timm", "transformers"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)

pytestmark = pytest.mark.parity

SIZE = {"image_size": 28, "patch_size": 7, "width": 24, "mlp_dim": 96, "heads": 3}


def needs(name):
    found = importlib.util.find_spec(name) is not None
    return pytest.mark.skipif(not found, reason=f"{name} is not installed")


@pytest.fixture
def model(tiny_vit):
    return tiny_vit(**SIZE, gelu="exact")


@pytest.fixture
def pixels():
    random = np.random.default_rng(6)
    return random.uniform(-1, 1, (3, 28, 28, 3)).astype("float32")


def weights_of(model):
    return {weight.path: weight.numpy() for weight in model.weights}


def torch_state(arrays):
    import torch

    return {name: torch.tensor(np.ascontiguousarray(a)) for name, a in arrays.items()}


def put(state, weights, ours, theirs):
    """One dense layer: Keras keeps [in, out], PyTorch [out, in]."""
    state[f"{theirs}.weight"] = weights[f"{ours}/kernel"].T
    state[f"{theirs}.bias"] = weights[f"{ours}/bias"]


def put_norm(state, weights, ours, theirs):
    state[f"{theirs}.weight"] = weights[f"{ours}/gamma"]
    state[f"{theirs}.bias"] = weights[f"{ours}/beta"]


def blocks(weights, depth, theirs, norms, out, mlp):
    """What timm and Hugging Face share: norms, output projection and MLP."""
    state = {}
    for i in range(depth):
        ours, block = f"encoder_block_{i}", f"{theirs}.{i}"
        put_norm(state, weights, f"{ours}/norm1", f"{block}.{norms[0]}")
        put_norm(state, weights, f"{ours}/norm2", f"{block}.{norms[1]}")
        put(state, weights, f"{ours}/attention/out", f"{block}.{out}")
        put(state, weights, f"{ours}/mlp/Dense_0", f"{block}.{mlp}.fc1")
        put(state, weights, f"{ours}/mlp/Dense_1", f"{block}.{mlp}.fc2")
    return state


def timm_twin(model):
    import timm

    w = weights_of(model)
    state = blocks(w, model.depth, "blocks", ("norm1", "norm2"), "attn.proj", "mlp")
    state["patch_embed.proj.weight"] = w["embedding/kernel"].transpose(3, 2, 0, 1)
    state["patch_embed.proj.bias"] = w["embedding/bias"]
    state["cls_token"] = w["class_token/token"]
    state["pos_embed"] = w["position_embedding/embedding"]
    for i in range(model.depth):
        names = ("query", "key", "value")
        parts = [f"encoder_block_{i}/attention/{name}" for name in names]
        state[f"blocks.{i}.attn.qkv.weight"] = np.concatenate(
            [w[f"{part}/kernel"].T for part in parts]
        )
        state[f"blocks.{i}.attn.qkv.bias"] = np.concatenate(
            [w[f"{part}/bias"] for part in parts]
        )
    put_norm(state, w, "encoder_norm", "norm")
    put(state, w, "head", "head")
    twin = timm.models.VisionTransformer(
        img_size=28,
        patch_size=7,
        embed_dim=24,
        depth=model.depth,
        num_heads=3,
        mlp_ratio=4,
        num_classes=7,
    )
    twin.load_state_dict(torch_state(state), strict=True)
    return twin.eval()


def torch_call(twin, pixels):
    import torch

    with torch.no_grad():
        return twin(torch.tensor(pixels.transpose(0, 3, 1, 2)))


@needs("timm")
def test_timm_gives_the_same_logits(model, pixels):
    expected = torch_call(timm_twin(model), pixels).numpy()
    np.testing.assert_allclose(model(pixels), expected, rtol=0, atol=2e-5)


@needs("timm")
def test_timm_keeps_the_activations_that_info_counts(model, pixels):
    """PyTorch's saved tensors, each storage once, against `training_bytes`."""
    import torch

    import keras_vit
    from keras_vit.costs import model_costs

    twin = timm_twin(model).train()
    for block in twin.blocks:
        block.attn.fused_attn = False
    weights = {p.untyped_storage().data_ptr() for p in twin.parameters()}
    saved = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = tensor, storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        twin(torch.tensor(pixels.transpose(0, 3, 1, 2)))
    measured = sum(nbytes for _, nbytes in saved.values()) / len(pixels)
    spec = keras_vit.ViTSpec(24, model.depth, 96, 3)
    counted = model_costs(spec, 7, 28, classes=7).training_bytes
    assert counted == pytest.approx(measured, rel=0.1)


@needs("transformers")
def test_hugging_face_gives_the_same_logits(model, pixels):
    import transformers

    w = weights_of(model)
    norms = ("layernorm_before", "layernorm_after")
    state = blocks(w, model.depth, "vit.layers", norms, "attention.o_proj", "mlp")
    projection = "vit.embeddings.patch_embeddings.projection"
    state[f"{projection}.weight"] = w["embedding/kernel"].transpose(3, 2, 0, 1)
    state[f"{projection}.bias"] = w["embedding/bias"]
    state["vit.embeddings.cls_token"] = w["class_token/token"]
    state["vit.embeddings.position_embeddings"] = w["position_embedding/embedding"]
    for i in range(model.depth):
        for name in ("query", "key", "value"):
            theirs = f"vit.layers.{i}.attention.{name[0]}_proj"
            put(state, w, f"encoder_block_{i}/attention/{name}", theirs)
    put_norm(state, w, "encoder_norm", "vit.layernorm")
    put(state, w, "head", "classifier")
    twin = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=24,
            num_hidden_layers=model.depth,
            num_attention_heads=3,
            intermediate_size=96,
            image_size=28,
            patch_size=7,
            num_labels=7,
            layer_norm_eps=1e-6,
        )
    ).eval()
    twin.load_state_dict(torch_state(state), strict=True)
    expected = torch_call(twin, pixels).logits.numpy()
    np.testing.assert_allclose(model(pixels), expected, rtol=0, atol=2e-5)


@needs("keras_hub")
def test_keras_hub_gives_the_same_logits(model, pixels):
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(28, 28, 3),
        patch_size=7,
        num_layers=model.depth,
        num_heads=3,
        hidden_dim=24,
        mlp_dim=96,
    )
    twin = keras_hub.models.ViTImageClassifier(
        backbone=backbone, num_classes=7, preprocessor=None
    )
    kernel, bias, token, *rest = model.get_weights()
    # The same order but for the class token; attention split into heads.
    ours = zip(twin.weights, [token, kernel, bias, *rest], strict=True)
    twin.set_weights([array.reshape(weight.shape) for weight, array in ours])
    np.testing.assert_allclose(model(pixels), twin(pixels), rtol=0, atol=2e-5)
