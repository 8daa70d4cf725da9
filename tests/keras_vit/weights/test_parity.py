"""The same weights give the same scores in timm, Hugging Face and keras-hub.

Needs `pip install -e ".[parity]"` (`make parity`); skipped without. The same in
the published sizes: `python -m benchmarks.parity`.
"""

import pytest
from foreign_files import needs

from benchmarks import parity

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=f"{case.library} {case.title}",
            marks=needs(parity.LIBRARIES[case.library].package),
        )
        for case in parity.CASES
    ],
)
def test_a_model_of_another_library_gives_the_same_logits_in_both_directions(
    case, tmp_path
):
    result = parity.compare(case, small=True, folder=tmp_path)
    assert result["logits"] > 0.3  # large enough for a difference to show
    assert result["read"] < parity.TOLERANCE
    reads = parity.LIBRARIES[case.library].read is not None
    assert (result["back"] is not None) == (case.back and reads)
    assert (result["back"] or 0.0) < parity.TOLERANCE


@needs("timm")
@pytest.mark.parametrize("swiglu", [False, True])
def test_timm_keeps_the_activations_that_info_counts(swiglu):
    """PyTorch's saved tensors, each storage once, against `training_bytes`."""
    import timm
    import torch
    from timm.layers import SwiGLUPacked

    import keras_vit
    from keras_vit.costs import model_costs

    # The first layer of a SwiGLU has twice as many outputs as the MLP is wide.
    mlp = {"mlp_layer": SwiGLUPacked, "mlp_ratio": 8} if swiglu else {}
    twin = timm.models.VisionTransformer(
        img_size=28,
        patch_size=7,
        embed_dim=24,
        depth=2,
        num_heads=3,
        num_classes=7,
        **{**mlp, "act_layer": torch.nn.SiLU if swiglu else torch.nn.GELU},
    ).train()
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
        twin(torch.zeros(3, 3, 28, 28))
    measured = sum(nbytes for _, nbytes in saved.values()) / 3
    spec = keras_vit.ViTSpec(24, 2, 96, 3, swiglu=swiglu)
    counted = model_costs(spec, 7, 28, classes=7).training_bytes
    assert counted == pytest.approx(measured, rel=0.1)
