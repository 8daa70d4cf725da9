"""Writes a synthetic checkpoint of every family: published shapes, random numbers.

    python -m benchmarks.synthetic FOLDER

For trying the loader where nothing can be downloaded: what it does with these files it
does with the published ones. They take 0.7 GB.
"""

import argparse
import json
import pathlib

import h5py
import numpy as np

import keras_vit
from benchmarks.published_arrays import (
    SIZES,
    UNITS,
    as_void,
    big_vision,
    bit,
    google,
    prefixed,
    random_arrays,
    stacked,
    with_adam,
)
from keras_vit.weights.families.keras_hub import KERAS_HUB
from keras_vit.weights.families.layouts import match_ours


def _npz_files():
    """File name and arrays of each .npz."""
    augreg = google(SIZES["B"], 16, 14, 21843)
    yield "augreg_B_16_i21k.npz", random_arrays(augreg, scale=0.02)
    original = random_arrays(google(SIZES["Ti"], 16, 14, 21843, pre_logits=True))
    original["head/kernel"][:] = 0
    yield "original_Ti_16_i21k.npz", original
    sam = with_adam(google(SIZES["Ti"], 16, 14, 1000))
    yield "training_Ti_16.npz", random_arrays(sam)
    hybrid = google(SIZES["S"], 1, 12, 1000, units=UNITS["R26"])
    yield "hybrid_R26_S_32_384.npz", random_arrays(hybrid)
    tower = random_arrays(big_vision(SIZES["Ti"], 16, 16, pooling="map"))
    tower = {name: as_void(array) for name, array in stacked(tower, np.stack).items()}
    text = {"params/txt/head/bias": np.zeros(768, "float32")}
    yield "big_vision_Ti_16_two_towers.npz", {**prefixed("params/img/", tower), **text}
    yield "bit_R50x1.npz", random_arrays(bit(UNITS["R50"], 1, 1000))


def _keras_hub(model, folder: pathlib.Path) -> None:
    """Backbone and classifier in two files, as keras-hub's presets have them."""
    folder.mkdir(exist_ok=True)
    files = ("model.weights.h5", "task.weights.h5")
    with (
        h5py.File(folder / files[0], "w") as backbone,
        h5py.File(folder / files[1], "w") as task,
    ):
        for weight in model.weights:
            row, name, _ = next(match_ours(KERAS_HUB, weight.path))
            name = name.replace("encoder_block_0/", "encoder_block/")
            head = name.startswith("predictions/")
            name = name.replace("predictions/", "layers/dense/")
            (task if head else backbone)[name] = row.layout.write(
                np.asarray(weight), model.heads
            )
    config = {"num_heads": model.heads, "image_shape": [*model.image_size, 3]}
    (folder / "config.json").write_text(json.dumps({"config": config}))
    (folder / "task.json").write_text(json.dumps({"config": {"pooling": "token"}}))


def main() -> None:
    """Writes the files and prints their names."""
    parser = argparse.ArgumentParser(description="Synthetic checkpoints.")
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, arrays in _npz_files():
        np.savez(folder / name, **arrays)
        print(folder / name, flush=True)
    model = keras_vit.VisionTransformer.from_variant("Ti/16", gelu="exact")
    for family in ("timm", "hugging_face"):
        keras_vit.save_checkpoint(model, folder / f"{family}_Ti_16", family)
        print(folder / f"{family}_Ti_16")
    _keras_hub(model, folder / "keras_hub_Ti_16")
    print(folder / "keras_hub_Ti_16")


if __name__ == "__main__":
    main()
