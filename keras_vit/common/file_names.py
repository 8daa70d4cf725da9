"""Names of the files in the folder of a run, and in that of a served version."""

import pathlib

# A run's folder, which `training.engine.run_folder` describes.
RECIPE = "recipe.yaml"
REPORT = "report.json"
HISTORY = "history.csv"
BEST_MODEL, LAST_MODEL = "best.keras", "last.keras"
CHECKPOINTS, TENSORBOARD = "checkpoints", "tensorboard"
PAGE = "report.html"
CURVES, EXAMPLES = "curves.png", "examples.png"
CONFUSION_MATRIX, RELIABILITY = "confusion_matrix.png", "reliability.png"
MISCLASSIFIED, RECONSTRUCTIONS = "misclassified.png", "reconstructions.png"

# In the folder of a run, and in that of a model's versions: who writes there locks it.
LOCK = ".lock"

# Of files that hold a model, or its weights.
MODEL_SUFFIXES = (
    *(".keras", ".npz", ".safetensors", ".h5", ".hdf5", ".json"),
    *(".pth", ".pt", ".bin"),
)

# A version's folder. Of assets.extra, TensorFlow Serving reads the warm-up requests.
SAVED_MODEL = "saved_model.pb"
VARIABLES = pathlib.PurePath("variables", "variables")
MANIFEST = pathlib.PurePath("assets.extra", "manifest.json")
WARMUP_REQUESTS = pathlib.PurePath("assets.extra", "tf_serving_warmup_requests")
# Read with --enable_per_model_batching_parameters.
BATCHING_PARAMETERS = "batching_params.pbtxt"


def model_file(path: pathlib.Path) -> pathlib.Path:
    """`best.keras` of a run's folder, or the path itself, such as a checkpoint's."""
    is_run = any((path / name).is_file() for name in (RECIPE, BEST_MODEL))
    return path / BEST_MODEL if is_run else path
