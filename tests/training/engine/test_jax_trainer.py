"""Training on JAX: TensorFlow's numbers, one device and two, resuming."""

import json

import numpy as np
import pytest
from python_process import on, printed, start
from run_files import checkpoint, history
from tiny_recipe import TINY_RECIPE, changed

from training.architectures.recipe_model import build_model
from training.engine.jax_strategy import make_jax_strategy
from training.errors import RecipeError
from training.fitting.fit import fit
from training.recipe import load_recipe

# Everything at once but dropout, whose random numbers differ between the backends. The
# 144 validation images do not fill a batch.
RECIPE = changed(
    TINY_RECIPE,
    epochs=2,
    batch_size=240,
    accumulation=2,
    steps_per_execution=2,
    label_smoothing=0.1,
    data={"validation": 0.1},
    augmentation={"mixup": 0.2},
    optimizer={"learning_rate": 0.003, "weight_decay": 0.1, "clip_norm": 0.1}
    | {"ema": 0.9, "layer_decay": 0.8},
    schedule={"warmup_epochs": 1},
)

COMPARED = ("loss", "val_loss", "gradient_norm", "learning_rate")
# Rounding decides images between two classes; an epoch has 1200.
ACCURACIES, FEW_IMAGES = ("accuracy", "val_accuracy"), 0.01

# One run is interrupted after its ninth step of ten and resumed from the seventh, in
# the middle of the second epoch; the other is not interrupted.
RESUME = """
import keras, pathlib, sys
from without_pictures import leave_out_pictures
from training.fitting.fit import fit
from training.recipe import load_recipe

class Crash(keras.callbacks.Callback):
    calls = 0
    def on_train_batch_end(self, batch, logs=None):
        self.calls += 1  # of two steps, the third of an epoch of one
        if self.calls == 5:
            raise KeyboardInterrupt

leave_out_pictures()
folder = pathlib.Path(sys.argv[1])
recipe = load_recipe(folder / "dropout.yaml")
try:
    fit(recipe, folder / "resumed", checkpoint_every=7, callbacks=[Crash()])
except KeyboardInterrupt:
    pass
print(sorted(p.name for p in (folder / "resumed" / "checkpoints").iterdir()))
fit(recipe, folder / "resumed", resume=True, checkpoint_every=7)
fit(recipe, folder / "straight")
"""


def compare(ours, theirs, atol):
    """Check that two histories are equal up to rounding."""
    for mine, other in zip(ours, theirs, strict=True):
        for name in COMPARED:
            assert mine[name] == pytest.approx(other[name], abs=atol, rel=0), name
        for name in ACCURACIES:
            assert mine[name] == pytest.approx(other[name], abs=FEW_IMAGES), name


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of the runs of one recipe from the same initial weights."""
    folder = tmp_path_factory.mktemp("jax")
    recipe = folder / "recipe.yaml"
    start_there = changed(RECIPE, model={"weights": str(folder / "start.keras")})
    recipe.write_text(start_there.to_yaml())
    model = build_model(RECIPE.model, tuple("0123456789"))
    model.save(folder / "start.keras")
    fit(load_recipe(recipe), folder / "tensorflow", draw=False)
    words = ("tests/support/without_pictures.py", "fit", "--config", recipe)
    processes = [
        start(*words, "--output_dir", folder / name, **on("jax", devices))
        for name, devices in (("one", 1), ("two", 2))
    ]
    for process in processes:
        printed(process)
    return folder


@pytest.mark.slow
def test_the_losses_are_those_of_tensorflow(runs):
    ours, theirs = history(runs / "one"), history(runs / "tensorflow")
    assert ours[0].keys() == theirs[0].keys()
    assert len(ours) == len(theirs) == 2
    compare(ours, theirs, atol=1e-4)


@pytest.mark.slow
def test_two_devices_compute_what_one_computes(runs):
    compare(history(runs / "one"), history(runs / "two"), atol=1e-5)


@pytest.mark.slow
def test_a_checkpoint_records_the_number_of_devices(runs):
    owner = json.loads(checkpoint(runs / "two")[1])["owner"]
    assert (owner["workers"], owner["replicas"]) == (1, 2)


@pytest.mark.slow
def test_a_resumed_run_ends_as_the_uninterrupted_one(tmp_path, monkeypatch):
    recipe = changed(RECIPE, model={"dropout": 0.1})
    (tmp_path / "dropout.yaml").write_text(recipe.to_yaml())
    # The three runs compile the same functions.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    out = printed(start("-c", RESUME, tmp_path, **on("jax", 2)))
    assert "'00000007.npz']" in out  # the newest one
    (resumed, _), (straight, _) = map(
        checkpoint, (tmp_path / "resumed", tmp_path / "straight")
    )
    np.testing.assert_equal(resumed, straight)
    assert history(tmp_path / "resumed") == history(tmp_path / "straight")


@pytest.mark.parametrize(
    "change",
    [
        {"strategy": "tpu"},
        {"precision": "mixed_float16"},
        {"jit_compile": "off"},
        {"communication": "ring"},
    ],
)
def test_options_that_only_tensorflow_has_are_refused(change):
    recipe = changed(TINY_RECIPE, **change)
    (name, value) = next(iter(change.items()))
    with pytest.raises(RecipeError, match=f"`{name}` .*jax.* Received: '{value}'"):
        make_jax_strategy(recipe)


@pytest.mark.parametrize("strategy", ["auto", "multi_worker", "fsdp"])
def test_a_malformed_tf_config_is_an_error(monkeypatch, strategy):
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(RecipeError, match="TF_CONFIG must be JSON"):
        make_jax_strategy(changed(TINY_RECIPE, strategy=strategy))


def test_workers_that_nobody_names_are_an_error(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(RecipeError, match="must name .*Received: TF_CONFIG=None"):
        make_jax_strategy(changed(TINY_RECIPE, strategy="multi_worker"))
