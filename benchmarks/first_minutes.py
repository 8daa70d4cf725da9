"""What does this GPU or TPU do with keras-vit, in its first fifteen minutes?

    python -m benchmarks.first_minutes [--checks training export ...] [--tiny]

Run it once on a machine with an accelerator, and paste the table; the JSON file has the
same, and each row names its device. Each check is one or more commands of keras-vit in
processes of their own; one that fails or takes too long leaves its reason, and the
others go on. Of TensorFlow and JAX, those are checked that see an accelerator: on a TPU
VM it is JAX alone.

- devices: version and devices of each, also where it sees only the CPU.
- training: `fit` of digits twice with deterministic operations and twice without, its
  weights compared bit for bit with the first run's; with XLA and without; in each
  precision; with 1 and 22 steps per execution. Images/s of the last epoch.
- export: B/16 of 384 pixels for each `--target`, eight images at a time, on the GPU and
  on the CPU.
- jpeg: the input pipeline of JPEGs of 500x375 pixels, for each core, and the cores that
  the GPU needs for what `gpu` has measured of B/16's training.
- gpu: `benchmarks.gpu` of S/16 and B/16, where JAX sees a GPU and the other libraries
  are installed.

`--tiny` runs all of it on any machine; its figures mean nothing.
"""

import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks import report

SECONDS = 600  # after which a command is ended
# Prints a backend's version, the kind of device that it uses, and their names.
BACKENDS = {
    "tensorflow": """
import json
import tensorflow as tf
details = tf.config.experimental.get_device_details
for kind in ("TPU", "GPU", "CPU"):
    if devices := tf.config.list_physical_devices(kind):
        break
names = [details(device).get("device_name", kind) for device in devices]
print(json.dumps([tf.__version__, kind.lower(), names]))
""",
    "jax": """
import json
import jax
names = [device.device_kind for device in jax.devices()]
print(json.dumps([jax.__version__, jax.default_backend(), names]))
""",
}
TARGETS = ("any", "gpu", "cpu")
DEVICE_VARIABLES: dict[str, dict[str, str]] = {
    "the GPU": {"KERAS_BACKEND": "tensorflow"},
    "the CPU": {"CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"},
}
BATCH, IMAGE_BATCHES = 8, 20
PACKAGES = ("jax", "jaxlib", "libtpu", "tensorflow-tpu")
# Flags of `fit` by what the table calls them; the others' weights are compared with the
# first's.
RUNS = {
    "deterministic": (),
    "deterministic, again": (),
    "not deterministic": ("--deterministic", "false"),
    "not deterministic, again": ("--deterministic", "false"),
    "without XLA": ("--jit_compile", "off"),
    "with XLA": ("--jit_compile", "on"),
    "mixed_bfloat16": ("--precision", "mixed_bfloat16"),
    "mixed_float16": ("--precision", "mixed_float16"),
    "22 steps per execution": ("--steps_per_execution", "22"),
}
TENSORFLOW_ONLY = ("without XLA", "with XLA", "mixed_float16")
TINY_RUNS = ("deterministic", "deterministic, again", "22 steps per execution")


class Backend(NamedTuple):
    """TensorFlow or JAX: what it computes on, and its row.

    Attributes:
        platform: `cpu`, `gpu` or `tpu`; None where it cannot be used.
        figures: Its version and its devices, or why it failed.
    """

    platform: str | None
    figures: dict[str, Any]


Backends = dict[str, Backend]


class Failed(Exception):
    """A command that failed; the message is the last line that it wrote."""


def command(*words: str, **variables: str) -> str:
    """Run a module of this project, and return what it prints.

    Raises:
        Failed: It failed, or took too long.
    """
    with subprocess.Popen(
        [sys.executable, *words],
        env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"not finished after {SECONDS} s") from None
        finally:  # with what it has started, which would keep the GPU's memory
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        lines = errors.strip().splitlines() or [f"status {process.returncode}"]
        raise Failed(lines[-1][:300])
    return output


def keras_vit(*words: str, **variables: str) -> str:
    """Run a command of keras-vit; see `command`."""
    return command("-m", "keras_vit", *words, **variables)


def look(backend: str) -> Backend:
    """What an installed backend sees."""
    try:
        printed = command("-c", BACKENDS[backend])
    except Failed as error:
        return Backend(None, {"failed": str(error)})
    version, platform, names = json.loads(printed.splitlines()[-1])
    return Backend(
        platform, {"version": version, "device": _counted(len(names), names[0])}
    )


def _counted(devices: int, name: str) -> str:
    return name if devices == 1 else f"{devices} x {name}"


def checked(backends: Backends, tiny: bool) -> list[str]:
    """The backends that see an accelerator; with `--tiny` all that can be used."""
    platforms = ("gpu", "tpu", "cpu") if tiny else ("gpu", "tpu")
    return [name for name in backends if backends[name].platform in platforms]


def devices_check(backends: Backends, folder: pathlib.Path, tiny: bool) -> Iterator:
    """Each backend's version, and the devices that it sees."""
    for name, backend in backends.items():
        yield name, backend.figures


