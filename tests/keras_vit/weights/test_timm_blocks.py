"""Forms of the blocks of timm's ViTs: written, read again, and refused."""

import json

import numpy as np
import pytest
from foreign_files import arrays_of
from tiny_model import small

import keras_vit
from keras_vit.errors import WeightsFileError
from keras_vit.weights.saving import incompatibilities, save_checkpoint

pytest.importorskip("safetensors")

EXACT = {"gelu": "exact", "image_size": 16, "patch_size": 4}
# A model with each form of block, by the class in timm; `Eva` has no such argument.
FORMS = {
    "ResPostBlock": {"post_norm": True, "qk_norm": True},
    "EvaBlockPostNorm": {"post_norm": True, "key_bias": False, "swiglu": True},
    "ParallelScalingBlock": {"parallel": True, "layer_scale": 0.1},
    "ParallelThingsBlock": {"branches": 2, "layer_scale": 0.1},
    "ParallelThingsBlock without LayerScale": {"branches": 2},
    "ParallelScalingBlock with RMSNorm": {
        **{"parallel": True, "norm": "rms", "qk_norm": True},
        **dict.fromkeys(("query_bias", "key_bias", "value_bias"), False),
    },
}
ARCHITECTURES = {
    "ResPostBlock": "vit_base_patch16_rpn_224",
    "EvaBlockPostNorm": "vit_base_patch16_rope_224",
    "ParallelScalingBlock": "vit_pwee_patch16_reg1_gap_256",
    "ParallelThingsBlock": "vit_small_patch16_18x2_224",
    "ParallelThingsBlock without LayerScale": "vit_small_patch16_18x2_224",
    "ParallelScalingBlock with RMSNorm": "vit_base_patch16_xp_224",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_model_of_each_form_round_trips(form, tmp_path):
    model = small(**EXACT, **FORMS[form])
    save_checkpoint(model, tmp_path / "timm", "timm")
    config = json.loads((tmp_path / "timm/config.json").read_text())
    assert config["architecture"] == ARCHITECTURES[form]
    model.save(tmp_path / "model.keras")
    for path in ("timm", "model.keras"):
        again = keras_vit.open_model(tmp_path / path)
        for name, value in FORMS[form].items():
            assert getattr(again, name) == value, name
        before = arrays_of(model)
        for name, array in arrays_of(again).items():
            np.testing.assert_array_equal(array, before[name], err_msg=name)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"post_norm": True, "norm": "rms"}, "norm must be 'layer'"),
        ({"post_norm": True, "layer_scale": 0.1}, "layer_scale must be None"),
        (
            {"post_norm": True, "key_bias": False, "qk_norm": True},
            "use_post_norm can state post_norm without qk_norm",
        ),
        ({"branches": 3}, "branches must be 1"),
        ({"parallel": True, "mlp_bias": False}, "mlp_bias must be True"),
        ({"parallel": True, "attention_norm": True}, "no place for encoder_block_0"),
        ({"parallel": True, "key_bias": False}, "no place for encoder_block_0"),
    ],
)
def test_what_no_form_computes_is_not_written(options, reason):
    reasons = incompatibilities(small(**EXACT, **options), "timm")
    assert any(reason in each for each in reasons), reasons


def test_arrays_that_leave_the_form_open_need_a_config(tmp_path):
    save_checkpoint(small(**EXACT, key_bias=False), tmp_path / "eva", "timm")
    (tmp_path / "eva/config.json").unlink()
    with pytest.raises(WeightsFileError, match="differ in .*post_norm"):
        keras_vit.open_model(tmp_path / "eva")
