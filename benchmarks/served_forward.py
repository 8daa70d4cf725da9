"""How fast is an exported B/16 in a session, beside keras-hub's own export of it?

    python -m benchmarks.served_forward [--variant B/16] [--depth N] [--spinning]

Both SavedModels run as TensorFlow Serving runs them: in a `tf.compat.v1.Session` with
docker/tfserving/session.config, or with `--spinning` in TensorFlow's own settings. The
contestants take turns in each round; a ratio is the median over the rounds of the
ratios within a round, of wall time and of CPU time (of all threads, which holds still
where others use the machine, but shows no waiting). `serve_pixels` is fed with what
keras-hub's signature takes: no image is decoded. "from JPEG files" is our default
signature, with images of twice the size; "not exported" the Keras model called in a
`tf.function`, what serving can at best be. TensorFlow uses oneDNN's kernels, as in
docker/serve.Dockerfile; TF_ENABLE_ONEDNN_OPTS=0 takes Eigen's, TensorFlow's default
where the processor lacks AVX512_VNNI, AVX512_BF16 and AMX. Needs keras-hub:
`pip install -e ".[parity]"`.
"""

import argparse
import dataclasses
import functools
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.util._pywrap_util_port import IsMklEnabled

import keras_vit
from benchmarks.peer_models import keras_hub_model
from benchmarks.turns import machine
from serving.export.options import ExportOptions
from serving.export.signatures import save

SESSION_CONFIG = Path(__file__).parent.parent / "docker/tfserving/session.config"
PRECISIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
REFERENCE = "keras-hub"
# Seconds of wall and of CPU time for each turn.
Seconds = list[tuple[float, float]]


def export_all(
    spec: keras_vit.ViTSpec, patch_size: int, precision: str, folder: Path
) -> dict[str, Path]:
    """Writes all contestants with all weights random."""
    hub = _filled(keras_hub_model(spec, patch_size, 224, PRECISIONS[precision]))
    hub.export(str(folder / REFERENCE), verbose=False)
    found = {REFERENCE: folder / REFERENCE}
    for gelu in ("tanh", "exact"):
        model = keras_vit.VisionTransformer(
            image_size=224,
            patch_size=patch_size,
            width=spec.width,
            depth=spec.depth,
            mlp_dim=spec.mlp_dim,
            heads=spec.heads,
            classes=1000,
            gelu=gelu,
        )
        _filled(model)
        for batching in ("graph", "none"):
            name = f"keras-vit, {gelu} GELU, batching {batching}"
            found[name] = folder / f"{gelu}_{batching}"
            options = ExportOptions(batching=batching, precision=precision)
            save(model, found[name], options)
    return found


def _filled(model: Any) -> Any:
    generator = np.random.default_rng(0)
    for weight in model.weights:
        # Zero biases would let TensorFlow remove the additions.
        weight.assign(generator.normal(scale=0.02, size=weight.shape))
    return model


def opened(
    folder: Path, config: config_pb2.ConfigProto, name: str | None = None
) -> Callable:
    """A signature, by default that of pixels, as TensorFlow Serving runs it."""
    graph = tf.Graph()
    session: Any = tf.compat.v1.Session(graph=graph, config=config)
    with graph.as_default():
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
    signatures = meta_graph.signature_def
    ours = "serve_pixels" in signatures
    signature = signatures[name or ("serve_pixels" if ours else "serving_default")]
    [pixels] = [info.name for info in signature.inputs.values()]
    return session.make_callable(
        [info.name for info in signature.outputs.values()], [pixels]
    )


def not_exported(variant: str, depth: int, precision: str, images: Any) -> Callable:
    """The Keras model in a `tf.function`, with weights in the precision."""
    model = keras_vit.VisionTransformer.from_variant(
        variant, depth=depth, classes=1000, gelu="exact", dtype=precision
    )
    _filled(model)
    call = tf.function(lambda images: model(images, training=False))
    tensor = tf.constant(images)
    return lambda: call(tensor).numpy()


