"""The TensorFlow trainer on one device, compared with stock Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after

from training.engine import loss_scaling
from training.engine import optimizer as optimizer_module
from training.engine.optimizer import make_optimizer
from training.engine.tensorflow_trainer import TensorFlowTrainer
from training.engine.trainer import clipping_factor
from training.recipe import OptimizerConfig

CLASSES = 5
random = np.random.default_rng(1)
IMAGES = random.normal(size=(48, 3)).astype("float32")
NUMBERS = random.integers(0, CLASSES, 48)
LABELS = np.eye(CLASSES, dtype="float32")[NUMBERS]


def network(*between, **options):
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Dense(7, "tanh"), *between]
    return keras.Sequential(
        [keras.Input((3,)), *layers, keras.layers.Dense(CLASSES, **options)]
    )


def batches(size=16, labels=LABELS):
    return tf.data.Dataset.from_tensor_slices((IMAGES, labels)).batch(size)


SGD = OptimizerConfig("sgd", learning_rate=0.1)


def trained(model, config=SGD, **options):
    """A trainer after two epochs, and its history."""
    data = options.pop("data", batches())
    compile_options = {
        name: options.pop(name)
        for name in ("steps_per_execution", "jit_compile")
        if name in options
    }
    trainer = TensorFlowTrainer(model, clip_norm=config.clip_norm, **options)
    optimizer = make_optimizer(config, config.learning_rate, model)
    trainer.compile(optimizer, **compile_options)
    return trainer, trainer.fit(data, epochs=2, verbose=0).history


@pytest.fixture(scope="module")
def plain():
    """A model trained with the defaults, and its history."""
    model = network()
    return model, trained(model)[1]


def stock(model, optimizer, data=None):
    """The history of stock Keras after two epochs."""
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    data = batches() if data is None else data
    return model.fit(data, epochs=2, shuffle=False, verbose=0).history


def assert_equal_weights(ours, theirs):
    for mine, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)


def test_momentum_and_clipping_match_stock_keras():
    ours, theirs = network(), network()
    config = OptimizerConfig("sgd", learning_rate=0.1, momentum=0.8, clip_norm=0.2)
    _, history = trained(ours, config)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.8, global_clipnorm=0.2)
    expected = stock(theirs, optimizer)
    assert_equal_weights(ours, theirs)
    np.testing.assert_allclose(history["loss"], expected["loss"], atol=1e-6)
    np.testing.assert_allclose(history["accuracy"], expected["accuracy"], atol=1e-6)
    assert min(history["gradient_norm"]) > 0.2


@pytest.mark.slow
def test_adamw_matches_stock_keras_except_epsilon(monkeypatch):
    monkeypatch.setattr(optimizer_module, "EPSILON", 0.0)
    ours, theirs = network(), network()
    config = OptimizerConfig("adamw", learning_rate=1e-2, weight_decay=0.1)
    _, history = trained(ours, config)
    optimizer = keras.optimizers.AdamW(1e-2, weight_decay=0.1, epsilon=0.0)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    expected = stock(theirs, optimizer)
    assert_equal_weights(ours, theirs)
    np.testing.assert_allclose(history["loss"], expected["loss"], atol=1e-6)


def test_accumulation_matches_stock_keras():
    """Stock Keras gets batches of a quarter, and updates after every fourth."""
    ours, theirs = network(), network()
    trained(ours, accumulation=4)
    optimizer = keras.optimizers.SGD(0.1, 0.9, gradient_accumulation_steps=4)
    stock(theirs, optimizer, batches(4))
    assert_equal_weights(ours, theirs)


@pytest.mark.slow
def test_losses_of_layers_count_once_for_each_image():
    def regularized():
        return network(kernel_regularizer=keras.regularizers.L2(0.1))

    ours, theirs = regularized(), regularized()
    trained(ours, accumulation=2)
    stock(theirs, keras.optimizers.SGD(0.1, 0.9))
    assert_equal_weights(ours, theirs)


def test_integer_labels_match_one_hot_labels(plain):
    ours, (theirs, expected) = network(), plain
    _, history = trained(ours, data=batches(labels=NUMBERS))
    assert_equal_weights(ours, theirs)
    assert history["accuracy"] == expected["accuracy"]


def test_bfloat16_computes_in_half_precision_with_float32_weights(plain):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        ours = network()
        _, history = trained(ours, accumulation=2)
    finally:
        keras.config.set_dtype_policy("float32")
    assert ours.layers[0].compute_dtype == "bfloat16"
    assert {weight.dtype for weight in ours.weights} == {"float32"}
    _, expected = plain
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=2e-2)
    assert history["loss"] != expected["loss"]


@pytest.mark.parametrize(
    "config", long_after(1, [SGD, OptimizerConfig("adamw", learning_rate=0.1)])
)
def test_float16_scales_the_loss_and_unscales_the_gradient(monkeypatch, config):
    # An epsilon as large as the gradients: Adam divides out what is left of the scale.
    monkeypatch.setattr(optimizer_module, "EPSILON", 0.1)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        trainer, history = trained(network(), config, accumulation=2)
    finally:
        keras.config.set_dtype_policy("float32")
    _, expected = trained(network(), config)
    for name in ("loss", "gradient_norm"):
        np.testing.assert_allclose(history[name], expected[name], rtol=2e-2)
    good_steps = keras.ops.convert_to_numpy(trainer.scaler.variables[1].value)
    assert good_steps == 6


def test_loss_scale_doubles_after_finite_steps_and_halves_down_to_1(monkeypatch):
    monkeypatch.setattr(loss_scaling, "LOSS_SCALE_GROWTH", 3)
    scaler, scales = loss_scaling.LossScaler(), []
    for finite in [True] * 4 + [False, True, True, False, True]:
        scaler.update(tf.constant(finite))
        scales.append(np.log2(keras.ops.convert_to_numpy(scaler.scale)))
    assert scales == [15, 15, 16, 16, 15, 15, 15, 14, 14]
    for _ in range(20):
        scaler.update(tf.constant(False))
    assert keras.ops.convert_to_numpy(scaler.scale) == 1


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.SGD(clipnorm=1.0),
        keras.optimizers.SGD(clipvalue=1.0),
        keras.optimizers.SGD(global_clipnorm=1.0),
        keras.optimizers.SGD(weight_decay=0.1),
        keras.optimizers.SGD(use_ema=True),
        keras.optimizers.SGD(gradient_accumulation_steps=2),
        keras.optimizers.SGD(loss_scale_factor=8.0),
        keras.optimizers.AdamW(),
        keras.optimizers.Nadam(),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
    ],
    ids=lambda optimizer: optimizer.name,
)
def test_unsupported_optimizer_options_are_rejected(optimizer):
    with pytest.raises(ValueError, match="`optimizer` must .*Received: ") as error:
        TensorFlowTrainer(network()).compile(optimizer)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.Adam(),
        pytest.param(keras.optimizers.SGD(), marks=pytest.mark.slow),
        pytest.param(keras.optimizers.Lion(), marks=pytest.mark.slow),
    ],
    ids=lambda optimizer: optimizer.name,
)
def test_other_keras_optimizers_match_stock_keras(optimizer):
    ours, theirs = network(), network()
    trainer = TensorFlowTrainer(ours)
    trainer.compile(type(optimizer).from_config(optimizer.get_config()))
    trainer.fit(batches(), epochs=2, verbose=0)
    stock(theirs, optimizer)
    assert_equal_weights(ours, theirs)


class Calls(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(batch)


def test_steps_per_execution_stops_at_the_end_of_the_epoch():
    trainer, _ = trained(network(), data=batches(4), steps_per_execution=5)
    calls = Calls()
    trainer.fit(batches(4), verbose=0, callbacks=[calls])
    assert len(calls.steps) == 3  # 5 + 5 + 2 of 12
    assert int(keras.ops.convert_to_numpy(trainer.optimizer.iterations.value)) == 36


def test_steps_per_execution_needs_a_known_length():
    trainer = TensorFlowTrainer(network())
    trainer.compile(keras.optimizers.SGD(), steps_per_execution=2)
    endless = batches().filter(lambda *batch: True)
    with pytest.raises(
        ValueError, match=r"`steps_per_epoch` must be given with `steps"
    ):
        trainer.fit(endless, verbose=0)
    trainer.fit(endless.repeat(), steps_per_epoch=3, verbose=0)


def test_a_stop_request_takes_effect_after_the_step():
    class Stop(keras.callbacks.Callback):
        noticed = ()

        def on_train_batch_begin(self, batch, logs=None):
            trainer.progress.stop_requested = batch == 1

        def on_train_batch_end(self, batch, logs=None):
            self.noticed += (trainer.progress.stopping,)

    trainer, _ = trained(network())
    stop = Stop()
    trainer.fit(batches(), verbose=0, callbacks=[stop])
    assert stop.noticed == (False, True, False)


@pytest.fixture(scope="module")
def averaging():
    """A trainer that averages weights, whose weights no test changes."""
    config = OptimizerConfig("sgd", learning_rate=0.1, ema=0.5)
    return trained(network(), config)[0]


def test_evaluation_uses_averaged_weights_and_restores_the_weights(averaging):
    trainer = averaging
    before = trainer.model.get_weights()
    averages = [keras.ops.convert_to_numpy(a.value) for a in trainer.optimizer.averages]
    with trainer.averaged_weights():
        inside = trainer.model.get_weights()
        expected = stock_loss(trainer.model)
    np.testing.assert_array_equal(inside[0], averages[0])
    assert trainer.evaluate(batches(7), verbose=0)[0] == pytest.approx(expected)
    assert expected != pytest.approx(stock_loss(trainer.model))
    np.testing.assert_equal(trainer.model.get_weights(), before)


def test_averaged_weights_can_be_nested(averaging):
    trainer = averaging
    before = trainer.model.get_weights()
    averages = [keras.ops.convert_to_numpy(a.value) for a in trainer.optimizer.averages]
    expected = trainer.evaluate(batches(), verbose=0)
    for _ in range(2):
        with trainer.averaged_weights():
            with trainer.averaged_weights():
                np.testing.assert_equal(trainer.model.get_weights(), averages)
            with pytest.raises(KeyError), trainer.averaged_weights():
                raise KeyError
            assert trainer.evaluate(batches(), verbose=0) == expected
            np.testing.assert_equal(trainer.model.get_weights(), averages)
        np.testing.assert_equal(trainer.model.get_weights(), before)
        with pytest.raises(KeyError), trainer.averaged_weights():
            raise KeyError
        np.testing.assert_equal(trainer.model.get_weights(), before)


def stock_loss(model):
    logits = model.predict(IMAGES, verbose=0)
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    return float(loss(LABELS, logits))


@pytest.mark.slow
def test_training_continues_bit_for_bit_from_the_state():
    """In a new trainer; dropout, momentum and averages depend on the state."""

    def make(seed):
        keras.utils.set_random_seed(seed)
        model = network(keras.layers.Dropout(0.5))
        trainer = TensorFlowTrainer(model)
        config = OptimizerConfig("adamw", weight_decay=0.1, ema=0.9)
        trainer.compile(make_optimizer(config, 1e-2, model))
        return trainer

    ours = make(1)
    ours.fit(batches(), verbose=0)
    state = ours.state_arrays()
    ours.fit(batches(), verbose=0)
    other = make(2)
    other.fit(batches(8), verbose=0)
    other.set_state(state)
    other.fit(batches(), verbose=0)
    np.testing.assert_equal(other.state_arrays(), ours.state_arrays())


def test_clipping_leaves_gradients_below_the_limit():
    for limit, factor in ((None, 1), (5.0, 1), (6.0, 1), (2.5, 0.5)):
        assert float(clipping_factor(5.0, limit)) == factor


def test_nothing_of_an_update_is_computed_before_its_gradient():
    """The decays of all weights would be in memory during the whole step."""
    model = network()
    trainer = TensorFlowTrainer(model)
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.1)
    trainer.compile(make_optimizer(config, 0.1, model))

    @tf.function(autograph=False)
    def update(*gradients):
        trainer._apply(tf.distribute.get_strategy(), gradients, None)

    weights = [weight.value for weight in model.trainable_variables]
    specs = [tf.TensorSpec(weight.shape) for weight in weights]
    graph = update.get_concrete_function(*specs).graph
    gradients = {tensor.op for tensor in graph.inputs[: len(specs)]}
    reads = [
        op
        for op in graph.get_operations()
        if op.type == "ReadVariableOp" and len(op.outputs[0].shape) == 2
    ]
    assert len(reads) == 2  # the kernels
    assert all(gradients.intersection(read.control_inputs) for read in reads)


@pytest.mark.slow
def test_validation_counts_each_image_once_with_steps_per_execution():
    def losses(steps_per_execution):
        trainer = TensorFlowTrainer(network())
        trainer.compile(
            keras.optimizers.SGD(0.1), steps_per_execution=steps_per_execution
        )
        data = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))
        history = trainer.fit(
            data.batch(12),
            validation_data=data.batch(16).repeat(),  # as in `fit` of a recipe
            validation_steps=3,
            epochs=2,
            verbose=0,
        )
        return history.history["val_loss"]

    expected = pytest.approx(losses(1), rel=1e-6)
    assert losses(2) == expected
    assert losses(4) == expected


def test_a_batch_of_weight_0_changes_no_weights():
    trainer = TensorFlowTrainer(network())
    trainer.compile(keras.optimizers.SGD(0.1))
    before = trainer.model.get_weights()
    trainer.fit(
        IMAGES, LABELS, sample_weight=np.zeros(48, "float32"), batch_size=48, verbose=0
    )
    np.testing.assert_equal(trainer.model.get_weights(), before)


def test_frozen_batch_normalization_does_not_change():
    model = network(keras.layers.BatchNormalization(name="norm"))
    optimizer = make_optimizer(OptimizerConfig("sgd", frozen=("norm",)), 0.1, model)
    trainer = TensorFlowTrainer(model)
    trainer.compile(optimizer)
    trainer.fit(IMAGES, LABELS, verbose=0)
    norm = model.get_layer("norm")
    np.testing.assert_array_equal(norm.moving_mean, np.zeros(7))
    np.testing.assert_array_equal(norm.moving_variance, np.ones(7))
