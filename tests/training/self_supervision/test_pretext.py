"""Pretext models against their equations in NumPy float64."""

import keras
import numpy as np
import numpy_vit
import pytest
import tensorflow as tf
from long_cases import long_after
from tiny_model import with_random_weights
from tiny_recipe import TINY_RECIPE, changed

from keras_vit import ImagePreprocessing, VisionTransformer
from training.architectures.compiling import compile_trainer, model_to_train
from training.architectures.recipe_model import build_model
from training.data.masking import Masking
from training.data.splits import load_splits
from training.engine.datasets import training_data, validation_arguments
from training.errors import RecipeError
from training.recipe import Recipe, SelfSupervisionConfig
from training.self_supervision.pretext import PatchAccuracy, PretextModel, masked_loss
from training.self_supervision.pretext_layers import (
    color_codes,
    join_patches,
    split_patches,
)

pytestmark = pytest.mark.backend
# Every size is another number: 2 x 3 patches of 4 pixels.
SIDE, GRID, BATCH = 4, (2, 3), 5
TASKS = {
    "mean_color": SelfSupervisionConfig("masked_patches"),
    "simmim": SelfSupervisionConfig("simmim"),
    "mae": SelfSupervisionConfig(
        "mae", decoder_width=20, decoder_depth=2, decoder_heads=5
    ),
    "colors_4x4": SelfSupervisionConfig("masked_patches", target="colors_4x4"),
    "pixels": SelfSupervisionConfig("masked_patches", target="pixels"),
}


def make_encoder(**changes):
    arguments = {
        "image_size": (GRID[0] * SIDE, GRID[1] * SIDE),
        "patch_size": SIDE,
        "width": 14,
        "depth": 2,
        "mlp_dim": 11,
        "heads": 7,
        "classes": None,
        "register_tokens": 2,
        "preprocessing": ImagePreprocessing(
            (GRID[0] * SIDE, GRID[1] * SIDE), mean=[90, 110, 130], std=[50, 60, 70]
        ),
    }
    return VisionTransformer(**{**arguments, **changes})


@pytest.fixture(scope="module", params=long_after(3, TASKS))
def task(request):
    """Its config, the model with random weights, and a batch."""
    config = TASKS[request.param]
    keras.utils.set_random_seed(1)
    model = with_random_weights(PretextModel(make_encoder(), config), 0)
    random = np.random.default_rng(3)
    shape = (BATCH, *model.encoder.image_size, 3)
    images = random.integers(0, 256, shape).astype("float32")
    masking = Masking(config, GRID[0] * GRID[1], seed=4)
    masks = [masking.of_evaluated(tf.constant(i, tf.int64)) for i in range(BATCH)]
    indices, masked = (np.stack(part) for part in zip(*masks, strict=True))
    return config, model, images, indices, masked


# The equations.


def corrupted_tokens(model, w, images, indices):
    """Embeddings of patches, each replaced by the one of its index."""
    encoder = model.encoder
    kernel = w["embedding/kernel"].reshape(-1, encoder.width)
    z = numpy_vit.patches(images, SIDE) @ kernel + w["embedding/bias"]
    token = np.broadcast_to(w["corruption/mask_token"], (len(z), 1, encoder.width))
    with_token = np.concatenate([z, token], 1)
    return np.stack([rows[i] for rows, i in zip(with_token, indices, strict=True)])


def prefixed(w, z):
    tokens = [w["class_token/token"], w["register_tokens/tokens"]]
    tokens = [np.broadcast_to(t, (len(z), *t.shape[1:])) for t in tokens]
    return np.concatenate([*tokens, z], 1)


def encoded(model, w, z):
    encoder = model.encoder
    for index in range(encoder.depth):
        z = numpy_vit.encoder_block(z, w, f"encoder_block_{index}", encoder)
    return numpy_vit.layer_norm(z, w, "encoder_norm")


