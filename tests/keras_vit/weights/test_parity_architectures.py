"""Architectures of timm and models of transformers: the same outputs, or a refusal.

The whole table: `python -m benchmarks.architectures`.
"""

import pytest
from foreign_files import needs

from benchmarks import (
    narrow_copies,
    narrow_timm,
    narrow_transformers,
    timm_architectures,
)

pytestmark = pytest.mark.parity

# One of each kind, for a run of minutes; `slow` ones are the rest.
FEW = (
    *("vit_base_patch16_224", "vit_base_patch16_gap_224", "vit_base_patch16_clip_224"),
    *(
        "vit_base_patch16_siglip_224",
        "vit_giant_patch14_dinov2",
        "vit_base_r50_s16_224",
    ),
    *("vit_so150m_patch16_reg4_map_256", "vit_base_patch16_rpn_224", "test_vit3"),
    *("deit_small_distilled_patch16_224", "deit3_small_patch16_224"),
    *("beit_base_patch16_224", "eva_giant_patch14_224", "eva02_small_patch14_224"),
    *("eva02_base_patch14_224", "vit_base_patch16_dinov3", "vit_7b_patch16_dinov3"),
    *("vit_pe_core_base_patch16_224", "vit_pe_spatial_small_patch16_512"),
    *("vit_base_patch16_rope_mixed_ape_224", "vit_base_patch16_sapiens2"),
    *("aimv2_large_patch14_224", "naflexvit_base_patch16_gap", "vit_base_mci_224"),
    *("naflexvit_base_patch16_map", "naflexvit_base_patch16_radio_v3"),
    "naflexvit_base_patch16_parfac_gap",
)
# Reasons, of the few above.
REFUSED = {
    "vit_base_mci_224": "'ConvStem'",
    "test_vit3": "'map' of all tokens, registers included",
    "vit_base_patch16_sapiens2": "`attn_only_layer_scale`",
    "naflexvit_base_patch16_parfac_gap": "`pos_embed`",
}


def check(result):
    assert result.refused or result.difference.keys() == set(narrow_copies.DTYPES)
    for difference in (*result.difference.values(), result.back or 0.0):
        assert difference < narrow_copies.TOLERANCE
    assert result.refused == "" or "`" in result.refused  # names what it is


@needs("timm")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FEW else [pytest.mark.slow])
        for name in narrow_timm.timm_names()
    ],
)
def test_an_architecture_of_timm_gives_the_same_outputs_or_is_refused(name, tmp_path):
    result = narrow_timm.compare_timm(name, tmp_path)
    check(result)
    if name in FEW:
        assert bool(result.refused) == (name in REFUSED)
        assert REFUSED.get(name, "") in result.refused


@needs("transformers")
@pytest.mark.parametrize(
    "case", narrow_transformers.TRANSFORMERS, ids=lambda case: case.title
)
def test_a_model_of_transformers_gives_the_same_outputs(case, tmp_path):
    result = narrow_transformers.compare_transformers(case, tmp_path)
    check(result)
    assert result.refused == ""
    assert result.back is not None


@needs("timm")
def test_the_table_of_architectures_is_timms():
    made = timm_architectures.table()
    assert made == timm_architectures.TABLE.read_text("utf-8")
