"""Published weights: their registry, and their download."""

import base64
import csv
import dataclasses
import functools
import hashlib
import http.client
import importlib.resources
import math
import os
import pathlib
import re
import urllib.error
import urllib.request
from collections.abc import Iterable

from keras_vit.common.atomic_files import flush, open_no_link, rename
from keras_vit.common.similar_names import did_you_mean
from keras_vit.errors import WeightsFileError
from keras_vit.specs import meant_variant

UNITS = {"B": 1, "MiB": 2**20, "GiB": 2**30}


@dataclasses.dataclass(frozen=True, repr=False)
class PublishedWeights:
    """One published file, a row of `published.tsv`, which gives the sources.

    Args:
        variant: The model, such as `"B/16"`, `"R50+L/32"` or `"R50x1"`.
        name: What `weights=` takes. It is timm's tag where timm has the file, with
            `@384` and the like where the images are not 224 pixels wide (the ResNets
            of BiT take any size and have that only where there are two files), and
            with `deit3_`, `dinov2_` or `dinov2_reg4_` in front for those models.
            `augreg_recommended_...` is the official recommendation where timm chose
            another file.
        family: Whose names the arrays have.
        classes: Number of classes, `None` without a classifier.
        image_size: Side of the images in pixels, of the best result in a ResNet.
        parameters: Number of weights of the model in the file.
        classifier: `"valid"`, `"zeros"` (set to zero by the authors: the file is for
            features only), `"unknown"` or `"none"`.
        size: Size of the file as it was published, such as `"393.69 MiB"`, or empty.
        top1: Published accuracy on ImageNet-1k's validation images in percent.
        source: Who measured it.
        url: Where the file is; `hf://owner/name` is a repository of Hugging Face.
    """

    variant: str
    name: str
    family: str
    classes: int | None
    image_size: int
    parameters: int
    classifier: str
    size: str
    top1: float | None
    source: str
    url: str

    def __repr__(self) -> str:
        result = "" if self.top1 is None else f", top-1 {self.top1} % ({self.source})"
        return (
            f"<{self.variant} {self.name!r}: {self.classes or 'no'} classes, "
            f"{self.image_size} px, {self.bytes / 2**20:.0f} MiB{result}>"
        )

    @property
    def bytes(self) -> int:
        """Size of the file: as published, else that of its float32 weights."""
        if not self.size:
            return 4 * self.parameters
        number, unit = self.size.split()
        return round(float(number) * UNITS[unit])

    def has_size(self, size: int) -> bool:
        """Whether a file of this number of bytes can be this one."""
        if not self.size:  # names and headers of arrays come on top
            return 0 <= size - self.bytes <= 0.01 * self.bytes + 2**17
        number, unit = self.size.split()
        last_digit: float = UNITS[unit] / 10 ** len(number.partition(".")[2])
        return abs(size - self.bytes) <= max(last_digit, 0.001 * self.bytes)


@functools.cache
def _rows() -> tuple[PublishedWeights, ...]:
    file = importlib.resources.files(__package__).joinpath("published.tsv")
    lines = file.read_text("utf-8").splitlines()
    table = [line for line in lines if not line.startswith("#")]
    return tuple(map(_row, csv.DictReader(table, delimiter="\t")))


def _row(cells: dict[str, str]) -> PublishedWeights:
    return PublishedWeights(
        variant=cells["variant"],
        name=cells["name"],
        family=cells["family"],
        classes=int(cells["classes"]) if cells["classes"] else None,
        image_size=int(cells["image_size"]),
        parameters=int(cells["parameters"]),
        classifier=cells["classifier"],
        size=cells["size"],
        top1=float(cells["top1"]) if cells["top1"] else None,
        source=cells["source"],
        url=cells["url"],
    )


def list_weights(variant: str | None = None) -> list[PublishedWeights]:
    """List the published files of one model, or of all.

    Args:
        variant: Such as `"B/16"`, `"R50+L/32"` or `"R50x1"`; all when absent.

    Raises:
        ValueError: Nothing is published for such a model.
    """
    rows = [row for row in _rows() if variant in (None, row.variant)]
    if not rows:
        variants = dict.fromkeys(row.variant for row in _rows())
        raise ValueError(
            f"`variant` must be one of {', '.join(map(repr, variants))} for published "
            "weights. "
            f"Received: variant={variant!r}.{_question(variant, variants)}"
        )
    return rows