def training_check(backends: Backends, folder: pathlib.Path, tiny: bool) -> Iterator:
    """Runs of `fit` on the digits."""
    for backend in checked(backends, tiny):
        digests: list[str] = []
        for number, (name, flags) in enumerate(RUNS.items()):
            left_out = backend == "jax" and name in TENSORFLOW_ONLY
            if left_out or (tiny and name not in TINY_RUNS):
                continue
            run = folder / f"{backend}-{number}"
            size = ("--model.depth", "1") if tiny else ()
            began = time.perf_counter()
            try:
                keras_vit(
                    *("fit", "--recipe", "digits", "--epochs", "2" if tiny else "8"),
                    *("--output_dir", str(run), *size, *flags),
                    KERAS_BACKEND=backend,
                )
            except Failed as error:
                device = backends[backend].figures["device"]
                yield f"{backend}, {name}", {"device": device, "failed": str(error)}
                continue
            seconds = time.perf_counter() - began
            ended = json.loads((run / "report.json").read_text("utf-8"))
            digests.append(weights_digest(run / "last.keras"))
            yield (
                f"{backend}, {name}",
                {
                    "device": _counted(ended["devices"], ended["device_name"]),
                    "images_per_second": ended["images_per_second"],
                    "start_and_end_seconds": round(seconds - ended["seconds"], 1),
                    "accuracy": ended["accuracy"],
                    "same_bits_as_first": digests[0] == digests[-1],
                },
            )


def weights_digest(file: pathlib.Path) -> str:
    """SHA-256 of the names and values of all weights in a `.keras` file."""
    import io
    import zipfile

    import h5py

    digest = hashlib.sha256()

    def add(name, item):
        if isinstance(item, h5py.Dataset):
            digest.update(name.encode() + item[()].tobytes())

    with zipfile.ZipFile(file) as archive:
        weights = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(weights) as opened:
        opened.visititems(add)
    return digest.hexdigest()


NEW_MODEL = """
import sys, keras, keras_vit
keras.utils.set_random_seed(0)
variant, size, file = sys.argv[1:]
preprocessing = keras_vit.ImagePreprocessing((int(size), int(size)))
model = keras_vit.VisionTransformer.from_variant(
    variant, image_size=int(size), classes=1000, preprocessing=preprocessing
)
model.save(file)
"""
# The best of all batches: a warm-up, and others that use the machine, do not count.
SERVE = """
import json, sys, time
import numpy as np, tensorflow as tf
from training.reporting.throughput import device_name
folder, batch, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
serve = tf.saved_model.load(folder).signatures["serve_pixels"]
shape = serve.structured_input_signature[1]["pixel_values"].shape[1:]
random = np.random.default_rng(0)
pixels = tf.constant(random.uniform(-1, 1, (batch, *shape)).astype("float32"))
seconds = []
for _ in range(count):
    began = time.perf_counter()
    serve(pixel_values=pixels)["logits"].numpy()
    seconds.append(time.perf_counter() - began)
print(json.dumps([min(seconds), device_name()]))
"""


def export_check(backends: Backends, folder: pathlib.Path, tiny: bool) -> Iterator:
    """Exports for each target, on the CPU and on the GPU."""
    if "tensorflow" not in checked(backends, tiny):
        return
    variant, size = ("Ti/16", "64") if tiny else ("B/16", "384")
    file = folder / "model.keras"
    on_cpu = DEVICE_VARIABLES["the CPU"]
    command("-c", NEW_MODEL, variant, size, str(file), **on_cpu)
    for target in TARGETS:
        keras_vit(
            *("export", str(file), "--to", str(folder / target), "--target", target),
            *("--batching", "none"),
            KERAS_BACKEND="tensorflow",
        )
        for place, variables in DEVICE_VARIABLES.items():
            words = ("-c", SERVE, str(folder / target / "1"), str(BATCH))
            printed = command(*words, str(2 if tiny else IMAGE_BATCHES), **variables)
            seconds, device = json.loads(printed.splitlines()[-1])
            yield (
                f"{variant}, {size} px, for {target}, on {place}",
                {"device": device, "images_per_second": round(BATCH / seconds, 1)},
            )


WRITE_JPEGS = """
import pathlib, sys
from benchmarks.data import jpegs
for number, contents in enumerate(jpegs().numpy()):
    path = pathlib.Path(sys.argv[1], f"class{number % 2}", f"{number}.jpg")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents)
"""


def jpeg_check(backends: Backends, folder: pathlib.Path, tiny: bool) -> Iterator:
    """Images/s of the input pipeline, of all cores."""
    if "tensorflow" not in backends:
        return
    images, file = folder / "images", folder / "speed.json"
    command("-c", WRITE_JPEGS, str(images), CUDA_VISIBLE_DEVICES="-1")
    keras_vit(
        *("data-speed", "--recipe", "finetune_folder-B16", "--json", str(file)),
        *("--data.source", f"folder:{images}"),
        *("--seconds", "1" if tiny else "6"),
        CUDA_VISIBLE_DEVICES="-1",
        KERAS_BACKEND="tensorflow",
    )
    stages = json.loads(file.read_text("utf-8"))["stages"]
    rate, cores = stages[-1]["images_per_second"], os.cpu_count() or 1
    yield (
        f"JPEGs on {cores} cores",
        {
            "device": "CPU",
            "images_per_second": round(rate, 1),
            "images_per_second_and_core": round(rate / cores, 1),
        },
    )


