"""Training on two and four replicas, and with two workers, follows the equations.

The small network is compared with its gradients in NumPy float64; the Vision
Transformer with the automatic gradient of one device and the same NumPy optimizer.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from python_process import printed, start
from replica_runs import (
    BATCH,
    CASES,
    CLASSES,
    EPOCHS,
    FIRST,
    IMAGES,
    LABELS,
    PRETRAINING,
    RECIPES,
    WEIGHTS,
    WORLDS,
    run_all,
)

from training.architectures.recipe_model import build_model
from training.data.pipeline import training_batches
from training.data.splits import load_splits
from training.engine.launch import environments

pytestmark = pytest.mark.slow


class Descent:
    """SGD with momentum or AdamW, with clipping and weight averages, in float64."""

    def __init__(self, config, weights, factors, kernels, waits):
        self.config, self.factors, self.kernels = config, factors, kernels
        self.waits = waits  # steps in which a weight does not move
        self.weights = [np.array(weight, "float64") for weight in weights]
        self.averages = [weight.copy() for weight in self.weights]
        self.first = [np.zeros_like(weight) for weight in self.weights]
        self.second = [np.zeros_like(weight) for weight in self.weights]
        self.steps = 0
        self.norms = []

    def step(self, gradients):
        config = self.config
        self.steps += 1
        norm = np.sqrt(sum(np.sum(np.square(g)) for g in gradients))
        self.norms.append(norm)
        if config.clip_norm is not None and norm > config.clip_norm:
            gradients = [g * (config.clip_norm / norm) for g in gradients]
        for place, gradient in enumerate(gradients):
            rate = config.learning_rate * self.factors[place]
            rate *= self.steps > self.waits[place]
            self.move(place, gradient, rate)
            if config.ema is not None:
                self.averages[place] *= config.ema
                self.averages[place] += (1 - config.ema) * self.weights[place]

    def move(self, place, gradient, rate):
        config, weight = self.config, self.weights[place]
        if config.name == "sgd":
            self.first[place] = config.momentum * self.first[place] - rate * gradient
            weight += self.first[place]
            return
        weight -= rate * config.weight_decay * self.kernels[place] * weight
        for moments, power, beta in (
            (self.first, 1, config.beta_1),
            (self.second, 2, config.beta_2),
        ):
            moments[place] = beta * moments[place] + (1 - beta) * gradient**power
        mean = self.first[place] / (1 - config.beta_1**self.steps)
        square = self.second[place] / (1 - config.beta_2**self.steps)
        weight -= rate * mean / (np.sqrt(square) + 1e-8)

    @property
    def evaluated(self):
        return self.weights if self.config.ema is None else self.averages


def each_loss(case, weights, images, targets):
    """Each image's loss, its derivative by the logits, and the hidden layer."""
    kernel, bias, head, head_bias = weights
    hidden = np.tanh(images @ kernel + bias)
    logits = hidden @ head + head_bias
    if case.loss == "sigmoid":
        share = 1 / (1 + np.exp(-logits))
        losses = -targets * np.log(share) - (1 - targets) * np.log(1 - share)
        return losses.sum(axis=1), share - targets, hidden
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    share = exponentials / exponentials.sum(axis=1, keepdims=True)
    return -(targets * np.log(share)).sum(axis=1), share - targets, hidden


def small_reference(case):
    """The descent, losses and validation losses of a case of the small network."""
    images = IMAGES.reshape(len(IMAGES), -1).astype("float64")
    targets = np.eye(CLASSES)[LABELS] * (1 - case.smoothing) + case.smoothing / CLASSES
    scales = WEIGHTS if case.weighted else np.ones(len(IMAGES))
    descent = Descent(case.optimizer, FIRST, np.ones(4), (1, 0, 1, 0), 4 * [0])
    losses, validation = [], []
    for _ in range(EPOCHS):
        seen = total = 0.0
        for begin in range(0, case.examples, BATCH):
            part = slice(begin, min(begin + BATCH, case.examples))
            own, x = scales[part], images[part]
            loss, slope, hidden = each_loss(case, descent.weights, x, targets[part])
            seen, total = seen + own.sum(), total + (own * loss).sum()
            losses.append(total / seen)
            slope *= own[:, None] / own.sum()
            inner = (slope @ descent.weights[2].T) * (1 - hidden**2)
            descent.step(
                [x.T @ inner, inner.sum(axis=0), hidden.T @ slope, slope.sum(axis=0)]
            )
        loss, *_ = each_loss(case, descent.evaluated, images[:51], targets[:51])
        validation.append(np.average(loss, weights=scales[:51]))
    return descent, losses, validation