def find_preset(name: str) -> PublishedWeights | None:
    """The published file that `"VARIANT:NAME"` names; None where none is named so."""
    return {f"{row.variant}:{row.name}": row for row in _rows()}.get(name)


def find_weights(variant: str, name: str) -> PublishedWeights:
    """Find the published file of this name for a model.

    Args:
        variant: Such as `"B/16"`.
        name: Such as `"augreg_in21k_ft_in1k@384"`.

    Raises:
        ValueError: There is no such file for this model, or none at all.
    """
    rows = {row.name: row for row in list_weights(variant)}
    if name not in rows:
        raise ValueError(
            f"`weights` must be one of {', '.join(map(repr, rows))} for {variant}, "
            f"or a path. Received: weights={name!r}.{_question(name, rows)}"
        )
    return rows[name]


def check_exists(preset: str) -> None:
    """Raise WeightsFileError for what is no file, repository or URL."""
    if "://" in preset or os.path.exists(os.path.expanduser(preset)):
        return
    known = [f"{row.variant}:{row.name}" for row in _rows()]
    raise WeightsFileError(
        "`weights` must be a file, hf://owner/name, or VARIANT:NAME of "
        f"`keras-vit list`. Received: {preset!r}, which does not exist."
        f"{_question(preset, known)}"
    )


def _question(name: str | None, known: Iterable[str]) -> str:
    """Ask whether the known name was meant that is most similar, if one is."""
    known, name = list(known), str(name)
    meant = [each for each in known if each.partition(":")[0] == meant_variant(name)]
    return did_you_mean(name, known) or did_you_mean(next(iter(meant), name), meant)


# Of a repository: what `open_arrays` reads, as timm, transformers and keras-hub name
# it. Others may lie beside, with the same weights in another format.
HUB_FILES = (
    "*.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.weights.h5",
    "task.weights.h5",
)
# Where there is none of these: OpenCLIP's file, those of PyTorch and their shards, and
# transformers 4's of TensorFlow.
OTHER_HUB_FILES = (
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model-*.bin",
    "open_clip_pytorch_model.bin",
    "tf_model.h5",
)
OURS = "model.keras"
SCHEMES = ("hf://", "https://", "http://")  # of what is downloaded
TIMEOUT = 30  # seconds without a byte
BLOCK = 2**20


def fetch(source: PublishedWeights | str | os.PathLike[str]) -> pathlib.Path:
    """Local path of weights, which are downloaded unless they are cached.

    Args:
        source: A row of `list_weights()`; the URL of a file; a repository of Hugging
            Face, `hf://owner/name[@revision][/file]`; or a path, which stays.

    Returns:
        The file in Keras's cache, under `~/.keras/models/keras_vit` or that of
        `KERAS_HOME`; or the repository's folder, or its file, in the hub's cache.

    Raises:
        WeightsFileError: It cannot be downloaded, or is not what was published. The
            message says where to put the file on a machine that is offline.
        ImportError: `hf://` without the package huggingface_hub.
    """
    if isinstance(source, PublishedWeights):
        row, url = source, source.url
    else:
        row, url = None, os.fspath(source)
    if url.startswith("hf://"):
        return _fetch_from_hub(url)
    if not url.startswith(SCHEMES):
        return pathlib.Path(url).expanduser()
    path = _cache_path(url)
    if not path.exists():
        try:
            _download(url, path, row)
        except (OSError, http.client.HTTPException) as error:
            raise WeightsFileError(
                "`weights` must be a file that can be downloaded. Received: "
                f"{url}: {error}. Retry to resume the download, or "
                f"download the file elsewhere and put it at {path}"
            ) from error
    import keras  # here, as most commands need no Keras

    return pathlib.Path(
        keras.utils.get_file(path.name, url, cache_subdir=str(path.parent))
    )


def _cache_path(url: str) -> pathlib.Path:
    """Path in the cache; host and folders distinguish files of the same name."""
    home = pathlib.Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
    place = re.sub(r"[^\w.+/-]", "_", url.partition("://")[2])
    names = [name for name in place.split("/") if name not in ("", ".", "..")]
    return (home / "models" / "keras_vit").joinpath(*names).absolute()