def reference_predictions(config, model, images, indices):
    w = numpy_vit.weights_of(model)
    encoder = model.encoder
    mean, std = np.array([90, 110, 130.0]), np.array([50, 60, 70.0])
    normalized = (images.astype("float64") - mean) / std
    positions = numpy_vit.positions(encoder, w, "position_embedding")
    if config.task != "mae":
        z = corrupted_tokens(model, w, normalized, indices)
        z = encoded(model, w, prefixed(w, z) + positions)[:, 3:]
        return numpy_vit.dense(z, w, "predictions"), normalized
    kernel = w["embedding/kernel"].reshape(-1, encoder.width)
    z = numpy_vit.patches(normalized, SIDE) @ kernel + w["embedding/bias"]
    z = prefixed(w, z) + positions
    visible = round(len(indices[0]) / 4)
    kept = [3 + order[:visible] for order in indices]
    z = np.stack([np.concatenate([x[:3], x[k]]) for x, k in zip(z, kept, strict=True)])
    z = numpy_vit.dense(encoded(model, w, z), w, "decoder_embedding")
    full = np.repeat(
        np.broadcast_to(w["restored/mask_token"], (len(z), 1, z.shape[-1])), 9, axis=1
    ).copy()
    full[:, :3] = z[:, :3]
    for image, order in enumerate(indices):
        full[image, 3 + order[:visible]] = z[image, 3:]
    decoder = make_decoder(config)
    full += numpy_vit.positions(decoder, w, "")
    for index in range(config.decoder_depth):
        full = numpy_vit.encoder_block(full, w, f"decoder_block_{index}", decoder)
    full = numpy_vit.layer_norm(full, w, "decoder_norm")[:, 3:]
    return numpy_vit.dense(full, w, "predictions"), normalized


def make_decoder(config):
    """Sizes for `numpy_vit`."""
    return make_encoder(
        width=config.decoder_width,
        heads=config.decoder_heads,
        position_embedding="sincos2d_mae",
    )


def reference_codes(images, divisions):
    """Each part's mean color, level by level: int [B, N, divisions^2]."""
    part = SIDE // divisions
    rows = []
    for image in images.astype("float64"):
        codes = []
        for top in range(0, image.shape[0], SIDE):
            for left in range(0, image.shape[1], SIDE):
                patch = image[top : top + SIDE, left : left + SIDE]
                colors = []
                for y in range(divisions):
                    for x in range(divisions):
                        box = patch[y * part :, x * part :][:part, :part]
                        red, green, blue = box.mean((0, 1)) // 32
                        colors.append(int(64 * red + 8 * green + blue))
                codes.append(colors)
        rows.append(codes)
    return np.array(rows)


def reference_losses(config, predictions, normalized, images):
    """Each patch's loss, and the share of right colors or None."""
    if config.predicts_colors:
        divisions = {"mean_color": 1, "colors_4x4": 4}[config.target]
        codes = reference_codes(images, divisions)
        logits = predictions.reshape(*codes.shape, 512)
        shares = numpy_vit.softmax(logits)
        true = np.take_along_axis(shares, codes[..., None], -1)[..., 0]
        right = logits.argmax(-1) == codes
        return -np.log(true).mean(-1), right.mean(-1)
    targets = numpy_vit.patches(normalized, SIDE)
    if config.task == "mae":
        mean = targets.mean(-1, keepdims=True)
        variance = targets.var(-1, ddof=1, keepdims=True)
        targets = (targets - mean) / np.sqrt(variance + 1e-6)
    errors = np.abs(predictions - targets)
    return (errors if config.task == "simmim" else errors**2).mean(-1), None


