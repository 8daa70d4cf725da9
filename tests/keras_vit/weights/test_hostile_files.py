"""Files of weights made to take memory, time, or other files of the machine.

Those that take memory are read by a process that may have little of it.
"""

import json
import pathlib
import struct
import subprocess
import sys
import zipfile
import zlib

import h5py
import numpy as np
import pytest
import torch_archives

from keras_vit.errors import WeightsFileError
from keras_vit.weights import reading
from keras_vit.weights.reading import open_arrays

PACKAGE = pathlib.Path(reading.__file__).parents[1]
MEMORY = 2**30  # address space of the process, which needs a third of it
SECONDS = 60  # of its processor time; it needs one
READ = f"""
import importlib.util, json, resource, sys, types
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS}, {SECONDS}))
# Alone, as the package brings TensorFlow.
sys.modules["keras_vit"] = package = types.ModuleType("keras_vit")
package.__path__ = [{str(PACKAGE)!r}]
sys.modules["keras_vit.weights"] = package = types.ModuleType("keras_vit.weights")
package.__path__ = [{str(PACKAGE / "weights")!r}]
spec = importlib.util.spec_from_file_location("reading", {reading.__file__!r})
sys.modules["reading"] = reading = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reading)
try:
    with reading.open_arrays(sys.argv[1]) as file:
        file.config
        total = sum(array.read().nbytes for array in file.arrays.values())
    print("read", total)
except reading.WeightsFileError as error:
    print(error)
"""


def read_with_little_memory(path):
    result = subprocess.run(
        [sys.executable, "-c", READ, str(path)],
        env={"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-1000:]
    return result.stdout


def safetensors(header, data=b""):
    return struct.pack("<Q", len(header)) + header + data


ONE = b'"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}'
EMPTY = b'"b":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'


def deflated(start, block, times):
    """The raw deflate stream of `start` and of a block that is repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + again * times + packer.flush()


def write_npz(path, content, size):
    """A file with one array, whose content is deflated already."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", content)
    data = bytearray(path.read_bytes())
    entry = data.rfind(b"PK\1\2")
    for method, sizes in ((8, 18), (entry + 10, entry + 20)):
        struct.pack_into("<H", data, method, zipfile.ZIP_DEFLATED)
        struct.pack_into("<II", data, sizes, len(content), size)
    path.write_bytes(data)
    return path


def npy_header(shape, version=1, padding=0):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".encode()
    lengths = {1: "<H", 2: "<I"}[version]
    length = struct.pack(lengths, len(text) + 1 + padding)
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + b"\n"


MIB = bytes(2**20)


def array_of_zeros(folder):
    """1.5 MB that are an array of 1.5 GiB."""
    header = npy_header((1536 * 2**18,))
    content = deflated(header, MIB, 1536)
    return write_npz(folder / "a.npz", content, len(header) + 1536 * 2**20)


def header_of_spaces(folder):
    """1.5 MB whose header has 1.5 GiB."""
    header = npy_header((1,), version=2, padding=1536 * 2**20)
    content = deflated(header, b" " * 2**20, 1536)
    return write_npz(folder / "a.npz", content, len(header) + 1536 * 2**20 + 4)


def lzma_dictionary(folder):
    """A member whose decoder would take 1.5 GB."""
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.npy", npy_header((1,)) + bytes(4))
    data = bytearray((folder / "a.npz").read_bytes())
    properties = data.find(b"\x5d", 30)
    struct.pack_into("<I", data, properties + 1, 1536 * 2**20)
    (folder / "a.npz").write_bytes(data)
    return folder / "a.npz"


def chunks_never_written(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("a", (1536 * 2**18,), "f4", chunks=(2**20,))
    return folder / "a.h5"


def many_dictionaries(folder):
    """A pickle of a million of them, of a byte each."""
    return torch_archives.write_archive(folder / "a.pth", b"}" * (2**20 - 3), {})


def lists():
    """30 million of them: 90 MB, which take 1.7 GB once they are parsed."""
    return b"[]," * 30_000_000 + b"[]"


def large_header(folder):
    """90 MB of JSON, within what the safetensors library reads."""
    text = b'{"__metadata__":{"x":[' + lists() + b"]}," + ONE + b"}"
    (folder / "a.safetensors").write_bytes(safetensors(text, bytes(12)))
    return folder / "a.safetensors"


def with_config(folder, text):
    (folder / "a.safetensors").write_bytes(safetensors(b"{" + ONE + b"}", bytes(12)))
    (folder / "config.json").write_bytes(text)
    return folder / "a.safetensors"


def large_config(folder):
    return with_config(folder, b'{"x":[' + lists() + b"]}")


def nested_config(folder):
    return with_config(folder, b'{"x":' * 1_000_000)


def large_index(folder):
    path = folder / "model.safetensors.index.json"
    path.write_bytes(b'{"weight_map":[' + lists() + b"]}")
    return path


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (array_of_zeros, "announce arrays of 1,610,612,736"),
        (header_of_spaces, "a.npy has a header of 1,610,612,"),
        (lzma_dictionary, "compressed in an unknown way"),
        (chunks_never_written, "/a has 0 bytes"),
        (many_dictionaries, "too many values"),
        pytest.param(large_header, "more JSON than", marks=pytest.mark.slow),
        pytest.param(large_config, "more JSON than", marks=pytest.mark.slow),
        (nested_config, "RecursionError"),
        (large_index, "more JSON than"),
    ],
)
def test_what_is_announced_takes_no_memory(write, message, tmp_path):
    answer = read_with_little_memory(write(tmp_path))
    assert message in answer
    assert len(answer) < 1500