def _download(url: str, path: pathlib.Path, row: PublishedWeights | None) -> None:
    """Download to a .part file, which an interrupted download resumes, then rename."""
    import keras

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    print(f"Downloading {url} to {path}")
    response, have = _request(url, part)
    with response:
        length = response.headers["Content-Length"]
        total = have + int(length) if length else None
        if total is not None:
            _check_size(row, total)  # a web page must not replace the .part
        progress = keras.utils.Progbar(total)
        # No size is announced where there is no length: stop beyond the published one.
        most = math.inf if row is None else 1.1 * row.bytes + BLOCK
        with open(part, "ab" if have else "wb", opener=open_no_link) as file:
            while have <= most and (block := response.read(BLOCK)):
                file.write(block)
                have += len(block)
                progress.update(have)
    flush(part)
    if total is not None and have < total:
        raise ConnectionError(f"The connection ended after {have} of {total} bytes")
    try:
        _check_size(row, have)
        _check_hash(url, part, response.headers)
    except WeightsFileError:
        part.unlink()  # resuming from it would fail again
        raise
    rename(part, path)


def _request(url: str, part: pathlib.Path) -> tuple[http.client.HTTPResponse, int]:
    """Open response, and the number of bytes downloaded before."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url)  # noqa: S310
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(  # noqa: S310
            request, timeout=TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:  # 416: there is nothing beyond `have`
            raise
        part.unlink()
        return _request(url, part)
    return response, have if response.status == 206 else 0


def _check_size(row: PublishedWeights | None, size: int) -> None:
    if row is not None and not row.has_size(size):
        raise WeightsFileError(
            f"{row.url} must have about {row.bytes / 2**20:.2f} MiB, as published. "
            f"Received: {size} bytes, perhaps a web page in its place"
        )


def _md5() -> "hashlib._Hash":
    return hashlib.md5(usedforsecurity=False)  # against accidents


def _check_hash(url: str, part: pathlib.Path, headers: http.client.HTTPMessage) -> None:
    """Check the MD5 that Google's storage sends as base64."""
    sent = re.search(r"md5=([\w+/]+=*)", str(headers.get_all("x-goog-hash")))
    if sent is None:
        return
    with part.open("rb") as file:
        found = hashlib.file_digest(file, _md5).digest()
    if found != base64.b64decode(sent[1]):
        raise WeightsFileError(
            f"{url} must have the MD5 {base64.b64decode(sent[1]).hex()}. "
            f"Received: {found.hex()}. Try again"
        )


def _fetch_from_hub(source: str) -> pathlib.Path:
    match = re.fullmatch(r"hf://([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.+))?", source)
    if match is None:
        raise WeightsFileError(
            "`weights` must be of the form hf://owner/name[@revision][/file]. "
            f"Received: weights={source!r}"
        )
    repository, revision, file = match.groups()
    if not file:
        # What `keras-vit push` writes: with class names and preprocessing.
        ours = pathlib.Path(_snapshot(source, repository, revision, [OURS]), OURS)
        if ours.is_file():
            return ours
    others = [["*.json", name] for name in OTHER_HUB_FILES]
    for wanted in [[file, "*.json"]] if file else [list(HUB_FILES), *others]:
        path = pathlib.Path(_snapshot(source, repository, revision, wanted), file or "")
        suffixes = {".safetensors", ".h5", ".bin"}
        if path.is_file() if file else suffixes & {f.suffix for f in path.iterdir()}:
            return path
    known = [file] if file else [*HUB_FILES[1:], *OTHER_HUB_FILES]
    raise WeightsFileError(
        f"`weights` must be a repository with one of {', '.join(known)}. Received: "
        f"{source}, which may have its weights under other names; add /NAME of a file"
    )


def _snapshot(
    source: str, repository: str, revision: str | None, wanted: list[str]
) -> str:
    """Folder of the repository's files in the hub's cache."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            "`weights` from hf:// needs the package huggingface_hub: "
            f'pip install "keras-vit-serving[convert]". Received: weights={source!r}'
        ) from error
    try:
        return huggingface_hub.snapshot_download(
            repository, revision=revision, allow_patterns=wanted
        )
    except Exception as error:  # of the hub, of its HTTP client, of the file system
        raise WeightsFileError(
            "`weights` must be a repository that can be downloaded. Received: "
            f"{source}: {str(error).rstrip('.')}. Or download the files of "
            f"https://huggingface.co/{repository} elsewhere, and pass the path of "
            "their folder"
        ) from error