def test_the_losses_follow_the_equations(task):
    config, model, images, indices, masked = task
    predictions, normalized = reference_predictions(config, model, images, indices)
    ours = model.predictions(images, indices)
    np.testing.assert_allclose(ours, predictions, atol=2e-5)
    losses, right = reference_losses(config, predictions, normalized, images)
    outputs = model({"images": images, "patch_indices": indices})
    outputs = keras.ops.convert_to_numpy(outputs)
    np.testing.assert_allclose(outputs[..., 0], losses, rtol=1e-4, atol=1e-5)
    expected = (losses * masked).sum(1) / masked.sum(1)
    np.testing.assert_allclose(masked_loss(masked, outputs), expected, rtol=1e-4)
    if right is not None:
        np.testing.assert_allclose(outputs[..., 1], right, atol=1e-6)
        accuracy = PatchAccuracy()
        weights = np.arange(1.0, BATCH + 1)
        accuracy.update_state(masked, outputs, weights)
        each = (right * masked).sum(1) / masked.sum(1)
        expected = (each * weights).sum() / weights.sum()
        assert float(accuracy.result()) == pytest.approx(expected, abs=1e-6)


def test_what_is_not_masked_has_no_part_in_the_loss(task):
    """Changed predictions of visible patches change nothing; of masked ones they do."""
    config, model, images, indices, masked = task
    predictions = model.predictions(images, indices)
    layer = model.get_layer("losses")
    target = images if config.predicts_colors else model.preprocessing(images)

    def loss(changed):
        return keras.ops.convert_to_numpy(
            masked_loss(masked, layer(predictions + changed, target))
        )

    noise = np.random.default_rng(0).normal(size=predictions.shape).astype("float32")
    before, visible = loss(0 * noise), masked[..., np.newaxis] == 0
    np.testing.assert_array_equal(loss(np.where(visible, noise, 0)), before)
    assert (loss(np.where(visible, 0, noise)) != before).all()


def test_gradients_reach_the_encoder_through_masked_patches_alone(task):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("reads the gradient by TensorFlow's tape")
    config, model, images, indices, masked = task
    head = model.get_layer("predictions")
    with tf.GradientTape() as tape:
        inputs = keras.Model(model.input, head.input)(
            {"images": images, "patch_indices": indices}
        )
        tape.watch(inputs)
        target = images if config.predicts_colors else model.preprocessing(images)
        losses = model.get_layer("losses")(head(inputs), target)
        total = tf.reduce_sum(masked_loss(masked, losses))
    gradient = np.abs(tape.gradient(total, inputs).numpy()).max(-1)
    np.testing.assert_array_equal(gradient > 0, masked > 0)


def test_images_without_a_mask_have_no_loss_and_no_gradient():
    """They only fill up the last batch."""
    outputs = np.ones((2, 6, 1), "float32")
    masked = np.array([[0] * 6, [1, 0, 0, 0, 0, 0]], "float32")
    np.testing.assert_array_equal(masked_loss(masked, outputs), [0, 1])


def test_the_colors_of_gray_images_have_8_classes():
    gray = np.repeat(np.arange(0, 256, 32, dtype="float32"), 16).reshape(8, 4, 4, 1)
    codes = keras.ops.convert_to_numpy(color_codes(gray + 31, 4, 1))
    np.testing.assert_array_equal(codes[:, 0, 0], np.arange(8))


def test_patches_are_joined_as_they_were_split():
    images = np.random.default_rng(0).normal(size=(2, 8, 12, 3)).astype("float32")
    patches = split_patches(images, SIDE)
    np.testing.assert_array_equal(patches, numpy_vit.patches(images, SIDE))
    np.testing.assert_array_equal(join_patches(patches, GRID, SIDE), images)


