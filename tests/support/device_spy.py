"""Runs commands on four virtual CPU devices, and records where a model computes.

    KERAS_BACKEND=... python tests/support/device_spy.py STRATEGY FOLDER

A run, an evaluation, predictions with pictures of attention, and what a masked
autoencoder predicts. On TensorFlow, as a TPU would not, no dense layer may be computed
but in the strategy's `run`.
"""

import collections
import dataclasses
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path.insert(0, str(Path(__file__).parents[2]))

import keras
import numpy as np
import tensorflow as tf
from PIL import Image
from tiny_recipe import TINY_RECIPE

from training.architectures.compiling import model_to_train
from training.architectures.model_reading import read_classifier
from training.architectures.recipe_model import build_model
from training.data.masking import Masking
from training.engine.forward_pass import ForwardPass
from training.engine.strategy import evaluation_strategy
from training.engine.traced_once import TracedOnce
from training.evaluation import evaluate
from training.evaluation.predict import predict
from training.fitting import finish
from training.fitting.fit import fit
from training.recipe import DataConfig, ReportConfig, SelfSupervisionConfig

DEVICES = 4
MASKED = dataclasses.replace(
    TINY_RECIPE,
    self_supervision=SelfSupervisionConfig(
        "mae", decoder_width=12, decoder_depth=1, decoder_heads=3
    ),
)
FILES = 5  # which no number of devices divides


def digit_files(folder: Path) -> list[Path]:
    """Image files of noise."""
    pixels = np.random.default_rng(1).integers(0, 256, (FILES, 9, 7), "uint8")
    files = [folder / f"{number}.png" for number in range(FILES)]
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image).save(file)
    return files


def probabilities(model, files: list[Path], attention: Path | None = None):
    """What a model says of each file: [n, classes], in the classes' order."""
    found = predict(model, files, len(model.class_names), attention)
    return np.array([[score for _, score in sorted(p.classes)] for p in found])


def masked_predictions():
    """What an untrained masked autoencoder predicts of five images."""
    keras.utils.set_random_seed(1)
    encoder = build_model(MASKED.model, None)
    model = model_to_train(encoder, MASKED)
    random = np.random.default_rng(2)
    model.set_weights([random.normal(scale=0.3, size=w.shape) for w in model.weights])
    masking = Masking.of(encoder, MASKED)
    masks = [masking.of_evaluated(tf.constant(i, tf.int64)) for i in range(FILES)]
    images = random.uniform(0, 255, (FILES, 8, 8, 1)).astype("float32")
    return model.predictions(images, np.stack([indices for indices, _ in masks]))


def spy_on_tensorflow(seen: collections.Counter) -> None:
    """Record each replica's device; refuse dense layers outside of `strategy.run`."""
    call = keras.layers.Dense.call

    def checked(self, inputs, *args, **kwargs):
        outputs = call(self, inputs, *args, **kwargs)
        graph = getattr(inputs, "graph", None) if not tf.executing_eagerly() else None
        if graph is not None and "scratch_graph" in graph.name:
            return outputs  # Keras infers shapes
        strategy = tf.distribute.get_strategy()
        if (
            tf.distribute.in_cross_replica_context()
            or strategy.num_replicas_in_sync == 1
        ):
            raise RuntimeError("the model computes outside of strategy.run")
        return outputs

    call_on_replica = TracedOnce.__call__

    def recorded(self, *arguments):
        outputs = call_on_replica(self, *arguments)
        seen[tf.nest.flatten(outputs)[0].device] += 1
        return outputs

    keras.layers.Dense.call, TracedOnce.__call__ = checked, recorded


def spy_on_jax(seen: collections.Counter) -> None:
    """Record the devices that share the outputs of each forward pass."""
    placed = ForwardPass._jax_step

    def spied(self):
        step = placed(self)

        def recorded(trainable, non_trainable, inputs):
            outputs = step(trainable, non_trainable, inputs)
            divided = any(not w.sharding.is_fully_replicated for w in trainable)
            kind = "divided" if divided else "whole"
            for device in outputs.sharding.device_set:
                seen[f"{kind} weights, {device}"] += 1
            return outputs

        return recorded

    ForwardPass._jax_step = spied


def main() -> None:
    """Write what was computed and where."""
    strategy, folder = sys.argv[1], Path(sys.argv[2])
    seen: collections.Counter[str] = collections.Counter()
    where = {}
    if keras.backend.backend() == "jax":
        spy_on_jax(seen)
    else:
        device = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * DEVICES
        tf.config.set_logical_device_configuration(device, logical)
        spy_on_tensorflow(seen)
    kept = {}
    evaluated = evaluate.evaluate

    def keeping(name):
        def kept_evaluate(model, split):
            seen.clear()
            found = evaluated(model, split)
            kept[name], where[name] = found.probabilities, dict(seen)
            seen.clear()
            return found

        return kept_evaluate

    finish.evaluate = keeping("finish")
    recipe = dataclasses.replace(
        TINY_RECIPE,
        epochs=1,
        batch_size=120,
        strategy=strategy,
        data=DataConfig("digits", validation=0.1),
        report=ReportConfig(attention_every=1, fewshot_every=1),
    )
    fit(recipe, folder / "run")
    where["pictures of finish"] = dict(seen)
    evaluate.evaluate = keeping("evaluate")
    evaluate.evaluate_file(folder / "run", "test", strategy=strategy)
    with evaluation_strategy(strategy).scope():
        model = read_classifier(folder / "run" / "best.keras")
        seen.clear()
        kept["predict"] = probabilities(
            model, digit_files(folder), folder / "attention"
        )
        where["predict"] = dict(seen)
        seen.clear()
        kept["masked"] = masked_predictions()
        where["masked"] = dict(seen)
    np.savez(folder / "outputs.npz", **kept)
    (folder / "devices.json").write_text(json.dumps(where))


if __name__ == "__main__":
    main()