def test_an_array_that_shrank_is_read(tmp_path):
    """Zeros, as a new classifier has, are read although they shrink by 500 and more."""
    zeros = np.zeros((2**10, 2**13), "float32")
    np.savez_compressed(tmp_path / "a.npz", a=zeros)
    assert (tmp_path / "a.npz").stat().st_size < zeros.nbytes / 500
    assert read_with_little_memory(tmp_path / "a.npz") == f"read {zeros.nbytes}\n"


def info(**changes):
    entry = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12], **changes}
    return json.dumps({"a": entry}).encode()


HEADERS = {
    "a repeated array": b"{%b,%b,%b}" % (ONE, EMPTY, EMPTY),
    "a repeated key": b'{"a":{"dtype":"F32",%b}' % ONE[5:],
    "repeated metadata": b'{"__metadata__":{},"__metadata__":{},%b}' % ONE,
    "metadata of numbers": b'{"__metadata__":{"x":1},%b}' % ONE,
    "metadata in pairs": b'{"__metadata__":[["x","y"]],%b}' % ONE,
    "another key": info(x=1),
    "nested lists": b'{"a":{"x":%b,%b}' % (b"[" * 200 + b"]" * 200, ONE[5:]),
    "true in a shape": info(shape=[3, True]),
    "true as a shape": info(shape=True),
    "a float in a shape": info(shape=[3.0]),
    "text in a shape": info(shape=["3"]),
    "an object as a shape": (
        b'{"a":{"dtype":"F32","shape":{},"data_offsets":[0,4]},'
        b'"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}'
    ),
    "minus zero": info().replace(b"[0,", b"[-0,").replace(b"[0, ", b"[-0, "),
    "negative lengths": info(shape=[-3, -1]),
    "false as an offset": info(data_offsets=[False, 12]),
    "negative offsets": info(data_offsets=[-12, 0]),
    "three offsets": info(data_offsets=[0, 12, 12]),
    "a hole": info(shape=[2], data_offsets=[4, 12]),
    "an overlap": b'{%b,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}' % ONE,
    "bytes left over": info(shape=[2], data_offsets=[0, 8]),
    "bytes that lack": info(shape=[4], data_offsets=[0, 16]),
    "too large a number": info(shape=[10**30, 0], data_offsets=[0, 0]),
    "an overflow": info(shape=[2**60, 2**60, 0], data_offsets=[0, 0]),
    "a product of 2**64": info(shape=[2**62, 4], data_offsets=[0, 0]),
    "NaN": b'{"__metadata__":{"x":NaN},%b}' % ONE,
    "infinity": b'{"a":{"x":Infinity,%b}' % ONE[5:],
    "half a surrogate pair": b'{"\\ud800":%b}' % ONE[4:],
    "half a pair in metadata": b'{"__metadata__":{"x":"\\udc00"},%b}' % ONE,
    "a surrogate in bytes": b'{"\xed\xa0\x80":%b}' % ONE[4:],
    "UTF-16": ("{" + ONE.decode() + "}").encode("utf-16-le"),
    "a control character": b'{"\1":%b}' % ONE[4:],
    "two documents": b"{%b}{}" % ONE,
    "zeros at the end": b"{%b}\0\0" % ONE,
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_malformed_header_is_refused(name, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors(HEADERS[name], bytes(12)))
    with pytest.raises(WeightsFileError):
        open_arrays(path)


LIBRARY_ACCEPTS = {"a repeated array", "another key"}


@pytest.mark.parametrize("name", HEADERS)
def test_these_are_the_headers_that_the_safetensors_library_refuses(name):
    """Which shows that they are well-formed but for what their name says."""
    library = pytest.importorskip("safetensors")
    data = safetensors(HEADERS[name], bytes(12))
    if name in LIBRARY_ACCEPTS:
        library.deserialize(data)
    else:
        with pytest.raises(library.SafetensorError):
            library.deserialize(data)


@pytest.mark.parametrize("text", [b'{"x":1,"x":1}', b'{"x":NaN}', b'{"x":[-Infinity]}'])
def test_a_config_that_is_not_strict_json_is_refused(text, tmp_path):
    with (
        open_arrays(with_config(tmp_path, text)) as file,
        pytest.raises(WeightsFileError, match=r"config\.json"),
    ):
        _ = file.config


def test_too_many_axes_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors(info(shape=[3] + [1] * 32), bytes(12)))
    with pytest.raises(WeightsFileError, match="no array has the shape"):
        open_arrays(path)


