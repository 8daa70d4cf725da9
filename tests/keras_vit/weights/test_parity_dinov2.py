"""DINOv2 and DeiT III give the features of timm and transformers, at every size.

Needs `pip install -e ".[parity]"` (`make parity`); skipped without. Differences are the
largest of all numbers, in float32, of outputs between 1 and 5 in size.
"""

import numpy as np
import pytest

import keras_vit

timm = pytest.importorskip("timm")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

TOLERANCE = 1e-5
SIZE = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "patch_size": 14,
}
SMALL = {"embed_dim": 24, "depth": 2, "num_heads": 3}
# (H, W) of the images; the files' positions are of 70 x 70 pixels.
SIZES = [(70, 70), (98, 84), (42, 126)]


def with_random_weights(model):
    """Random numbers that keep a signal's size; layer scales all differ from 1."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            fan_in = parameter[0].numel() if parameter.ndim in (2, 4) else 25
            start = 0 if parameter.ndim > 1 else parameter
            parameter.copy_(start + noise * fan_in**-0.5)
    return model.eval()


def check_equal(model, ours, size, output=lambda outputs: outputs):
    """Their output, of pixels with the channels first, and ours."""
    random = np.random.default_rng(7)
    pixels = random.normal(size=(2, *size, 3)).astype("float32")
    with torch.no_grad():
        theirs = output(model(torch.tensor(pixels.transpose(0, 3, 1, 2).copy())))
    theirs = theirs.numpy()
    assert 1 < np.abs(theirs).max() < 9
    np.testing.assert_allclose(ours(pixels), theirs, rtol=0, atol=TOLERANCE)


def dinov2(registers, **options):
    kind = "Dinov2WithRegisters" if registers else "Dinov2"
    if registers:
        options["num_register_tokens"] = registers
    config = getattr(transformers, f"{kind}Config")(
        **{**SIZE, "image_size": 70, **options}
    )
    return with_random_weights(getattr(transformers, f"{kind}Model")(config))


def from_transformers(model, folder, size, **arguments):
    model.save_pretrained(folder)
    # transformers resizes the positions of the first without a filter.
    method = "timm" if "Registers" in type(model).__name__ else "bicubic"
    return keras_vit.VisionTransformer.from_preset(
        folder, image_size=size, resample=method, **arguments
    )


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("swiglu", [False, True])
@pytest.mark.parametrize("registers", [0, 4])
def test_every_token_equals_transformers(registers, swiglu, size, tmp_path):
    model = dinov2(registers, use_swiglu_ffn=swiglu)
    ours = from_transformers(model, tmp_path, size, pooling=None)
    assert (ours.swiglu, ours.register_tokens) == (swiglu, registers)
    check_equal(model, ours, size, lambda outputs: outputs.last_hidden_state)


def test_the_classifier_of_transformers_is_left_out(tmp_path, caplog):
    config = transformers.Dinov2Config(**SIZE, image_size=70, num_labels=7)
    model = with_random_weights(transformers.Dinov2ForImageClassification(config))
    ours = from_transformers(model, tmp_path, (70, 70))
    assert "dropped: classifier.bias, classifier.weight" in caplog.text
    check_equal(
        model.dinov2, ours, (70, 70), lambda outputs: outputs.last_hidden_state[:, 0]
    )


def timm_model(architecture, **options):
    model = timm.create_model(
        architecture,
        **{**SMALL, "img_size": 70, "num_classes": 0, **options},
        dynamic_img_size=True,
    )
    return with_random_weights(model)


def from_timm(model, folder, size, **arguments):
    """As timm's files are on the hub, whose configs have no arguments."""
    timm.models.save_for_hf(model, folder, safe_serialization=True)
    heads = model.blocks[0].attn.num_heads
    return keras_vit.VisionTransformer.from_preset(
        folder, image_size=size, resample="timm", heads=heads, **arguments
    )


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("vit_small_patch14_dinov2", {}),
        ("vit_small_patch14_reg4_dinov2", {}),
        ("vit_giant_patch14_dinov2", {}),
        ("vit_giant_patch14_reg4_dinov2", {}),
        ("deit3_small_patch16_224", {"patch_size": 14, "num_classes": 7}),
    ],
)
def test_features_and_logits_equal_timm(architecture, options, size, tmp_path):
    model = timm_model(architecture, **options)
    ours = from_timm(model, tmp_path, size)
    assert ours.swiglu == ("giant" in architecture)
    check_equal(model, ours, size)


@pytest.mark.slow
def test_the_published_geometry_of_s14_with_registers(tmp_path):
    """At 518 pixels, where the file of the hub has them, with its number of heads."""
    model = with_random_weights(timm.create_model("vit_small_patch14_reg4_dinov2"))
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    ours = keras_vit.VisionTransformer.from_preset(tmp_path)
    assert (ours.image_size, ours.heads, ours.count_params()) == (
        (518, 518),
        6,
        22_057_344,
    )
    layer = ours.preprocessing
    assert layer.mean == pytest.approx((123.675, 116.28, 103.53))
    assert (layer.interpolation, layer.crop_fraction) == ("bicubic", 1.0)
    check_equal(model, ours, (518, 518))


def test_timm_reads_what_is_written_of_a_swiglu(tmp_path):
    source = timm_model("vit_giant_patch14_reg4_dinov2")
    ours = from_timm(source, tmp_path / "theirs", (70, 70))
    keras_vit.save_checkpoint(ours, tmp_path / "ours", "timm")
    model = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    check_equal(model, ours, (70, 70))
