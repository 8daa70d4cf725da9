"""MAE and SimMIM against transformers, with the same weights, images and masks."""

import re

import numpy as np
import pytest

from keras_vit import ImagePreprocessing, VisionTransformer
from training.recipe import SelfSupervisionConfig
from training.self_supervision.pretext import PretextModel, masked_loss

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity
SIZE, SIDE, WIDTH, BATCH = 12, 4, 24, 5
PATCHES = (SIZE // SIDE) ** 2
COMMON = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 11,
    "image_size": SIZE,
    "patch_size": SIDE,
    "layer_norm_eps": 1e-6,
}
LAYERS = {
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "attention.q_proj": "attention/query",
    "attention.k_proj": "attention/key",
    "attention.v_proj": "attention/value",
    "attention.o_proj": "attention/out",
    "mlp.fc1": "mlp/Dense_0",
    "mlp.fc2": "mlp/Dense_1",
}
OTHERS = {
    "vit.embeddings.patch_embeddings.projection": "embedding",
    "vit.layernorm": "encoder_norm",
    "decoder.decoder_embed": "decoder_embedding",
    "decoder.decoder_norm": "decoder_norm",
    "decoder.decoder_pred": "predictions",
    "decoder.0": "predictions",
}
TOKENS = {
    "vit.embeddings.cls_token": "class_token/token",
    "vit.embeddings.position_embeddings": "position_embedding/embedding",
    "vit.embeddings.mask_token": "corruption/mask_token",
    "decoder.mask_token": "restored/mask_token",
    "decoder.decoder_pos_embed": "decoder_positions",
}


def our_name(name):
    """Where an array of transformers' belongs; its kernel or bias last."""
    if name in TOKENS:
        return TOKENS[name]
    layer, _, kind = name.rpartition(".")
    norm = "norm" in layer
    kind = {
        "weight": "gamma" if norm else "kernel",
        "bias": "beta" if norm else "bias",
    }[kind]
    if layer in OTHERS:
        return f"{OTHERS[layer]}/{kind}"
    match = re.fullmatch(r"(vit|decoder)\.(?:decoder_)?layers\.(\d+)\.(.+)", layer)
    block = {"vit": "encoder_block", "decoder": "decoder_block"}[match[1]]
    return f"{block}_{match[2]}/{LAYERS[match[3]]}/{kind}"


def give_weights(model, theirs):
    """Random weights, the same in both models; fixed positions stay."""
    ours = {weight.path: weight for weight in model.weights}
    torch.manual_seed(0)
    given = set()
    with torch.no_grad():
        for name, array in theirs.state_dict().items():
            if our_name(name) not in ours:
                assert "pos" in name  # fixed
                continue
            array.copy_(torch.randn_like(array) * 0.3)
            value = array.numpy()
            if value.ndim == 4:
                value = value.transpose(2, 3, 1, 0)
            elif value.ndim == 2:
                value = value.T
            weight = ours[our_name(name)]
            weight.assign(value.reshape(weight.shape))
            given.add(our_name(name))
    assert given == set(ours)


def make_model(config, **changes):
    encoder = VisionTransformer(
        image_size=SIZE,
        patch_size=SIDE,
        width=WIDTH,
        depth=2,
        mlp_dim=11,
        heads=3,
        classes=None,
        gelu="exact",
        preprocessing=ImagePreprocessing(SIZE),
        **changes,
    )
    return PretextModel(encoder, config)


@pytest.fixture
def pixels():
    shape = (BATCH, SIZE, SIZE, 3)
    return np.random.default_rng(0).integers(0, 256, shape).astype("float32")


def as_theirs(pixels):
    return torch.from_numpy((pixels / 127.5 - 1).transpose(0, 3, 1, 2).copy())


@pytest.mark.parametrize("normalize", [True, False])
def test_mae_is_that_of_transformers(pixels, normalize):
    theirs = transformers.ViTMAEForPreTraining(
        transformers.ViTMAEConfig(
            **COMMON,
            decoder_hidden_size=20,
            decoder_num_hidden_layers=2,
            decoder_num_attention_heads=5,
            decoder_intermediate_size=80,
            mask_ratio=2 / 3,
            norm_pix_loss=normalize,
        )
    ).eval()
    config = SelfSupervisionConfig(
        "mae",
        mask_share=2 / 3,
        decoder_width=20,
        decoder_depth=2,
        decoder_heads=5,
        normalize_pixels=normalize,
    )
    # transformers 5 leaves the fixed positions of a new model at zero.
    embeddings = theirs.vit.embeddings
    embeddings.patch_embeddings.projection._is_hf_initialized = False
    embeddings.initialize_weights()
    theirs.decoder.initialize_weights(PATCHES)
    assert theirs.decoder.decoder_pos_embed.std() > 0.4
    assert theirs.vit.embeddings.position_embeddings.std() > 0.4
    ours = make_model(config, position_embedding="sincos2d_mae")
    give_weights(ours, theirs)
    noise = np.random.default_rng(1).random((BATCH, PATCHES)).astype("float32")
    with torch.no_grad():
        expected = theirs(as_theirs(pixels), noise=torch.from_numpy(noise))
    order = noise.argsort(axis=1).astype("int32")
    np.testing.assert_allclose(
        ours.predictions(pixels, order), expected.logits.numpy(), atol=2e-5
    )
    outputs = ours({"images": pixels, "patch_indices": order})
    losses = np.asarray(masked_loss(expected.mask.numpy(), outputs))
    assert losses.mean() == pytest.approx(float(expected.loss), rel=1e-5)


def test_simmim_is_that_of_transformers(pixels):
    theirs = transformers.ViTForMaskedImageModeling(
        transformers.ViTConfig(**COMMON, encoder_stride=SIDE)
    ).eval()
    ours = make_model(SelfSupervisionConfig("simmim"))
    give_weights(ours, theirs)
    # Their head has the channel first, then the row and the column of the pixel.
    head = ours.get_layer("predictions")
    for weight in (head.kernel, head.bias):
        value = np.array(weight)
        first = value.reshape(*value.shape[:-1], 3, SIDE * SIDE)
        weight.assign(first.swapaxes(-1, -2).reshape(value.shape))
    random = np.random.default_rng(2)
    masked = np.stack([random.permutation(PATCHES) < 5 for _ in range(BATCH)])
    with torch.no_grad():
        expected = theirs(as_theirs(pixels), bool_masked_pos=torch.from_numpy(masked))
    indices = np.where(masked, PATCHES, np.arange(PATCHES)).astype("int32")
    outputs = ours({"images": pixels, "patch_indices": indices})
    losses = np.asarray(masked_loss(masked.astype("float32"), outputs))
    assert losses.mean() == pytest.approx(float(expected.loss), rel=1e-5)
