"""Train with stock Keras and with the trainer on two logical devices; print JSON.

    python tests/support/stock_keras_runs.py

With TF_CONFIG, only whether stock Keras can train under MultiWorkerMirroredStrategy.
"""

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

from training.engine.tensorflow_trainer import TensorFlowTrainer

# One weight w = 0, the logit w * x and the sigmoid loss: the gradients (0.5 - y) * x
# of the two images are 10 and -9.8, and that of the batch is 0.1.
IMAGES = np.array([[20.0], [19.6]], "float32")
LABELS = np.array([[0.0], [1.0]], "float32")
RATE = 0.5


def one_weight():
    """A network with one weight."""
    network = keras.Sequential([keras.Input((1,))])
    network.add(keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"))
    return network


def weight_of(network) -> float:
    """The weight, on the first replica."""
    return float(keras.ops.convert_to_numpy(network.weights[0].value)[0, 0])


def batches(images=IMAGES, steps=1):
    """Batches of two images, one for each replica."""
    return tf.data.Dataset.from_tensors((images, LABELS)).repeat(steps)


def stock(strategy, optimizer, images=IMAGES, steps=1, **options):
    """The weight after stock Keras's `fit`, or the error."""
    with strategy.scope():
        network = one_weight()
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        network.compile(optimizer(), loss, **options)
    try:
        network.fit(
            batches(images, steps), steps_per_epoch=steps, shuffle=False, verbose=0
        )
    except (RuntimeError, ValueError, tf.errors.OpError) as error:
        return f"{type(error).__name__}: {error}"
    return weight_of(network)


def sgd(**options):
    """Plain gradient descent."""
    return keras.optimizers.SGD(RATE, **options)


def overflow(strategy, replica: int) -> dict[str, float]:
    """The weights after a step whose gradient is infinite on one replica."""
    images = np.array([[1.0], [1.0]], "float32")
    images[replica] = np.inf
    return {
        "stock": stock(strategy, scaled, images),
        "ours": scaled_step(strategy, images),
    }


def scaled():
    """Stock Keras's loss scaling."""
    return keras.optimizers.LossScaleOptimizer(sgd())


def scaled_step(strategy, images):
    """The trainer's scale, and the weight on each replica."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        with strategy.scope():
            network = one_weight()
            trainer = TensorFlowTrainer(network, "sigmoid")
            trainer.compile(sgd(), metrics=())
    finally:
        keras.config.set_dtype_policy("float32")
    trainer.fit(batches(images), verbose=0)
    scale = keras.ops.convert_to_numpy(trainer.scaler.scale)
    return [float(scale), *on_each(strategy, network.weights[0])]


def on_each(strategy, variable) -> list:
    """A variable's value on each replica."""
    values = strategy.experimental_local_results(variable.value)
    return [keras.ops.convert_to_numpy(value).ravel().tolist() for value in values]


def masks(strategy, trained=False, restored=False) -> list[list[float]]:
    """The output of dropout for ones, on each replica, in two calls."""
    with strategy.scope():
        network = keras.Sequential([keras.Input((32,)), keras.layers.Dropout(0.5)])
        if trained:
            trainer = TensorFlowTrainer(network)
            trainer.compile(sgd())
    if restored:
        trainer.set_state(trainer.state_arrays())

    @tf.function
    def apply():
        return strategy.run(lambda: network(tf.ones([1, 32]), training=True))

    results = [strategy.experimental_local_results(apply()) for _ in range(2)]
    return [each.numpy()[0].tolist() for result in results for each in result]


def normalized(strategy, accumulation: int) -> list[list[float]]:
    """The moving mean and variance on each replica after a step."""
    with strategy.scope():
        network = keras.Sequential(
            [
                keras.Input((1,)),
                keras.layers.BatchNormalization(momentum=0.75),
                keras.layers.Dense(1),
            ]
        )
        trainer = TensorFlowTrainer(network, "sigmoid", accumulation=accumulation)
        trainer.compile(sgd(), metrics=())
    images = np.array([[1], [2], [4], [7], [11], [16], [22], [29]], "float32")
    labels = np.zeros([8, 1], "float32")
    trainer.fit(tf.data.Dataset.from_tensors((images, labels)), verbose=0)
    layer = network.layers[0]
    return [on_each(strategy, v) for v in (layer.moving_mean, layer.moving_variance)]


def on_arrays(strategy) -> dict:
    """The results of the trainer's methods for arrays of 5 images."""
    images = np.linspace(-1, 1, 5).astype("float32")[:, None]
    labels = (images > 0.1).astype("float32")
    weights = np.array([1, 4, 9, 16, 25], "float32")
    with strategy.scope():
        network = one_weight()
        network.layers[0].kernel.assign([[0.3]])
        trainer = TensorFlowTrainer(network, "sigmoid")
        trainer.compile(sgd(), metrics=())
    results = {
        "predict": trainer.predict(images, batch_size=4, verbose=0)[:, 0].tolist(),
        "evaluate": trainer.evaluate(images, labels, batch_size=4, verbose=0),
        "evaluate weighted": trainer.evaluate(
            images, labels, batch_size=4, sample_weight=weights, verbose=0
        ),
        "test on batch": trainer.test_on_batch(images, labels, weights),
        "train on batch": trainer.train_on_batch(images, labels, weights),
        "weight": weight_of(network),
    }
    trainer.fit(
        images,
        labels,
        sample_weight=weights,
        batch_size=5,
        verbose=0,
        validation_data=(images, labels, weights),
    )
    return results | {"weight after fit": weight_of(network)}


def compare(strategy):
    """All results, by name."""
    return {
        "clipping": stock(strategy, lambda: sgd(global_clipnorm=1.0)),
        "overflow on replica 0": overflow(strategy, 0),
        "overflow on replica 1": overflow(strategy, 1),
        "accumulation": stock(strategy, lambda: sgd(gradient_accumulation_steps=2)),
        "steps per execution": stock(strategy, sgd, steps=4, steps_per_execution=2),
        "XLA": stock(strategy, sgd, jit_compile=True),
        "masks": {
            "stock": masks(strategy),
            "ours": masks(strategy, trained=True),
            "restored": masks(strategy, trained=True, restored=True),
        },
        "normalized": [normalized(strategy, parts) for parts in (1, 2)],
        "arrays": on_arrays(strategy),
    }


def main() -> None:
    """Prints the results as JSON."""
    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        print(json.dumps(stock(strategy, sgd)))
        return
    device = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(device, two)
    print(json.dumps(compare(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))))


if __name__ == "__main__":
    main()
