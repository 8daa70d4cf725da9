"""Break the code in one place of each of many modules, and see its tests fail.

    python tests/support/mutants.py [NUMBER ...]

Each of `MUTANTS` is written into a clone of the last commit, where the fast tests that
are named beside it run until one fails. Prints a line for each; the exit status is 1 if
one survived. It takes about half an hour of CPU time; `tests/test_mutants.py` checks
that each place is still there.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parent.parent.parent
FAILED = 1  # pytest's exit status where tests ran and one failed


class Mutant(NamedTuple):
    """A text of a file, what stands in its place, and the tests that find it."""

    path: str
    before: str
    after: str
    tests: str


_TABLE = """
keras_vit/layers/gelu.py | slope = 2 * math | slope = 1.99 * math | keras_vit/test_gelu.py
keras_vit/layers/dot_product_attention.py | shape[-1] ** -0.5) | shape[-1] ** -0.49) | keras_vit/test_attention.py
keras_vit/layers/normalization.py | (variance + epsilon) | (variance + 2 * epsilon) | keras_vit/test_layers.py keras_vit/test_reference.py
keras_vit/layers/positions.py | steps = max(waves - 1, 1) if last | steps = max(waves, 1) if last | keras_vit/test_layers.py keras_vit/test_vit.py keras_vit/test_reference.py
keras_vit/layers/encoder_blocks.py | ops.cast(uniform < keep, | ops.cast(uniform < 0.5 * keep, | keras_vit/test_layers.py
keras_vit/layers/tokens.py | kept = max(1, int(patches * (1.0 - self.rate))) | kept = max(1, int(patches * self.rate)) | keras_vit/test_layers.py
keras_vit/costs.py | self.macs += blocks * (attention | self.macs += (blocks - 1) * (attention | keras_vit/test_costs.py
keras_vit/decoding.py | tf.floor(pixels + HALF) | tf.floor(pixels) | keras_vit/test_decoding.py
keras_vit/preprocessing.py | (x.astype("float32") - mean) / std | (x.astype("float32") - mean) * std | keras_vit/test_preprocessing.py
keras_vit/pixel_range.py | low >= 0 and high <= 1 and | low >= 0 and high < 1 and | keras_vit/test_preprocessing.py
keras_vit/resnet.py | strides=2 if stage > 1 and unit == 1 | strides=2 if stage > 2 and unit == 1 | keras_vit/test_resnet.py
keras_vit/weights/resampling.py | + 0.5) * old / new - 0.5 | + 0.5) * old / new - 0.4 | keras_vit/weights
keras_vit/weights/reading.py | * dtype.itemsize != member.file_size | * dtype.itemsize > member.file_size | keras_vit/weights
keras_vit/weights/torch_files.py | last >= storage.length | last > storage.length | keras_vit/weights/test_torch_files.py
keras_vit/weights/families/meta_dino.py | LINEAR, half=1) | LINEAR, half=0) | keras_vit/weights/test_meta_dino.py
keras_vit/weights/families/hugging_face_images.py | if config["do_rescale"] else 1 | if not config["do_rescale"] else 1 | keras_vit/weights
keras_vit/weights/families/keras_hub.py | "mean": one_or_all([-offset / scale | "mean": one_or_all([offset / scale | keras_vit/weights
keras_vit/layers/rotary.py | period = 2 * math.pi if | period = 2 * math.pi * 1.01 if | keras_vit/test_rotary.py
keras_vit/layers/rotary.py | concatenate([-sin, sin] | concatenate([sin, -sin] | keras_vit/test_rotary.py
keras_vit/weights/config.py | if not _agree(name, value, shown): | if False: | keras_vit/weights/test_stated_and_shown.py
keras_vit/weights/families/config_keys.py | not in keys and given[name].value not in (False, [], {}, "") | not in keys and given[name].value is True | keras_vit/weights
keras_vit/weights/families/timm_arguments.py | return -(-hidden // step) * step if step | return hidden // step * step if step | keras_vit/weights
keras_vit/weights/saving.py | value = np.split(whole, 2, axis=-1)[row.half] | value = np.split(whole, 2, axis=-1)[1 - row.half] | keras_vit/weights
keras_vit/image_files/bmp.py | // lowest * 255 // largest | // lowest * 256 // largest | keras_vit/image_files keras_vit/test_decoding.py
keras_vit/image_files/orientation.py | return orientation >= 5, | return orientation > 5, | keras_vit/image_files keras_vit/test_decoding.py
keras_vit/analysis/distance.py | np.hypot(*(steps * ( | np.hypot(*(2 * steps * ( | keras_vit/analysis
training/engine/schedule.py | (step + 1) / self.steps | step / self.steps | training/engine/test_optimizer.py
training/engine/losses.py | + label_smoothing / classes | + label_smoothing / (classes - 1) | training/engine/test_losses.py
training/engine/optimizer.py | config.layer_decay ** (last - _layer( | config.layer_decay ** (last + 1 - _layer( | training/engine/test_optimizer.py
training/engine/loss_scaling.py | good >= LOSS_SCALE_GROWTH | good > LOSS_SCALE_GROWTH | training/engine/test_tensorflow_trainer.py
training/engine/lora.py | layer.kernel + ops.cast(product | layer.kernel - ops.cast(product | training/engine/test_lora.py
training/data/mixup.py | return image * (1 - mask) + other * mask, 1 - cut | return image * (1 - mask) + other * mask, cut | training/data/test_mixup.py
training/data/masking.py | visible = self.patches - self.masked | visible = self.patches - self.masked + 1 | training/data/test_masking.py
training/data/pipeline.py | np.arange(count) // own * whole | np.arange(count) // whole * own | training/data
training/data/image_index.py | if not row.problem and file.modified < settled | if not row.problem | training/data/test_image_index.py
training/probe/fewshot.py | targets = 2 * (one_hot @ x).T | targets = (one_hot @ x).T | training/probe/test_fewshot.py
training/probe/knn.py | np.exp(similarities / temperature) | np.exp(similarities * temperature) | training/probe/test_knn.py
training/reporting/throughput.py | return 3 * costs.flops / | return costs.flops / | training/reporting
training/self_supervision/pretext.py | power = 1 if config.task == "simmim" | power = 1 if config.task == "mae" | training/self_supervision
serving/client/retries.py | min(2 * self._pause, LONGEST_PAUSE) | 2 * self._pause | serving/client/test_client.py
serving/client/tensors.py | if integers and not np.array_equal(cast, array) | if integers and np.array_equal(cast, array) | serving/client
serving/local/batching_checks.py | if count > queue.max_batch_size | if count >= queue.max_batch_size | serving/local
serving/local/config.py | policy.latest.num_versions or 1 | policy.latest.num_versions or 2 | serving/local
serving/rollout/label_moves.py | missing = set(moved.values()) - serves | missing = set() | serving/rollout
serving/export/numeric_agreement.py | return max(tolerance, NOISE_FACTOR | return 100 * max(tolerance, NOISE_FACTOR | serving/export
serving/export/graph_checks.py | (sizes <= max_bytes) | (sizes < max_bytes) | serving/export/test_graph_checks.py
serving/http_limits.py | if self._held > self._total | if self._held > 2 * self._total | serving/test_http_limits.py
"""  # noqa: E501
MUTANTS = [
    Mutant(*(cell.strip() for cell in line.split(" | ")))
    for line in _TABLE.strip().splitlines()
]


def survives(mutant: Mutant, copy: pathlib.Path) -> str | None:
    """`None` if a test failed, else what pytest ended with."""
    file = copy / mutant.path
    text = file.read_text("utf-8")
    file.write_text(text.replace(mutant.before, mutant.after), "utf-8")
    environment = os.environ | {"PYTHONPATH": str(copy), "TF_CPP_MIN_LOG_LEVEL": "3"}
    tests = [f"tests/{name}" for name in mutant.tests.split()]
    marks = "not slow and not parity and not engine"
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-m", marks, *tests],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        file.write_text(text, "utf-8")
    lines = ran.stdout.strip().splitlines() or ["no output"]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    print("   ", *failed[:1] or lines[-1:])
    return None if ran.returncode == FAILED else f"exit status {ran.returncode}"


def main(numbers: list[int]) -> int:
    """Try mutants, by default all; 1 if one survived."""
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "clone", "-q", str(ROOT), f"{folder}/copy"]
        subprocess.run(command, check=True)
        for number in numbers or range(len(MUTANTS)):
            mutant, start = MUTANTS[number], time.monotonic()
            print(f"{number} {mutant.path}: {mutant.before} -> {mutant.after}")
            reason = survives(mutant, pathlib.Path(folder, "copy"))
            word = f"SURVIVED: {reason}" if reason else "caught"
            print(f"    {word} after {time.monotonic() - start:.0f} s", flush=True)
            survivors += [number] if reason else []
    print(f"{len(survivors)} survived: {survivors}" if survivors else "all were caught")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]]))
