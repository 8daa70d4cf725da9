"""The models and images of benchmarks/serving.py, created on the fly."""

import io
from pathlib import Path

from PIL import Image

from benchmarks.crops import photographs

SIDE = 224


def half_plus_two(folder: Path) -> None:
    """Write TensorFlow Serving's smallest model, y = 0.5 x + 2, as version 1."""
    import tensorflow as tf

    module = tf.Module()
    module.half = tf.Variable(0.5)
    module.two = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def serve(x):
        return {"y": module.half * x + module.two}

    tf.saved_model.save(module, str(folder / "1"), signatures=serve)


def vit():
    """Ti/16 at 224 with 1000 classes and random weights, the same in every process."""
    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    return keras_vit.VisionTransformer(
        image_size=SIDE,
        patch_size=16,
        width=192,
        depth=12,
        mlp_dim=768,
        heads=3,
        classes=1000,
    )


def export(model, folder: Path, batching: str) -> None:
    """Write a model as version 1."""
    from serving.export.options import ExportOptions
    from serving.export.signatures import save

    save(model, folder / "1", ExportOptions(batching=batching))


def write_jpegs(folder: Path) -> list[Path]:
    """Write crops of photographs as JPEG, 320 pixels wide and 20 to 50 kB large."""
    paths = []
    for name, picture in photographs().items():
        image = Image.fromarray(picture)
        side = min(image.size)
        for corner in (0, max(image.size) - side):
            box = (corner, 0, corner + side, side)
            if image.height > image.width:
                box = (0, corner, side, corner + side)
            crop = image.crop(box).resize((320, 320), Image.Resampling.BICUBIC)
            paths.append(folder / f"{name}_{corner}.jpg")
            paths[-1].write_bytes(_jpeg(crop))
    return paths


def _jpeg(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()
