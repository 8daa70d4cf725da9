"""Writes files of archived projects by their own code, and what their models answer.

`python orphans.py FOLDER PROJECT...` in an environment of orphans-keras2.txt or
orphans-keras3.txt, which `make orphans` makes. Each kind becomes a folder with the
files and `expected.npz`: the pixels [B, H, W, 3] and the outputs by their names.
"""

import pathlib
import sys

import numpy as np

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 40,
    "patch_size": 8,
}
TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 50,
    "max_position_embeddings": 10,
}
DECODER = {
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 20,
}
# The class of the model, that of its config, and options.
HUGGING_FACE = {
    "vit": ("ViTModel", "ViT", {"hidden_act": "gelu_new"}),
    "vit_classifier": ("ViTForImageClassification", "ViT", {"num_labels": 5}),
    "deit": ("DeiTModel", "DeiT", {"qkv_bias": False}),
    "deit_classifier": (
        *("DeiTForImageClassification", "DeiT"),
        {"num_labels": 5, "layer_norm_eps": 1e-3},
    ),
    "deit_teacher": (
        *("DeiTForImageClassificationWithTeacher", "DeiT"),
        {"num_labels": 5},
    ),
    "deit_masked": ("DeiTForMaskedImageModeling", "DeiT", {}),
    "mae": ("ViTMAEModel", "ViTMAE", {"mask_ratio": 0.0}),
    "mae_pretraining": (
        *("ViTMAEForPreTraining", "ViTMAE"),
        {"mask_ratio": 0.0, **DECODER},
    ),
    "clip": ("CLIPModel", "CLIP", {"text_config": TEXT, "projection_dim": 12}),
    "clip_vision": ("CLIPVisionModel", "CLIPVision", {"hidden_act": "gelu"}),
    "data2vec": (
        *("Data2VecVisionModel", "Data2VecVision"),
        {"use_absolute_position_embeddings": True},
    ),
    "data2vec_classifier": (
        *("Data2VecVisionForImageClassification", "Data2VecVision"),
        {"num_labels": 5, "use_relative_position_bias": True},
    ),
    "data2vec_shared": (
        *("Data2VecVisionModel", "Data2VecVision"),
        {"use_shared_relative_position_bias": True, "layer_scale_init_value": 0},
    ),
}


def randomize(model):
    """Other weights than zeros and ones, so that each counts."""
    random = np.random.default_rng(5)
    for weight in model.weights:
        usual = 1.0 if "gamma" in weight.name or "lambda" in weight.name else 0.0
        weight.assign(usual + random.normal(scale=0.2, size=tuple(weight.shape)))


def make_pixels(size):
    random = np.random.default_rng(7)
    return random.uniform(-1, 1, (2, *size, 3)).astype("float32")


def hugging_face(folder):
    import tensorflow as tf
    import transformers

    for kind, (model_class, config_class, options) in HUGGING_FACE.items():
        sizes = {"vision_config": SIZES} if kind == "clip" else SIZES
        config = getattr(transformers, f"{config_class}Config")(**sizes, **options)
        model = getattr(transformers, f"TF{model_class}")(config)
        model.build_in_name_scope()
        randomize(model)
        model.save_pretrained(folder / kind)
        pixels = make_pixels((40, 40))
        channels_first = tf.constant(pixels.transpose(0, 3, 1, 2))
        arguments = {"pixel_values": channels_first, "training": False}
        if kind == "clip":
            found = {"image_embeds": model.get_image_features(**arguments)}
        elif "mae" in kind:
            # The order in which patches are kept, all of them here.
            noise = np.tile(np.arange(25, dtype="float32"), (2, 1))
            found = model.vit(**arguments, noise=noise, return_dict=True)
        elif kind == "deit_masked":
            found = model.deit(**arguments, return_dict=True)
        else:
            found = model(**arguments)
        outputs = {name: v for name, v in found.items() if isinstance(v, tf.Tensor)}
        np.savez(folder / kind / "expected.npz", pixels=pixels, **outputs)


def vit_keras(folder):
    from vit_keras import vit

    for kind, options in {
        "vit_keras": {"representation_size": 16},
        "vit_keras_softmax": {"activation": "softmax"},
        "vit_keras_features": {"include_top": False},
    }.items():
        model = vit.build_model(
            image_size=(32, 48),
            patch_size=8,
            num_layers=2,
            hidden_size=24,
            num_heads=3,
            name="vit-custom",
            mlp_dim=40,
            classes=5,
            **options,
        )
        randomize(model)
        pixels = make_pixels((32, 48))
        outputs = np.asarray(model(pixels, training=False))
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        (folder / kind).mkdir()
        model.save(folder / kind / "whole.h5")
        model.save_weights(folder / kind / "model.weights.h5")
        if hasattr(model, "save_spec"):  # Keras 2, which looks at the suffix alone
            model.save_weights(folder / kind / "weights.h5")
        np.savez(folder / kind / "expected.npz", pixels=pixels, outputs=outputs)


def keras_cv(folder):
    from keras_cv.src.models.legacy.vit import ViT
    from tensorflow import keras

    for kind, options in {
        "keras_cv": {"num_classes": 5, "include_top": True},
        "keras_cv_logits": {
            "num_classes": 5,
            "include_top": True,
            "classifier_activation": None,
        },
        "keras_cv_features": {"include_top": False, "pooling": "token_pooling"},
        "keras_cv_tokens": {"include_top": False},
    }.items():
        # Further models have other numbers in the names of their layers.
        model = ViT(
            input_shape=(40, 40, 3),
            include_rescaling=False,
            patch_size=8,
            project_dim=24,
            transformer_layer_num=2,
            num_heads=3,
            mlp_dim=40,
            mlp_dropout=0.1,
            attention_dropout=0.1,
            activation=keras.activations.gelu,  # the default of its named sizes
            **options,
        )
        randomize(model)
        pixels = make_pixels((40, 40))
        outputs = model((pixels + 1) / 2, training=False).numpy()
        (folder / kind).mkdir()
        model.save(folder / kind / "whole.h5")
        model.save_weights(folder / kind / "weights.h5")
        np.savez(folder / kind / "expected.npz", pixels=pixels, outputs=outputs)


if __name__ == "__main__":
    for project in sys.argv[2:]:
        globals()[project](pathlib.Path(sys.argv[1]))
