"""The difference between the outputs of an exported model and the Keras model."""

import io

import numpy as np
from PIL import Image

from keras_vit.typing import Array, Arrays

# Factor of the tolerance for unbounded values such as logits, which is also relative to
# the largest of them: they accumulate more rounding errors than probabilities.
UNBOUNDED = 10
# Factor of the Keras model's own rounding noise that a difference may always be: other
# kernels round differently in each layer, and a few images do not show the worst case.
NOISE_FACTOR = 4


class Disagreement(Exception):
    """An exported model differs from the Keras model."""


def difference(
    signature: str, answers: Arrays, golden: Arrays, tolerance: float
) -> float:
    """Compare the outputs of a signature for the golden images.

    Args:
        tolerance: Of a probability, where the model's noise does not ask for more.

    Returns:
        The largest difference of a probability; 0 without any.

    Raises:
        Disagreement: An output is wrong.
    """
    largest = 0.0
    for output, values in answers.items():
        if output in EXACT:
            if not EXACT[output](values, answers, golden):
                raise Disagreement(f"{signature} gives wrong {output}")
            continue
        if output == "scores":
            distance = _score_distance(answers, golden)
        else:
            distance = _distance(values, golden[output])
        probability = output in ("scores", "probabilities")
        name = "probabilities" if probability else output
        scale = 1.0 if probability else UNBOUNDED * scale_of(golden[output])
        limit = allowed(name, golden, tolerance * scale)
        if not distance <= limit:  # also true for NaN
            raise Disagreement(
                f"{signature} gives other {output}: they must be within {limit:g}, "
                f"and differ by {distance:g}"
            )
        if probability:
            largest = max(largest, distance)
    return largest


def allowed(name: str, golden: Arrays, tolerance: float) -> float:
    """The largest allowed difference of an output: the tolerance, or the noise's."""
    return max(tolerance, NOISE_FACTOR * float(golden[f"{name}_noise"]))


def scale_of(values: Array) -> float:
    """What tolerances of unbounded values are relative to: the largest, at least 1."""
    return max(1.0, _distance(values, 0))


def _distance(values: Array, others: Array | float) -> float:
    return float(np.max(np.abs(values - others)))


def _score_distance(answers: Arrays, golden: Arrays) -> float:
    """Compare scores [N, K] with the K best golden ones, and with those by class."""
    scores, probabilities = answers["scores"], golden["probabilities"]
    best = -np.sort(-probabilities, axis=1)[:, : scores.shape[1]]
    # Among classes with the same name, take the nearest.
    same = _names(golden) == answers["classes"][..., None]  # [N, K, classes]
    named = np.abs(scores[..., None] - probabilities[:, None])
    named = np.where(same, named, np.inf).min(axis=2)
    return max(_distance(scores, best), _distance(named, 0))


def _names(golden: Arrays) -> Array:
    return np.array([name.encode() for name in golden["names"].tolist()], object)


def _right_classes(classes: Array, answers: Arrays, golden: Arrays) -> bool:
    """Names match their indices; `classify` has none, but its scores are compared."""
    if "class_ids" not in answers:
        return True
    return bool((_names(golden)[answers["class_ids"]] == classes).all())


def _right_class_ids(class_ids: Array, answers: Arrays, golden: Arrays) -> bool:
    """Valid class indices without duplicates."""
    ordered = np.sort(class_ids, axis=1)
    in_range = (ordered >= 0).all() and (ordered < len(golden["names"])).all()
    return bool(in_range and (np.diff(ordered, axis=1) > 0).all())


def _right_rollout(rollout: Array, answers: Arrays, golden: Arrays) -> bool:
    """Shares that sum to 1; the attention weights themselves are not exported."""
    sums = rollout.sum(axis=(1, 2), dtype="float64")
    return bool((rollout >= 0).all() and np.allclose(sums, 1, rtol=0, atol=1e-4))


def _right_seen(files: Array, answers: Arrays, golden: Arrays) -> bool:
    """PNG files of exactly the model's input pixels."""
    images = golden["images"]
    decoded = [np.asarray(Image.open(io.BytesIO(data))) for data in files]
    return bool(np.array_equal(np.reshape(decoded, images.shape), images))


EXACT = {
    "class_ids": _right_class_ids,
    "classes": _right_classes,
    "rollout": _right_rollout,
    "seen_bytes": _right_seen,
}