def jpeg_files(count: int) -> np.ndarray[Any, Any]:
    """Smooth random images of 448 pixels as JPEG files: object [count]."""
    generator = np.random.default_rng(0)
    coarse = generator.uniform(0, 255, (count, 14, 14, 3))
    images = tf.cast(tf.image.resize(coarse, (448, 448), "bicubic"), tf.uint8)
    return np.array([tf.io.encode_jpeg(i).numpy() for i in images], object)


def take_turns(functions: dict[str, Callable], rounds: int):
    """Seconds of each function, whose turns come in another order in each round."""
    found: dict[str, Seconds] = {name: [] for name in functions}
    for function in functions.values():
        function()  # the first call optimizes the graph
    names = list(functions)
    for _ in track(range(rounds), "rounds", console=Console(stderr=True)):
        random.shuffle(names)
        for name in names:
            wall, processor = time.perf_counter(), time.process_time()
            functions[name]()
            found[name].append(
                (time.perf_counter() - wall, time.process_time() - processor)
            )
    return found


def ratio(reference: Seconds, seconds: Seconds, clock: int) -> float:
    """How many times faster than the reference, by wall (0) or CPU time (1)."""
    pairs = zip(reference, seconds, strict=True)
    return statistics.median(a[clock] / b[clock] for a, b in pairs)


def main() -> None:
    """Measures, prints the table, and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="B/16")
    parser.add_argument("--depth", type=int, help="blocks, in place of the variant's")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    names = list(PRECISIONS)
    parser.add_argument("--precisions", nargs="+", choices=names, default=names)
    parser.add_argument("--spinning", action="store_true")
    parser.add_argument("--output", default="benchmarks/served_forward.json")
    arguments = parser.parse_args()
    config = config_pb2.ConfigProto()
    if not arguments.spinning:
        text_format.Parse(SESSION_CONFIG.read_text("utf-8"), config)
    spec, patch_size = keras_vit.parse_variant(arguments.variant)
    if arguments.depth:
        spec = dataclasses.replace(spec, depth=arguments.depth)
    shape = (arguments.batch, 224, 224, 3)
    images = np.random.default_rng(0).normal(size=shape).astype("float32")
    files = jpeg_files(arguments.batch)
    table = Table(title=f"{arguments.variant}, {spec.depth} blocks, batch {shape[0]}")
    for heading in ("precision", "export", "s", "ratio, wall", "ratio, CPU"):
        table.add_column(heading)
    rows = []
    for precision in arguments.precisions:
        with tempfile.TemporaryDirectory() as folder:
            paths = export_all(spec, patch_size, precision, Path(folder))
            functions: dict[str, Callable] = {
                name: functools.partial(opened(path, config), images)
                for name, path in paths.items()
            }
            ours = paths["keras-vit, exact GELU, batching graph"]
            served = opened(ours, config, "serving_default")
            functions["keras-vit, from JPEG files"] = functools.partial(served, files)
            functions["keras-vit, not exported"] = not_exported(
                arguments.variant, spec.depth, precision, images
            )
            found = take_turns(functions, arguments.rounds)
        for name, seconds in found.items():
            row = {
                "precision": precision,
                "export": name,
                "seconds": statistics.median(wall for wall, _ in seconds),
                "wall_ratio": ratio(found[REFERENCE], seconds, 0),
                "cpu_ratio": ratio(found[REFERENCE], seconds, 1),
            }
            rows.append(row)
            figures = [f"{value:.2f}" for value in list(row.values())[2:]]
            table.add_row(precision, name, *figures)
    Console().print(table)
    with open(arguments.output, "w", encoding="utf-8") as file:
        said = {
            "machine": machine(("tensorflow", "keras", "keras-hub")),
            "variant": arguments.variant,
            "depth": spec.depth,
            "onednn": bool(IsMklEnabled()),
            "spinning": arguments.spinning,
            "rows": rows,
        }
        json.dump(said, file, indent=1)


if __name__ == "__main__":
    main()