def recipe_reference(recipe):
    """The same of a recipe, by one device's gradient and the NumPy optimizer."""
    keras.utils.set_random_seed(recipe.seed)
    splits = load_splits(recipe.data, 1)
    model = build_model(recipe.model, splits.class_names)
    variables = model.trainable_variables
    paths = [variable.path for variable in variables]
    decay = recipe.optimizer.layer_decay
    block = [path.startswith("encoder_block_0/") for path in paths]
    below = [
        path.startswith(("embedding/", "class_token", "position")) for path in paths
    ]
    assert sum(block) == 16
    assert sum(below) == 4
    factors = decay ** (np.array(block) + 2.0 * np.array(below))
    kernels = [path.endswith("/kernel") for path in paths]
    steps = 5 * EPOCHS
    waits = [
        0 if path.startswith("head/") else round(recipe.optimizer.head_first * steps)
        for path in paths
    ]
    assert set(waits) == {0, 3}
    descent = Descent(
        recipe.optimizer, [v.numpy() for v in variables], factors, kernels, waits
    )

    def mean_loss(images, labels, smoothing):
        targets = labels * (1 - smoothing) + smoothing / labels.shape[-1]
        logits = model(images, training=False)  # without dropout it is the same
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(targets, logits))

    @tf.function
    def gradient(images, labels):
        with tf.GradientTape() as tape:
            loss = mean_loss(images, labels, recipe.label_smoothing)
        return loss, tape.gradient(loss, [v.value for v in variables])

    def put(weights):
        for variable, weight in zip(variables, weights, strict=True):
            variable.assign(weight.astype("float32"))

    losses, validation, since = [], [], []
    batches = training_batches(splits.train, recipe, model.preprocessing)
    for step, batch in enumerate(batches):
        since = [] if step % 5 == 0 else since
        loss, gradients = gradient(*batch)
        since.append(float(loss))
        losses.append(np.mean(since))
        descent.step([g.numpy().astype("float64") for g in gradients])
        if step % 5 == 4:
            put(descent.evaluated)
            images = tf.stack([splits.validation.read(i) for i in range(51)])
            labels = np.eye(10, dtype="float32")[splits.validation.labels]
            validation.append(float(mean_loss(images, labels, recipe.label_smoothing)))
        put(descent.weights)
    return descent, losses, validation


@pytest.fixture(scope="module")
def references():
    """By name: the descent, the losses, the validation losses."""
    small = {name: small_reference(case) for name, case in CASES.items()}
    return small | {name: recipe_reference(recipe) for name, recipe in RECIPES.items()}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of each world, by its name, and of the second of two workers."""
    folder = tmp_path_factory.mktemp("worlds")
    first, second = environments(2)
    script = "tests/support/replica_runs.py"
    processes = {
        name: start(script, world, folder / f"{name}.npz", **variables)
        for name, world, variables in (
            ("two replicas", "two replicas", {}),
            ("four replicas", "four replicas", {}),
            ("two workers", "two workers", first),
            ("second worker", "two workers", second),
        )
    }
    alone = run_all(tf.distribute.get_strategy(), "one device")
    for process in processes.values():
        printed(process)
    loaded = {name: dict(np.load(folder / f"{name}.npz")) for name in processes}
    return loaded | {"one device": alone | {"replicas": np.array(1)}}


@pytest.mark.parametrize("world", WORLDS)
def test_each_world_has_its_number_of_replicas(results, world):
    assert results[world]["replicas"] == WORLDS[world][0]


def test_all_workers_end_with_the_same_numbers(results):
    np.testing.assert_equal(results["two workers"], results["second worker"])


@pytest.mark.parametrize(
    ("world", "name"),
    [(w, name) for w in WORLDS for name in WORLDS[w][1] if name not in PRETRAINING],
)
def test_training_follows_the_equations(results, references, world, name):
    descent, losses, validation = references[name]
    ours = {
        key.removeprefix(f"{name}|"): array
        for key, array in results[world].items()
        if key.startswith(f"{name}|")
    }
    every = 3 if "together" in name else 1  # steps per execution
    steps = reported_steps(len(losses) // EPOCHS, every)
    np.testing.assert_allclose(ours["losses"], np.array(losses)[steps], atol=1e-5)
    norms, tolerance = np.array(descent.norms)[steps], 1e-4
    if descent.config.name == "adamw":
        tolerance = 1e-3  # it multiplies the rounding where a gradient is almost 0
    np.testing.assert_allclose(ours["norms"], norms, rtol=tolerance)
    if descent.config.clip_norm is not None:
        assert np.mean(ours["norms"] > descent.config.clip_norm) > 0.5
    np.testing.assert_allclose(ours["validation"], validation, atol=1e-5)
    if descent.config.name == "sgd":
        close(ours, "weight", descent.weights)
    if descent.config.name == "sgd" and descent.config.ema is not None:
        close(ours, "average", descent.averages)


@pytest.mark.parametrize("world", [name for name in WORLDS if name != "one device"])
def test_accuracies_count_each_image_once_as_on_one_device(results, world):
    names = [name for name in results[world] if name.endswith("|accuracies")]
    assert len(names) == len(WORLDS[world][1])
    for name in names:
        ours, theirs = results[world][name], results["one device"][name]
        np.testing.assert_allclose(ours, theirs, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("world", "name"),
    [
        (world, name)
        for world in WORLDS
        for name in WORLDS[world][1]
        if name in PRETRAINING and world != "one device"
    ],
)
def test_pretraining_on_replicas_is_that_of_one_device(results, world, name):
    keys = [key for key in results[world] if key.startswith(f"{name}|")]
    assert len(keys) > 25
    for key in keys:
        ours, theirs = results[world][key], results["one device"][key]
        np.testing.assert_allclose(ours, theirs, atol=2e-5, err_msg=key)


def reported_steps(per_epoch, every):
    """The steps, from 0, after which Keras calls the callbacks."""
    ends = [min(n + every, per_epoch) - 1 for n in range(0, per_epoch, every)]
    return [epoch * per_epoch + end for epoch in range(EPOCHS) for end in ends]


def close(ours, kind, theirs):
    assert sum(key.startswith(kind) for key in ours) == len(theirs)
    for place, array in enumerate(theirs):
        np.testing.assert_allclose(ours[f"{kind} {place}"], array, atol=1e-5)
