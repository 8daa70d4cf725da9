"""Options of an export: classes, batching, limits, precision, target."""

import dataclasses

from keras_vit.checks import check_choice

BATCHING = ("graph", "server", "none")
PRECISIONS = ("float32", "bfloat16")
TARGETS = ("any", "cpu", "gpu")
WARMUP = ("largest", "full")


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Options of an exported model.

    Args:
        top_k: Classes in each answer, best first; all of them if the model has fewer.
        batching: `"graph"` batches the images of concurrent requests inside the model,
            `"server"` leaves it to TensorFlow Serving (`--enable_batching
            --enable_per_model_batching_parameters`), `"none"` runs each request alone.
        max_batch_size: Largest batch that the backbone runs, and that warm-up records
            cover; with `"none"` the latter only.
        batch_timeout_micros: How long a batch waits to fill up, in microseconds; a
            lone request may wait twice as long.
        num_batch_threads: Batches that run concurrently.
        max_enqueued_batches: Batches in the queue before requests are rejected.
        max_images: Largest number of images in one request.
        max_image_bytes: Largest size of an encoded image.
        max_image_pixels: Largest height times width of an image, read from its header.
        precision: `"float32"` or `"bfloat16"`; outputs are always float32.
        target: What will run the model: `"cpu"`, `"gpu"`, or `"any"`, which holds the
            graphs for both where they differ.
        warmup: What a server runs before it is ready: `"largest"` the main signature
            with the largest batch and each other one with one image, `"full"` each
            signature with each batch size.

    Raises:
        ValueError: A number out of range, an unknown choice, or options that exclude
            each other.
    """

    top_k: int = 5
    batching: str = "graph"
    max_batch_size: int = 8
    batch_timeout_micros: int = 2000
    num_batch_threads: int = 2
    max_enqueued_batches: int = 128
    max_images: int = 64
    max_image_bytes: int = 16 * 2**20
    max_image_pixels: int = 40_000_000
    precision: str = "float32"
    target: str = "any"
    warmup: str = "largest"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.type is int:
                _check_number(field.name, getattr(self, field.name))
        check_choice("batching", self.batching, BATCHING)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("target", self.target, TARGETS)
        check_choice("warmup", self.warmup, WARMUP)
        if self.batching == "none":
            self._check_no_queue()
        if self.batching == "server" and self.max_images < self.max_batch_size:
            raise ValueError(
                "`max_images` must be at least `max_batch_size` with "
                "batching='server', where the model sees the images of several "
                f"requests as one. Received: max_images={self.max_images}, "
                f"max_batch_size={self.max_batch_size}"
            )

    def _check_no_queue(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in _QUEUE and value != field.default:
                raise ValueError(
                    f"`{field.name}` needs batching='graph' or batching='server'; with "
                    "batching='none' each request runs alone. "
                    f"Received: {field.name}={value}"
                )

    @property
    def allowed_batch_sizes(self) -> list[int]:
        """What batches are padded to: powers of two, and `max_batch_size` last."""
        powers = range((self.max_batch_size - 1).bit_length())
        return [*(2**power for power in powers), self.max_batch_size]


# Options of the queue.
_QUEUE = ("batch_timeout_micros", "num_batch_threads", "max_enqueued_batches")
# The one number that may be 0: no waiting.
_SMALLEST = {"batch_timeout_micros": 0}
_LARGEST = 2**31 - 1  # an attribute or a tensor of TensorFlow holds 32 bits


def _check_number(name: str, value: int) -> None:
    smallest = _SMALLEST.get(name, 1)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or not smallest <= value <= _LARGEST:
        raise ValueError(
            f"`{name}` must be an integer from {smallest} to {_LARGEST}. "
            f"Received: {name}={value!r}"
        )
