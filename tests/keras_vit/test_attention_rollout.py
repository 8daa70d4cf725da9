"""Attention rollout, compared with the paper's product in NumPy float64."""

import keras
import numpy as np
import numpy_vit
import pytest
from long_cases import long_after
from tiny_model import numpy

pytestmark = pytest.mark.backend

FORMS = {
    "class token": {},
    "mean of patches beside a class token": {"pooling": "avg", "register_tokens": 2},
    "attention pooling of all": {"pooling": "map", "register_tokens": 3},
    "registers": {"register_tokens": 4, "depth": 3},
    "mean of patches": {"pooling": "avg", "class_token": False},
    "attention pooling": {"pooling": "map", "class_token": False},
    "query": {"pooling": "query", "pool_heads": 3, "register_tokens": 2},
    "distilled": {"distilled": True, "register_tokens": 1},
    "rotary": {"rotary": "mixed", "width": 24, "heads": 3},
    "relative bias": {"relative_bias": "every_layer"},
    "one block": {"depth": 1},
    "relative": {"position_embedding": "relative", "position_placement": "shared"},
}


@pytest.mark.parametrize("kwargs", long_after(3, FORMS.values()), ids=FORMS)
def test_rollout_equals_the_product_of_the_paper(tiny_vit, images, kwargs):
    model = tiny_vit(**kwargs)
    rollout = numpy(model.attention_rollout_model()(images()))
    expected = numpy_vit.rollout(model, images())
    assert rollout.shape == (2, 11, 7)
    np.testing.assert_allclose(rollout, expected, rtol=1e-3, atol=1e-7)
    assert np.ptp(rollout) > 1e-3


def test_a_model_in_bfloat16_gives_float32_close_by(tiny_vit, images):
    model = tiny_vit(dtype="mixed_bfloat16")
    rollout = numpy(model.attention_rollout_model()(images()))
    assert rollout.dtype == np.float32
    np.testing.assert_allclose(rollout.sum((1, 2)), 1, rtol=1e-6)
    np.testing.assert_allclose(rollout, numpy_vit.rollout(model, images()), atol=2e-3)


@pytest.mark.parametrize(
    "kwargs", long_after(1, [{}, FORMS["attention pooling of all"]])
)
def test_rollout_is_saved_and_loaded(tiny_vit, images, tmp_path, kwargs):
    rollout = tiny_vit(**kwargs).attention_rollout_model()
    rollout.save(tmp_path / "rollout.keras")
    loaded = keras.models.load_model(tmp_path / "rollout.keras", safe_mode=True)
    np.testing.assert_array_equal(numpy(loaded(images())), numpy(rollout(images())))


def test_models_without_the_maps_are_refused(tiny_vit):
    axial = tiny_vit(attention="axial", class_token=False, pooling="avg")
    with pytest.raises(ValueError, match="Received: attention='axial'"):
        axial.attention_rollout_model()
    with pytest.raises(ValueError, match="Received: pooling=None"):
        tiny_vit(pooling=None).attention_rollout_model()
