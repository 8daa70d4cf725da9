"""A user's program for type checkers; see test_packaging.py. It is never run.

Keras has no types, so nothing of it is used by name: what a user may expect are the
names of keras_vit, and of what its models inherit, what keras_vit/keras_classes.py has.
"""

import asyncio
from pathlib import Path

import numpy as np
from keras_vit.serving.client import (
    AsyncGrpcClient,
    AsyncRestClient,
    GrpcClient,
    Prediction,
    RestClient,
    ServingError,
)

import keras_vit
from keras_vit import analysis, decoding, layers, weights

IMAGES = np.zeros((8, 32, 32, 3), "float32")
LABELS = np.zeros(8, "int64")
NAMES = ["ant", "bee", "cat"]


def train() -> keras_vit.VisionTransformer:
    model = keras_vit.VisionTransformer.from_variant(
        "B/16", image_size=32, classes=3, class_names=NAMES
    )
    model.compile(
        optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    inputs = keras_vit.preprocess_input(IMAGES)
    history = model.fit(inputs, LABELS, epochs=2, validation_data=(inputs, LABELS))
    print(history.history["loss"][-1], model.evaluate(inputs, LABELS, verbose=0))
    scores = model.predict(inputs, batch_size=4)
    for [best] in keras_vit.decode_predictions(scores, top=1, class_names=NAMES):
        print(best[1], best[2] + 1.0)
    model.summary()
    model.save("model.keras")
    return model


def look(model: keras_vit.VisionTransformer) -> None:
    height, width = model.image_size
    rows, columns = model.grid
    print(height // rows, width // columns, model.classes, model.class_names)
    print(model.depth * model.heads, model.pixels, model.options["gelu"], model.name)
    print(model(IMAGES), model.probabilities(model(IMAGES)).sum())
    print(model.features_model(-1, layout="map").predict(IMAGES))
    print(model.attention_weights_model().predict(IMAGES))
    print(model.attention_rollout_model().predict(IMAGES))
    print(analysis.attention_rollout(model, IMAGES).shape)
    print(analysis.class_attention(model, IMAGES, block=-1).shape)
    print(analysis.attention_distance(model, IMAGES).mean(axis=1))
    print(analysis.embedding_filters(model).shape)
    print(analysis.position_similarity(model).shape)
    print(model.count_params(), [array.shape for array in model.get_weights()])
    print([weight.path for weight in model.trainable_weights], len(model.layers))


def adapt(path: Path) -> None:
    model = keras_vit.VisionTransformer.from_preset(
        "S/16:augreg_in21k", classes=5, include_preprocessing=True
    )
    larger = keras_vit.with_image_size(model, 384)
    report = keras_vit.load_checkpoint(larger, path)
    print(report.resampled)
    keras_vit.save_checkpoint(larger, path.with_suffix(".npz"), family="timm")
    opened = keras_vit.open_model(path, classes=5)
    print(opened.input_shape, opened.preprocessing)
    for row in weights.list_weights("B/16"):
        print(row.variant, row.name)
    with weights.open_checkpoint(path) as checkpoint:
        print(checkpoint.family)
    try:
        keras_vit.open_model("missing")
    except keras_vit.KerasViTError as error:
        print(error)


def other_models() -> None:
    bit = keras_vit.BiTR50x1(weights=None, input_shape=(32, 32, 3), classes=5)
    vit = keras_vit.ViTB16(weights=None, include_top=False, pooling="avg")
    resnet = keras_vit.ResNet.from_variant("R50x1", image_size=64, classes=None)
    whole = keras_vit.VisionTransformer(
        patch_size=16, width=192, depth=12, mlp_dim=768, heads=3, image_size=64
    )
    policy = keras_vit.ImagePreprocessing(64, mean=0.0, std=1.0)
    named = keras_vit.ImageClassifier(
        backbone=resnet, classes=3, class_names=NAMES, preprocessing=policy
    )
    print(bit.name, vit.predict(IMAGES), whole.patch_size, named.channels)
    spec, patch_size = keras_vit.parse_variant("B/16")
    print(spec.width // spec.heads, patch_size, keras_vit.parse_resnet("R50x1"))
    print(keras_vit.SPECS["B"].depth, keras_vit.imagenet_labels()[0][1])


def own_layers() -> None:
    tokens = np.zeros((2, 5, 8), "float32")
    block = layers.EncoderBlock(mlp_dim=32, heads=2, dropout=0.1, name="block")
    print(block(tokens, training=True), block.get_config()["heads"])
    x = layers.ClassToken()(layers.PositionEmbedding(stddev=0.02)(tokens))
    x = layers.MLP(32, gelu="exact")(layers.LayerNorm()(x))
    print(layers.AttentionPooling(mlp_dim=32, heads=2)(x))
    print(layers.MultiHeadSelfAttention(2)(x), layers.StochasticDepth(0.1)(x))
    pixels = decoding.load_image("image.jpeg")
    print(pixels.shape)


def ask(image: bytes) -> list[Prediction]:
    with RestClient("http://127.0.0.1:8501", "digits") as client:
        print(client.status()[0].version, client.metadata().signatures)
        [first] = client.classify([image])
        print(first.label.upper(), first.score + 1.0)
    with GrpcClient("127.0.0.1:8500", "digits") as client:
        try:
            return client.classify([image])
        except ServingError as error:
            raise SystemExit(str(error)) from error


async def ask_both(image: bytes) -> None:
    async with AsyncRestClient("http://127.0.0.1:8501", "digits") as client:
        print((await client.classify([image]))[0].label)
    async with AsyncGrpcClient("127.0.0.1:8500", "digits") as client:
        print((await client.predict({"images": IMAGES})).keys())


if __name__ == "__main__":
    look(train())
    adapt(Path("weights.npz"))
    other_models()
    own_layers()
    print(ask(b""))
    asyncio.run(ask_both(b""))
