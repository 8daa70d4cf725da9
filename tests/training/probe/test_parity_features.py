"""Frozen features are what timm's classifier is given."""

import json

import numpy as np
import pytest
from image_splits import noise_split

from training.architectures.model_reading import read_any_model
from training.probe.features import FeatureExtractor

timm = pytest.importorskip("timm")
torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.parity

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
PUBLISHED = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_features_are_the_input_of_timms_head(tmp_path, pool):
    torch.manual_seed(3)
    name = "vit_tiny_patch16_224"
    theirs = timm.create_model(name, num_classes=7, global_pool=pool, **SIZES).eval()
    config = {
        "architecture": name,
        "num_classes": 7,
        "model_args": {**SIZES, "global_pool": pool},
        "pretrained_cfg": {
            **{key: theirs.pretrained_cfg[key] for key in PUBLISHED},
            "input_size": (3, 32, 32),
            "crop_pct": 1.0,
        },
    }
    folder = tmp_path / "timm"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.save_file(theirs.state_dict(), folder / "model.safetensors")
    given = []
    theirs.head.register_forward_hook(lambda _, inputs, __: given.append(inputs[0]))
    split = noise_split(11, (32, 32))
    images = np.stack([split.read(index).numpy() for index in range(11)])
    mean, std = (np.array(theirs.pretrained_cfg[k]) for k in ("mean", "std"))
    normalized = ((images / 255 - mean) / std).astype("float32")
    with torch.no_grad():
        theirs(torch.tensor(normalized.transpose(0, 3, 1, 2).copy()))
    ours = FeatureExtractor(read_any_model(str(folder)), batch_size=4)(split)
    np.testing.assert_allclose(ours, given[0].numpy(), atol=2e-5)