@pytest.mark.parametrize(
    "changes",
    long_after(
        3,
        [
            {"position_embedding": "relative", "position_placement": "shared"},
            {
                "attention": "axial",
                "register_tokens": 0,
                "class_token": False,
                "pooling": "avg",
            },
            {"resnet_blocks": (1,), "patch_size": 1, "width": 32, "heads": 4},
            {"position_embedding": "learned_2d"},
            {"position_embedding": "relative"},
            {"position_placement": "every_layer"},
            {"class_token": False, "pooling": "avg"},
            {"register_tokens": 0, "class_token": False, "pooling": "avg"},
            {"dtype": "mixed_bfloat16"},
        ],
    ),
)
def test_masked_patch_prediction_takes_every_kind_of_encoder(changes):
    encoder = make_encoder(**changes)
    model = PretextModel(encoder, TASKS["mean_color"])
    patches = encoder.grid[0] * encoder.grid[1]
    images = np.zeros((2, *encoder.image_size, 3), "float32")
    indices = np.full((2, patches), patches, "int32")
    outputs = model({"images": images, "patch_indices": indices})
    assert outputs.shape == (2, patches, 2)
    own = {id(weight) for weight in model.trainable_weights}
    assert {id(weight) for weight in encoder.trainable_weights} < own


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mean_color", {"pooling": "map"}, "`model.pooling` must be 'token' or 'avg' "),
        ("mean_color", {"fc_norm": True}, "`model.fc_norm` must be False"),
        ("mean_color", {"final_norm": False}, "`model.final_norm` must be True"),
        ("mean_color", {"projection": 9}, "`model.projection` must be None"),
        ("mean_color", {"patch_dropout": 0.2}, "`model.patch_dropout` must be 0"),
        ("mae", {"position_placement": "every_layer"}, "placement` must be 'stem' "),
        ("mae", {"rotary": "grid", "width": 24, "heads": 3}, "rotary` must be None "),
        ("mae", {"position_embedding": "relative"}, "placement` must be 'stem' "),
        (
            "colors_4x4",
            {"patch_size": 2},
            "target` must be mean_color or pixels for patches of 2 pixels",
        ),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused(name, changes, message):
    with pytest.raises(RecipeError, match=message):
        PretextModel(make_encoder(**changes), TASKS[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label_smoothing": 0.1}, "`label_smoothing` must be 0 with self_sup"),
        ({"augmentation": {"mixup": 0.2}}, "`augmentation.mixup` must be 0"),
        ({"optimizer": {"head_first": 0.2}}, "`optimizer.head_first` must be 0"),
        ({"model": {"architecture": "bit"}}, "`model.architecture` must be vit"),
    ],
)
def test_what_needs_labels_is_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        changed(TINY_RECIPE, self_supervision={"task": "mae"}, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_share": 1.0}, r"mask_share` must be in \(0, 1\)"),
        ({"decoder_width": 30}, "multiple of decoder_heads .16. and of 4"),
        ({"decoder_depth": 0}, "decoder_depth` must be at least 1"),
    ],
)
def test_values_out_of_range_are_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        SelfSupervisionConfig("mae", **changes)


def train(recipe: Recipe, epochs: int):
    keras.utils.set_random_seed(recipe.seed)
    splits = load_splits(recipe.data, 1)
    encoder = build_model(recipe.model, None)
    steps = len(splits.train) // recipe.batch_size
    trainer = compile_trainer(
        model_to_train(encoder, recipe), recipe, steps * epochs, steps
    )
    history = trainer.fit(
        training_data(trainer, recipe, splits.train, 0, steps * epochs),
        epochs=epochs,
        steps_per_epoch=steps,
        verbose=0,
        **validation_arguments(trainer, recipe, splits.validation),
    )
    return history.history


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "epochs"),
    [("mean_color", 2), ("mae", 4)],
)
def test_training_learns_more_than_the_mean(name, epochs):
    """Better than always predicting the most frequent color, or a patch's mean."""
    recipe = changed(
        TINY_RECIPE,
        batch_size=36,
        model={"patch_size": 2, "width": 24, "position_stddev": 1.0},
        self_supervision=TASKS[name],
        optimizer={"learning_rate": 0.01},
    )
    history = train(recipe, epochs)
    best = min(history["val_loss"])
    if name == "mae":
        # Normalized pixels, by the unbiased variance: the error of their mean.
        assert best < 0.9 * 3 / 4
        return
    images = load_splits(recipe.data, 1).validation
    pixels = np.stack([images.read(i) for i in range(len(images))]).astype("float32")
    codes = keras.ops.convert_to_numpy(color_codes(pixels, 2, 1)).ravel()
    counts = np.bincount(codes) / len(codes)
    entropy = -(counts[counts > 0] * np.log(counts[counts > 0])).sum()
    assert best < entropy - 0.1
    assert max(history["val_patch_accuracy"]) > counts.max() + 0.03