@pytest.mark.parametrize("shape", ["(True, 3)", "(-3, -1)", "(0, 2**50)"])
def test_a_malformed_shape_in_an_npz_is_refused(shape, tmp_path):
    header = npy_header(shape.replace("2**50", str(2**50)))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", header + bytes(12 if "3" in shape else 0))
    with pytest.raises(WeightsFileError):
        open_arrays(tmp_path / "a.npz")


# Arguments of h5py's `create_dataset`. HDF5 takes memory for all that a filter gives,
# whatever the chunk's size.
TYPE = "no weights are of the type"
FILTERED = {"data": np.zeros(30), "chunks": (10,)}
DATASETS = {
    "structures": ({"data": np.zeros(3, [("x", "f4"), ("y", "f4")])}, TYPE),
    "pairs": ({"shape": (3,), "dtype": np.dtype("2f4")}, TYPE),
    "compressed": ({**FILTERED, "compression": "gzip"}, "'/a' is compressed or filt"),
    "shuffled": ({**FILTERED, "shuffle": True}, "'/a' is compressed or filtered"),
    "references": ({"shape": (3,), "dtype": h5py.ref_dtype}, "Python objects, '/a'"),
}


@pytest.mark.parametrize(("options", "message"), DATASETS.values(), ids=DATASETS)
def test_an_hdf5_dataset_of_other_content_is_refused(options, message, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", **options)
        file["a"][...] = file["a"][...]  # which gives it bytes
    with pytest.raises(WeightsFileError, match=message):
        open_arrays(tmp_path / "a.h5")


def test_an_hdf5_dataset_in_whole_chunks_is_read(tmp_path):
    array = np.arange(33.0).reshape(11, 3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=array, chunks=(4, 2))
    with open_arrays(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(file.arrays["a"].read(), array)


@pytest.mark.parametrize(
    "link", [h5py.ExternalLink("other.h5", "/a"), h5py.SoftLink("/a")]
)
def test_a_link_in_an_hdf5_file_is_refused(link, tmp_path):
    for name in ("a.h5", "other.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            file["a"] = np.zeros(3)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["layers/b"] = link
    with pytest.raises(WeightsFileError, match="'layers/b' is a link"):
        open_arrays(tmp_path / "a.h5")


@pytest.fixture
def index(tmp_path):
    """A function that writes the index of one shard, and of a file elsewhere."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in (folder / "part.safetensors", tmp_path / "secret.safetensors"):
        path.write_bytes(safetensors(b"{" + ONE + b"}", bytes(12)))

    def write(weight_map):
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps({"weight_map": weight_map}))
        return path

    return write


@pytest.mark.parametrize(
    "shard", ["../secret.safetensors", "{}/secret.safetensors", "./part.safetensors"]
)
def test_a_shard_in_another_folder_is_refused(index, tmp_path, shard):
    path = index({"a": shard.format(tmp_path)})
    with pytest.raises(WeightsFileError, match="not the name of a file beside it"):
        open_arrays(path)


@pytest.mark.parametrize("shard", [None, 3, "", ".", "..", ["part.safetensors"]])
def test_a_shard_without_a_file_name_is_refused(index, shard):
    with pytest.raises(WeightsFileError, match="whose shard"):
        open_arrays(index({"a": shard}))


def test_a_shard_may_be_a_link_as_in_the_cache_of_the_hub(index, tmp_path):
    path = index({"a": "blob.safetensors"})
    target = pathlib.Path("..", "secret.safetensors")
    (path.parent / "blob.safetensors").symlink_to(target)
    with open_arrays(path) as file:
        assert list(file.arrays) == ["a"]


def test_an_index_that_names_another_shard_is_refused(index):
    path = index({"a": "part.safetensors", "b": "other.safetensors"})
    header = b'{"c":%b,%b}' % (ONE[4:], EMPTY)
    (path.parent / "other.safetensors").write_bytes(safetensors(header, bytes(12)))
    with pytest.raises(WeightsFileError, match="does not say where c is"):
        open_arrays(path)
    swapped = {"a": "other.safetensors", "b": "part.safetensors"}
    index({**swapped, "c": "other.safetensors"})
    with pytest.raises(WeightsFileError, match="does not say where a, b is"):
        open_arrays(path)
