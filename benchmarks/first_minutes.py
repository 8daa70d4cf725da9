"""What does this GPU or TPU do with keras-vit, in its first fifteen minutes?

    python -m benchmarks.first_minutes [--checks training export ...] [--tiny]

Run it once on a machine with an accelerator, and paste the tables; the JSON file has
the same, and each row names its device. Each check is one or more processes; one that
fails or takes too long leaves its reason, and the others go on. Of TensorFlow and JAX,
those are checked that see an accelerator: on a TPU VM it is JAX alone.

- devices: version and devices of each, also where it sees only the CPU.
- training: `fit` of digits twice with deterministic operations and twice without, its
  weights compared bit for bit with the first run's; with XLA and without; in each
  precision; with 1 and 22 steps per execution. Images/s of the last epoch.
- export: B/16 of 384 pixels for each `--target`, eight images at a time, on the GPU and
  on the CPU.
- jpeg: the input pipeline of JPEGs of 500x375 pixels, and the cores that the GPU needs
  for what `gpu` has measured of B/16's training.
- gpu: `benchmarks.gpu` of B/16 and S/16, where JAX sees a GPU and the other libraries
  are installed.

`--tiny` runs all of it on any machine; its figures mean nothing.
"""

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
import zipfile
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
ON_GPU = {"KERAS_BACKEND": "tensorflow"}
ON_CPU = {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"}
BATCH, IMAGE_BATCHES = 8, 20
JPEGS = "images_per_second_and_core"
GPU_RUNS = [("--variants", "B/16"), ("--variants", "S/16")]
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
TINY_FLAGS = ("--epochs", "2", "--model.depth", "1")
TINY_RUNS = ("deterministic", "deterministic, again", "22 steps per execution")


class Backend(NamedTuple):
    """TensorFlow or JAX: what it computes on, and its row."""

    platform: str | None  # `cpu`, `gpu` or `tpu`; None where it cannot be used
    figures: dict[str, Any]  # its version and its devices, or why it failed


Backends = dict[str, Backend]
Rows = Iterator[tuple[str, dict[str, Any]]]  # what was measured, and its figures


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


def devices_check(backends: Backends, folder: pathlib.Path, tiny: bool) -> Rows:
    """Each backend's version, and the devices that it sees."""
    for name, backend in backends.items():
        yield name, backend.figures


def training_check(backends: Backends, folder: pathlib.Path, tiny: bool) -> Rows:
    """Runs of `fit` on the digits."""
    for backend in checked(backends, tiny):
        first = None
        for number, (name, flags) in enumerate(RUNS.items()):
            left_out = backend == "jax" and name in TENSORFLOW_ONLY
            if left_out or (tiny and name not in TINY_RUNS):
                continue
            run = folder / f"{backend}-{number}"
            words = ["fit", "--recipe", "digits", "--output_dir", str(run), *flags]
            words += TINY_FLAGS if tiny else ["--epochs", "8"]
            began = time.perf_counter()
            try:
                command("-m", "keras_vit", *words, KERAS_BACKEND=backend)
            except Failed as error:
                device = backends[backend].figures["device"]
                yield f"{backend}, {name}", {"device": device, "failed": str(error)}
                continue
            seconds = time.perf_counter() - began
            ended = json.loads((run / "report.json").read_text("utf-8"))
            weights = stored_weights(run / "last.keras")
            first = first or weights
            yield (
                f"{backend}, {name}",
                {
                    "device": _counted(ended["devices"], ended["device_name"]),
                    "images_per_second": ended["images_per_second"],
                    "start_and_end_seconds": round(seconds - ended["seconds"], 1),
                    "accuracy": ended["accuracy"],
                    "same_bits_as_first": weights == first,
                },
            )


def stored_weights(file: pathlib.Path) -> bytes:
    """The weights in a `.keras` file, the same bytes for the same values."""
    with zipfile.ZipFile(file) as archive:
        return archive.read("model.weights.h5")


EXPORT = """
import sys, keras, keras_vit
from serving.export.options import ExportOptions
from serving.export.signatures import save
keras.utils.set_random_seed(0)
variant, size, folder, *targets = sys.argv[1:]
model = keras_vit.VisionTransformer.from_variant(
    variant, image_size=int(size), classes=1000
)
for target in targets:
    save(model, f"{folder}/{target}", ExportOptions(target=target, batching="none"))
"""
# For each target, the best of all batches: a warm-up, and others that use the machine,
# do not count.
SERVE = """
import json, sys, time
import tensorflow as tf
from training.reporting.throughput import device_name
batch, count, *folders = sys.argv[1:]
best = []
for folder in folders:
    serve = tf.saved_model.load(folder).signatures["serve_pixels"]
    shape = serve.structured_input_signature[1]["pixel_values"].shape[1:]
    pixels = tf.random.stateless_uniform((int(batch), *shape), (0, 1), -1.0, 1.0)
    seconds = []
    for _ in range(int(count)):
        began = time.perf_counter()
        serve(pixel_values=pixels)["logits"].numpy()
        seconds.append(time.perf_counter() - began)
    best.append(min(seconds))
print(json.dumps([best, device_name()]))
"""


def export_check(backends: Backends, folder: pathlib.Path, tiny: bool) -> Rows:
    """Exports for each target, on the CPU and on the GPU."""
    if "tensorflow" not in checked(backends, tiny):
        return
    variant, size = ("Ti/16", "64") if tiny else ("B/16", "384")
    command("-c", EXPORT, variant, size, str(folder), *TARGETS, **ON_GPU)
    count = str(2 if tiny else IMAGE_BATCHES)
    folders = [str(folder / target) for target in TARGETS]
    for place, variables in {"the GPU": ON_GPU, "the CPU": ON_CPU}.items():
        printed = command("-c", SERVE, str(BATCH), count, *folders, **variables)
        best, device = json.loads(printed.splitlines()[-1])
        for target, seconds in zip(TARGETS, best, strict=True):
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


def jpeg_check(backends: Backends, folder: pathlib.Path, tiny: bool) -> Rows:
    """Images/s of the input pipeline, of all cores."""
    if "tensorflow" not in backends:
        return
    images, file = folder / "images", folder / "speed.json"
    command("-c", WRITE_JPEGS, str(images), **ON_CPU)
    words = ["-m", "keras_vit", "data-speed", "--recipe", "finetune_folder-B16"]
    words += ["--data.source", f"folder:{images}", "--json", str(file)]
    command(*words, "--seconds", "1" if tiny else "6", **ON_CPU)
    rate = json.loads(file.read_text("utf-8"))["stages"][-1]["images_per_second"]
    cores = os.cpu_count() or 1
    figures = {"images_per_second": round(rate, 1), JPEGS: round(rate / cores, 1)}
    yield f"JPEGs on {cores} cores", {"device": "CPU", **figures}


def gpu_check(backends: Backends, folder: pathlib.Path, tiny: bool) -> Rows:
    """`benchmarks.gpu`: forward pass and training step beside other libraries."""
    jax = "jax" in checked(backends, tiny) and backends["jax"].platform != "tpu"
    if not jax or importlib.util.find_spec("timm") is None:
        return
    for words in [("--tiny",)] if tiny else GPU_RUNS:
        file = folder / f"{'-'.join(words).replace('/', '')}.json"
        try:
            command("-m", "benchmarks.gpu", *words, "--output", str(file))
        except Failed as error:
            yield words[-1], {"failed": str(error)}
        # It writes what it has measured until then.
        rows = json.loads(file.read_text("utf-8"))["rows"] if file.is_file() else []
        for row in rows:
            kind = "training" if row["training"] else "forward"
            name = f"{row['variant']}, {row['pixels']} px, {kind}, {row['library']}"
            kept = ("images_per_second", "time_to_ours", "share_of_matmul", "memory_mb")
            yield name, {key: row[key] for key in ("device", *kept)}


def cores_needed(rows: list[dict[str, Any]]) -> float | None:
    """Cores whose JPEGs keep the GPU busy that trains B/16, where both are measured."""
    trained = [
        row for row in rows if row["what"] == "B/16, 224 px, training, keras-vit"
    ]
    per_core = [row[JPEGS] for row in rows if JPEGS in row]
    if not trained or not per_core or "images_per_second" not in trained[0]:
        return None
    cores: float = trained[0]["images_per_second"] / per_core[0]
    return round(cores, 1)


CHECKS: dict[str, Callable[[Backends, pathlib.Path, bool], Rows]] = {
    "devices": devices_check,
    "training": training_check,
    "export": export_check,
    "jpeg": jpeg_check,
    "gpu": gpu_check,
}


def main() -> None:
    """Runs the checks, prints the table, and writes the JSON file after each row."""
    parser = report.make_parser(__doc__, "first_minutes")
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--tiny", action="store_true", help="any machine, no figures")
    options = parser.parse_args()
    if not pathlib.Path(options.output).parent.is_dir():  # not found out after minutes
        parser.error(f"--output must be in an existing folder, not {options.output}")
    backends = {name: look(name) for name in BACKENDS if importlib.util.find_spec(name)}
    if not checked(backends, options.tiny):
        seen = [
            " ".join([name, *map(str, backend.figures.values())])
            for name, backend in backends.items()
        ]
        parser.error(
            "a GPU or TPU is needed, or --tiny, whose figures mean nothing. Received: "
            + ("; ".join(seen) or "neither TensorFlow nor JAX is installed")
        )
    rows: list[dict[str, Any]] = []
    record: dict[str, Any] = {"machine": machine(), "cores_for_b16": None, "rows": rows}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for check in options.checks:
            print(f"{check} ...", file=sys.stderr, flush=True)
            for what, figures in measured(check, backends, folder, options.tiny):
                rows.append({"check": check, "what": what, **figures})
                print(f"  {what}: {figures}", file=sys.stderr, flush=True)
                record["cores_for_b16"] = cores_needed(rows)
                report.write(record, options.output)
    for check in options.checks:
        report.show([row for row in rows if row["check"] == check], check)
    if record["cores_for_b16"] is not None:
        print(f"cores whose JPEGs keep it busy: {record['cores_for_b16']}")


def measured(check: str, backends: Backends, folder: pathlib.Path, tiny: bool) -> Rows:
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
        answer = subprocess.run(words, capture_output=True, text=True, check=False)
        found["gpus"] = answer.stdout
    return found


if __name__ == "__main__":
    main()