def gpu_check(backends: Backends, folder: pathlib.Path, tiny: bool) -> Iterator:
    """`benchmarks.gpu`: forward pass and training step beside other libraries."""
    jax = "jax" in checked(backends, tiny) and backends["jax"].platform != "tpu"
    if not jax or importlib.util.find_spec("timm") is None:
        return
    for number, variant in enumerate(("B/16", "S/16")):
        file = folder / f"gpu-{number}.json"
        words = ("--tiny",) if tiny else ("--variants", variant)
        try:
            command("-m", "benchmarks.gpu", *words, "--output", str(file))
        except Failed as error:
            yield variant, {"failed": str(error)}
        # It writes what it has measured until then.
        rows = json.loads(file.read_text("utf-8"))["rows"] if file.is_file() else []
        for row in rows:
            kind = "training" if row["training"] else "forward"
            name = f"{row['variant']}, {row['pixels']} px, {kind}, {row['library']}"
            kept = ("images_per_second", "time_to_ours", "share_of_matmul", "memory_mb")
            yield name, {key: row[key] for key in ("device", *kept)}
        if tiny:
            return


CHECKS: dict[str, Callable[[Backends, pathlib.Path, bool], Iterator]] = {
    "devices": devices_check,
    "training": training_check,
    "export": export_check,
    "jpeg": jpeg_check,
    "gpu": gpu_check,
}


def cores_needed(rows: list[dict[str, Any]]) -> float | None:
    """Cores whose JPEGs keep the GPU busy that trains B/16, where both are measured."""
    rates = {row["what"]: row for row in rows}
    training = rates.get("B/16, 224 px, training, keras-vit", {})
    jpegs = [row for row in rows if "images_per_second_and_core" in row]
    if not jpegs or "images_per_second" not in training:
        return None
    per_core = jpegs[0]["images_per_second_and_core"]
    return round(training["images_per_second"] / per_core, 1)


def installed() -> list[str]:
    """The backends that are installed."""
    return [name for name in BACKENDS if importlib.util.find_spec(name)]


def show(record: dict[str, Any]) -> None:
    """Print the rows, a table for each check."""
    for check in dict.fromkeys(row["check"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["check"] == check]
        report.show(rows, check)
    if record["cores_for_b16"] is not None:
        print(f"cores whose JPEGs keep it busy: {record['cores_for_b16']}")


def main() -> None:
    """Runs the checks, prints the table, and writes the JSON file after each row."""
    parser = report.make_parser(__doc__, "first_minutes")
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--tiny", action="store_true", help="any machine, no figures")
    options = parser.parse_args()
    if not pathlib.Path(options.output).parent.is_dir():  # not found out after minutes
        parser.error(f"--output must be in an existing folder, not {options.output}")
    backends = {name: look(name) for name in installed()}
    if not checked(backends, options.tiny):
        seen = [
            " ".join([name, *map(str, backend.figures.values())])
            for name, backend in backends.items()
        ]
        parser.error(
            "a GPU or TPU is needed, or --tiny, whose figures mean nothing. Received: "
            + ("; ".join(seen) or "neither TensorFlow nor JAX is installed")
        )
    folder = pathlib.Path(tempfile.mkdtemp())
    rows: list[dict[str, Any]] = []
    record: dict[str, Any] = {"machine": machine(), "cores_for_b16": None, "rows": rows}
    try:
        for check in options.checks:
            print(f"{check} ...", file=sys.stderr, flush=True)
            for what, figures in measured(check, backends, folder, options.tiny):
                rows.append({"check": check, "what": what, **figures})
                print(f"  {what}: {figures}", file=sys.stderr, flush=True)
                record["cores_for_b16"] = cores_needed(rows)
                report.write(record, options.output)
    finally:
        shutil.rmtree(folder)
    show(record)


def measured(
    check: str, backends: Backends, folder: pathlib.Path, tiny: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a check; a failure is its last one."""
    try:
        yield from CHECKS[check](backends, folder, tiny)
    except Failed as error:
        yield check, {"failed": str(error)}


def machine() -> dict[str, Any]:
    """Processor, versions, and the driver's own words about its GPUs."""
    found = report.machine((*PACKAGES, *report.PACKAGES))
    if shutil.which("nvidia-smi"):
        query = "--query-gpu=name,driver_version,memory.total"
        words = ["nvidia-smi", query, "--format=csv,noheader"]
        found["gpus"] = subprocess.run(words, capture_output=True, text=True).stdout
    return found


if __name__ == "__main__":
    main()
