"""Train the same cases on N replicas, or as one of several workers.

    python tests/support/replica_runs.py "two replicas" result.npz
    TF_CONFIG=... python tests/support/replica_runs.py "two workers" result.npz

Each number of replicas needs a process of its own: logical devices are made before
TensorFlow starts, and one that has used two replicas cannot use four.
"""

import dataclasses
import os
import sys
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path.insert(0, str(Path(__file__).parents[2]))

import keras
import numpy as np
import tensorflow as tf
from tiny_recipe import TINY_MODEL, TINY_RECIPE

from training.architectures.compiling import compile_trainer, model_to_train
from training.architectures.recipe_model import build_model
from training.data.splits import load_splits
from training.engine.datasets import training_data, validation_arguments
from training.engine.optimizer import make_optimizer
from training.engine.tensorflow_trainer import TensorFlowTrainer
from training.recipe import (
    AugmentationConfig,
    DataConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    SelfSupervisionConfig,
)

BATCH, EPOCHS, CLASSES, HIDDEN = 16, 2, 5, 7
SGD = OptimizerConfig("sgd", learning_rate=0.1)
ADAMW = OptimizerConfig("adamw", learning_rate=1e-2, weight_decay=0.1)


@dataclass(frozen=True)
class Case:
    """One configuration in which the small network is trained on `IMAGES`.

    Args:
        optimizer: Its options.
        accumulation: Micro-batches.
        steps_per_execution: As in Keras.
        jit_compile: Whether XLA compiles the step.
        loss: "softmax" or "sigmoid".
        smoothing: Label smoothing.
        examples: Number of images.
        weighted: Whether each image has a sample weight.
        sparse: Whether labels are class indices, not one-hot.
    """

    optimizer: OptimizerConfig = SGD
    accumulation: int = 1
    steps_per_execution: int = 1
    jit_compile: bool = False
    loss: str = "softmax"
    smoothing: float = 0.0
    examples: int = 64
    weighted: bool = False
    sparse: bool = False


CASES = {
    "plain": Case(),
    "partial batch": Case(examples=61),
    "a replica without images": Case(examples=49),
    "weighted": Case(examples=61, weighted=True),
    "accumulation": Case(accumulation=4, examples=61),
    "AdamW": Case(ADAMW),
    "sigmoid": Case(loss="sigmoid", smoothing=0.1, sparse=True),
    "together": Case(
        dataclasses.replace(SGD, clip_norm=0.1, ema=0.9),
        accumulation=4,
        steps_per_execution=3,
        jit_compile=True,
        examples=49,
        weighted=True,
    ),
}

VIT = dataclasses.replace(
    TINY_RECIPE,
    seed=3,
    epochs=EPOCHS,
    batch_size=32,
    accumulation=4,
    steps_per_execution=3,  # of 5 in an epoch
    jit_compile="on",
    label_smoothing=0.1,
    model=dataclasses.replace(TINY_MODEL, head_bias_init=0.1),
    data=DataConfig(
        "digits",
        train="train[:160]",
        validation="train[160:211]",  # 51 images: no number of replicas divides it
        test="train[211:220]",
    ),
    augmentation=AugmentationConfig(mixup=0.8),
    optimizer=dataclasses.replace(
        SGD, clip_norm=0.5, ema=0.9, layer_decay=0.7, head_first=0.3
    ),
    schedule=ScheduleConfig("constant"),
)
RECIPES = {"ViT together": VIT}
# Compared with one device, as their gradient has no second definition here;
# test_pretext.py compares their losses with NumPy.
PRETRAINING = {
    name: dataclasses.replace(
        VIT,
        label_smoothing=0.0,
        augmentation=AugmentationConfig(shift=1),
        optimizer=dataclasses.replace(VIT.optimizer, head_first=0.0),
        self_supervision=config,
    )
    for name, config in {
        "masked patches": SelfSupervisionConfig("masked_patches"),
        "masked autoencoder": SelfSupervisionConfig(
            "mae", decoder_width=12, decoder_depth=1, decoder_heads=3
        ),
    }.items()
}

# Four replicas and two workers: what each option does is seen on two replicas.
COMBINED = ("together", "ViT together", "masked patches")
# by name: the number of replicas, and the names of the cases and recipes
WORLDS = {
    "one device": (1, (*CASES, *RECIPES, *PRETRAINING)),
    "two replicas": (2, (*CASES, *RECIPES, *PRETRAINING)),
    "four replicas": (4, COMBINED),
    "two workers": (2, COMBINED),
}

random = np.random.default_rng(0)
IMAGES = random.uniform(-1, 1, (64, 4, 3, 1)).astype("float32")
LABELS = random.integers(0, CLASSES, 64)
WEIGHTS = random.uniform(0.2, 3, 64).astype("float32")
FIRST = [  # of the small network
    random.normal(scale=0.5, size=size).astype("float32")
    for size in ((12, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
]


def small_network(*between):
    """Two dense layers that begin with the weights `FIRST`."""
    layers = [keras.layers.Dense(HIDDEN, "tanh"), *between, keras.layers.Dense(CLASSES)]
    flat = keras.layers.Flatten()
    network = keras.Sequential([keras.Input((4, 3, 1)), flat, *layers])
    for variable, value in zip(network.trainable_variables, FIRST, strict=True):
        variable.assign(value)
    return network


def dataset(case: Case, examples: int) -> tf.data.Dataset:
    """Global batches; the last one may be smaller."""
    labels = LABELS if case.sparse else np.eye(CLASSES, dtype="float32")[LABELS]
    arrays = (IMAGES, labels, *([WEIGHTS] if case.weighted else []))
    arrays = tuple(array[:examples] for array in arrays)
    return tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)


class Steps(keras.callbacks.Callback):
    """Records each call's own loss and gradient norm, not those of the call before."""

    def __init__(self):
        super().__init__()
        self.losses, self.norms = [], []

    def on_train_batch_end(self, batch, logs=None):
        logs, _ = self.model.figures.newest.result()
        self.losses.append(float(logs["loss"]))
        self.norms.append(float(logs["gradient_norm"]))


class Small:
    """Trains cases of the small network; those that compile alike share a trainer."""

    def __init__(self, strategy):
        self.strategy = strategy
        self.trainers = {}

    def trainer(self, case: Case):
        key = dataclasses.replace(case, examples=0, weighted=False)
        if key not in self.trainers:
            config = case.optimizer
            with self.strategy.scope():
                network = small_network()
                trainer = TensorFlowTrainer(
                    network,
                    case.loss,
                    case.smoothing,
                    case.accumulation,
                    config.clip_norm,
                )
                trainer.compile(
                    make_optimizer(config, config.learning_rate, network),
                    steps_per_execution=case.steps_per_execution,
                    jit_compile=case.jit_compile,
                )
            self.trainers[key] = trainer, trainer.state_arrays()
        trainer, first = self.trainers[key]
        trainer.set_state(first)
        return trainer

    def run(self, case: Case):
        """Train a case, and return its `result`."""
        trainer, steps = self.trainer(case), Steps()
        history = trainer.fit(
            dataset(case, case.examples),
            epochs=EPOCHS,
            validation_data=dataset(case, 51),
            callbacks=[steps],
            verbose=0,
        )
        return result(trainer, steps, history)


def run_recipe(recipe: Recipe, strategy):
    """Train a recipe through the real input pipeline, and return its `result`."""
    keras.utils.set_random_seed(recipe.seed)
    splits = load_splits(recipe.data, recipe.model.channels)
    per_epoch = len(splits.train) // recipe.batch_size
    total = per_epoch * recipe.epochs
    with strategy.scope():
        names = splits.class_names if recipe.supervised else None
        model = build_model(recipe.model, names, recipe.precision)
        model = model_to_train(model, recipe)
        trainer = compile_trainer(model, recipe, total, per_epoch)
    steps = Steps()
    history = trainer.fit(
        training_data(trainer, recipe, splits.train, 0, total),
        epochs=recipe.epochs,
        steps_per_epoch=per_epoch,
        **validation_arguments(trainer, recipe, splits.validation),
        callbacks=[steps],
        verbose=0,
    )
    return result(trainer, steps, history)


def result(trainer, steps: Steps, history):
    """All that must not depend on the number of replicas, by name."""
    arrays = {
        "losses": np.array(steps.losses),
        "norms": np.array(steps.norms),
        "validation": np.array(history.history["val_loss"]),
        "accuracies": np.array(
            [v for k, v in history.history.items() if k.endswith("accuracy")]
        ),
    }
    for place, weight in enumerate(trainer.model.trainable_variables):
        arrays[f"weight {place}"] = keras.ops.convert_to_numpy(weight.value)
    for place, average in enumerate(trainer.optimizer.averages):
        arrays[f"average {place}"] = keras.ops.convert_to_numpy(average.value)
    return arrays


def run_all(strategy, world: str) -> dict[str, np.ndarray]:
    """The results of a world's cases and recipes, by "name|quantity"."""
    small = Small(strategy)
    results = {
        name: small.run(CASES[name])
        if name in CASES
        else run_recipe({**RECIPES, **PRETRAINING}[name], strategy)
        for name in WORLDS[world][1]
    }
    return {
        f"{name}|{quantity}": array
        for name, arrays in results.items()
        for quantity, array in arrays.items()
    }


def make_replicas(replicas: int):
    """A strategy of N logical devices, or of the workers of `TF_CONFIG`."""
    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy()
    device = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(device, logical)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def main() -> None:
    """Write all results of a world into a file."""
    world, path = sys.argv[1:]
    strategy = make_replicas(WORLDS[world][0])
    arrays = run_all(strategy, world)
    arrays["replicas"] = np.array(strategy.num_replicas_in_sync)
    np.savez(path, **arrays)


if __name__ == "__main__":
    main()
